"""The model that a command's own orchestrator will use, made ready before a run: options checked, weights fetched."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from orchestrator.cli.errors import ModelFault, UsageFault
from orchestrator.cli.terminal import complain, console
from orchestrator.settings import PREFIX, Settings

_PLAIN_INTERVAL = 10.0  # seconds between two lines of progress where no bar can be drawn


def orchestrator_environment(*, model_url: str, model: str, embedded_model: str) -> dict[str, str]:
    """Settings of the own orchestrator that say which model it uses.

    Raises:
        UsageFault: the options contradict each other.
    """
    if model and not model_url:
        raise UsageFault(
            "--model", "it names a model at an endpoint, and there is none: give --model-url, or pick --embedded-model"
        )
    if model_url and not model_url.startswith(("http://", "https://")):
        raise UsageFault("--model-url", f"{model_url!r} is no http:// or https:// address")
    chosen = {"CODEMEND_MODEL_URL": model_url, "CODEMEND_MODEL_NAME": model, "CODEMEND_EMBEDDED_MODEL": embedded_model}
    return {name: value for name, value in chosen.items() if value or name == "CODEMEND_MODEL_URL"}


def read_settings() -> Settings:
    """The orchestrator's settings as the environment gives them.

    Raises:
        UsageFault: some of them are wrong; never shows a value, which may be a secret.
    """
    given: dict[str, Any] = {}
    try:
        return Settings(**given)
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False)
        wrong = [f"{PREFIX}{'_'.join(map(str, fault['loc'])).upper()}: {fault['msg']}" for fault in faults]
        raise UsageFault("", "the environment has wrong settings: " + "; ".join(wrong)) from None


async def fetch_weights(embedded_model: str) -> Path:
    """Path of the embedded model's weights, fetched first where they are not there, with a progress bar on stderr.

    Raises:
        ModelFault: they cannot be had; the message says why.
    """
    # The gateway behind this package takes a second to import, which only this path has to wait for.
    from orchestrator.models import EmbeddedModel, EmbeddedSettings, ModelError  # noqa: PLC0415 - see above

    cache_dir = read_settings().cache_dir
    report = _ProgressReport(embedded_model)
    try:
        return await EmbeddedModel(EmbeddedSettings(cache_dir, embedded_model), progress=report.update).fetch()
    except ModelError as error:
        raise ModelFault(str(error)) from error
    finally:
        report.close()


class _ProgressReport:
    """A bar on a terminal, a line now and then elsewhere, nothing at all when the weights are there already."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._said_at = 0.0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console(sys.stderr), transient=True)
        self._task = self._bar.add_task(f"fetching model {name}", total=None)
        self._drawn = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def update(self, had: int, total: int) -> None:
        """Shows how many bytes are there."""
        if self._drawn:
            self._bar.start()
            self._bar.update(self._task, completed=had, total=total)
        elif time.monotonic() - self._said_at > _PLAIN_INTERVAL or had == total:
            self._said_at = time.monotonic()
            complain(f"fetching model {self._name}: {had / 1e6:,.0f} of {total / 1e6:,.0f} MB")

    def close(self) -> None:
        """Gives the terminal back."""
        self._bar.stop()
