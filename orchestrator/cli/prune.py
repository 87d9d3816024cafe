"""`codemend prune`: deletes ended runs that are due, straight in the database, whether a service is running or not."""

import re
from datetime import timedelta
from typing import Annotated

import typer

from orchestrator.cli.errors import UsageFault
from orchestrator.cli.interrupts import run_to_exit
from orchestrator.cli.model import read_settings

_AGE = re.compile(r"([0-9]{1,6})(s|min|m|h|d|w)")
_UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def prune_command(
    *,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="AGE",
            help="Delete runs that ended longer ago, such as 12h, 7d or 2w; by default CODEMEND_KEEP_FOR.",
        ),
    ] = "",
    keep: Annotated[
        int | None,
        typer.Option("--keep", min=0, help="Delete all but the N that ended last; by default CODEMEND_KEEP_RUNS."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
) -> int:
    """Delete ended runs with their checkpoints, events and tapes, and stored files that no run may have any more.

    Works on the database that CODEMEND_DATABASE_URL or CODEMEND_DATA_DIR names; services may go on meanwhile. Runs that
    have not ended stay, and so do the runs that these were forked from. Regression cases stay.

    Exit codes:

    - 0: done
    - 3: the database cannot be used
    """
    from orchestrator.cli.prune_work import Place, prune  # noqa: PLC0415 - takes seconds to load
    from orchestrator.runs.pruning import Retention  # noqa: PLC0415

    settings = read_settings()
    keep_for = _age(older_than) if older_than else settings.keep_for
    retention = Retention(keep_for, settings.keep_runs if keep is None else keep)
    url = settings.database_url.get_secret_value() or f"sqlite:///{(settings.data_dir / 'runs.sqlite').absolute()}"
    return run_to_exit(prune(Place(url, settings.data_dir), retention, dry_run=dry_run))


def _age(text: str) -> timedelta:
    match = _AGE.fullmatch(text.strip().lower())
    if match is None:
        raise UsageFault("--older-than", f"{text!r} is no age; write a whole number with a unit, such as 12h, 7d or 2w")
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])
