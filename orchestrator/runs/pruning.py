"""What is kept of ended runs, and for how long: deletes what is due, piece by piece, so that nobody waits long.

A run goes with its checkpoints, events and tape. An artifact, which many runs may share, goes once nobody has kept it
for a time and no run that is left names it. Forks and cases hold copies of what else they need.
"""

import asyncio
import logging
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiosqlite
from langgraph.checkpoint.base import BaseCheckpointSaver

from orchestrator.errors import StoreError
from orchestrator.runs.artifacts import DirectoryStore
from orchestrator.runs.records import RunRecord
from orchestrator.runs.states import RunResult, RunState
from orchestrator.runs.store import BUSY_SECONDS, ArtifactRows, Database, RunRows
from orchestrator.workflows import encode

_BATCH = 10  # runs in one transaction: each may have thousands of events
_PAGES = 500  # of a SQLite file given back in one transaction
_MOVING = frozenset({RunState.QUEUED, RunState.RUNNING})
_HASH = re.compile(rb"(?=([0-9a-f]{64}))")  # wherever it begins: what stands before it may be a digit, too
_MARGIN = timedelta(hours=1)  # between an artifact's being kept and its run's row, and between clocks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept of ended runs: at most `keep_runs`, each for `keep_for` after its end."""

    keep_for: timedelta = timedelta(days=7)
    keep_runs: int = 10_000


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted, or would be."""

    runs: int
    artifacts: int
    artifact_bytes: int


class Pruner:
    """Deletes what is due. All methods raise StoreError and ArtifactError where a store fails."""

    def __init__(
        self,
        database: Database,
        saver: BaseCheckpointSaver[str],
        artifacts: DirectoryStore | ArtifactRows,
        retention: Retention,
    ) -> None:
        self._runs = RunRows(database)
        self._saver = saver
        self._artifacts = artifacts
        self._retention = retention

    async def look(self) -> Pruned:
        """What `prune` would delete now; artifacts of runs that are themselves to be deleted are not counted yet."""
        due = await self._runs.due(*self._bounds())
        artifacts, size = await self._artifacts.measure(*await self._needed())
        return Pruned(len(due), artifacts, size)

    async def prune(self) -> Pruned:
        """Deletes all that is due."""
        runs = await self.prune_runs()
        needed = await self._needed()
        _, size = await self._artifacts.measure(*needed)
        return Pruned(runs, await self._artifacts.prune(*needed), size)

    async def prune_runs(self) -> int:
        """Deletes the runs that are due; gives back how many."""
        bounds, count = self._bounds(), 0
        while due := await self._runs.due(*bounds, limit=_BATCH):
            for run_id in due:  # first, so that no checkpoint is ever left without its run
                await self._saver.adelete_thread(run_id)
            deleted = await self._runs.delete(due)
            count += deleted
            if deleted == 0:  # another replica is at it
                break
            await asyncio.sleep(0)
        return count

    def _bounds(self) -> tuple[datetime, int]:
        return datetime.now(UTC) - self._retention.keep_for, self._retention.keep_runs

    async def _needed(self) -> tuple[timedelta, frozenset[str]]:
        """The age at which an artifact may go, and those that stay however old they are.

        Runs that are younger than that age have none of that age. Of older ones, a run at work may have kept what it
        names only later; it holds back all that it may have, and has a deadline. One that stands still, perhaps for
        months, has written down what it needs: that is read, and holds back nothing else.
        """
        now = datetime.now(UTC)
        since, needed = now - self._retention.keep_for, set[str]()
        for record, its_since in await self._runs.artifact_users(since):
            names = await self._names(record) if record.state not in _MOVING else None
            if names is None:
                since = min(since, its_since)
            else:
                needed |= names
        return now - since + _MARGIN, frozenset(needed)

    async def _names(self, record: RunRecord) -> frozenset[str] | None:
        """All artifacts that a run names, and whatever else looks like a name; None: it cannot be read."""
        found: set[str] = set() if record.result is None else _hashes(encode(RunResult, record.result))
        try:
            # Of all graphs within its graph, too: the place names no namespace.
            async for kept in self._saver.alist({"configurable": {"thread_id": record.run_id}}):
                _, content = self._saver.serde.dumps_typed([kept.checkpoint["channel_values"], kept.pending_writes])
                found |= _hashes(content)
        except StoreError:
            raise
        except Exception:  # noqa: BLE001 - whatever an old version wrote: it costs space, and nothing else
            logger.warning(
                "checkpoints cannot be read: all is kept that the run may need", extra={"run": record.run_id}
            )
            return None
        return frozenset(found)


def _hashes(content: bytes) -> set[str]:
    return {found.decode() for found in _HASH.findall(content)}


@dataclass(frozen=True, slots=True)
class Compacted:
    """Bytes that a SQLite file gave back to the disk, and the statement that did it."""

    freed_bytes: int
    statement: str


async def compact(path: Path) -> Compacted:
    """Gives the free space of a SQLite file back to the disk.

    A file that was made to be shrunk bit by bit is; another is written anew, and locked for as long as that takes.

    Raises:
        sqlite3.Error: the file cannot be used.
    """
    before = await asyncio.to_thread(_size, path)
    async with aiosqlite.connect(path, timeout=BUSY_SECONDS, isolation_level=None) as connection:
        if await _pragma(connection, "auto_vacuum") == _INCREMENTAL:
            statement = "incremental_vacuum"
            while free := await _pragma(connection, "freelist_count"):
                await connection.execute_fetchall(f"PRAGMA incremental_vacuum({_PAGES})")  # each row read frees a page
                if await _pragma(connection, "freelist_count") >= free:
                    break
        else:
            statement = "VACUUM"
            await connection.execute("VACUUM")
        await connection.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
    return Compacted(before - await asyncio.to_thread(_size, path), statement)


_INCREMENTAL = 2


async def _pragma(connection: aiosqlite.Connection, name: str) -> int:
    (row,) = await connection.execute_fetchall(f"PRAGMA {name}")
    return int(row[0])


def _size(path: Path) -> int:
    files = (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
