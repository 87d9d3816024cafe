"""What `codemend prune` does; apart from the command, since it loads the database and LangGraph, which take seconds."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.cli.errors import ExitCode, ServiceFault
from orchestrator.cli.terminal import console, in_bytes
from orchestrator.errors import ArtifactError, StoreError
from orchestrator.runs import DirectoryStore
from orchestrator.runs.checkpoints import checkpoints_path, open_saver
from orchestrator.runs.pruning import Pruner, Retention, compact
from orchestrator.runs.store import ArtifactRows, open_database, sqlite_path


@dataclass(frozen=True, slots=True)
class Place:
    """Where runs are kept."""

    url: str
    data_dir: Path


async def prune(place: Place, retention: Retention, *, dry_run: bool) -> int:
    """Deletes what is due, or says what would be. Raises ServiceFault."""
    out = console()
    path = sqlite_path(place.url)
    if path is not None and not path.exists():
        out.print(f"nothing to delete: no runs are kept in {place.data_dir}")
        return ExitCode.OK
    try:
        async with _pruner(place, retention) as pruner:
            done = await (pruner.look() if dry_run else pruner.prune())
        verb = "would delete" if dry_run else "deleted"
        out.print(f"{verb} {_count(done.runs, 'ended run')}, with checkpoints, events and tape")
        out.print(f"{verb} {_count(done.artifacts, 'stored file')}, {in_bytes(done.artifact_bytes)}")
        if path is None:
            out.print("Postgres uses the space of deleted rows again; its autovacuum sees to that")
        elif not dry_run:
            await _compact(path)
    except (StoreError, ArtifactError, sqlite3.Error) as error:
        raise ServiceFault(f"cannot prune: {error}") from error
    return ExitCode.OK


@contextlib.asynccontextmanager
async def _pruner(place: Place, retention: Retention) -> AsyncIterator[Pruner]:
    async with open_database(place.url) as database, open_saver(place.url) as saver:
        if not database.is_sqlite:
            yield Pruner(database, saver, ArtifactRows(database), retention)
            return
        with contextlib.closing(DirectoryStore(place.data_dir / "artifacts")) as artifacts:
            yield Pruner(database, saver, artifacts, retention)


async def _compact(path: Path) -> None:
    for file in (path, checkpoints_path(path)):
        done = await compact(file)
        console().print(f"{file.name}: {in_bytes(max(done.freed_bytes, 0))} given back to the disk by {done.statement}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
