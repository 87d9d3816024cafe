"""LangGraph's checkpoints in one SQLite file: one saver a process, one thread a run, only known types read back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiosqlite
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from orchestrator.runs.run import created_at
from orchestrator.workflows import RECORDS

_BUSY_TIMEOUT_MS = 30_000  # other processes may write to the same file


def serializer() -> JsonPlusSerializer:
    """Reads back the workflow's own records and plain values, and nothing else."""
    return JsonPlusSerializer(allowed_msgpack_modules=RECORDS)


@asynccontextmanager
async def open_saver(path: Path) -> AsyncIterator[AsyncSqliteSaver]:
    """The process's saver. The file is made when it is not there.

    Raises:
        sqlite3.Error: the file cannot be opened or is no database.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with aiosqlite.connect(path, timeout=_BUSY_TIMEOUT_MS / 1000) as connection:
        await connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
        await connection.execute("PRAGMA synchronous = NORMAL")
        saver = AsyncSqliteSaver(connection, serde=serializer())
        await saver.setup()
        yield saver


async def prune(saver: AsyncSqliteSaver, age: timedelta) -> int:
    """Deletes the checkpoints of runs that were made longer ago; gives back of how many runs."""
    before = datetime.now(UTC) - age
    async with saver.lock, saver.conn.execute("SELECT DISTINCT thread_id FROM checkpoints") as rows:
        threads = [str(row[0]) async for row in rows]
    old = [thread for thread in threads if (made := created_at(thread)) is None or made < before]
    for thread in old:
        await saver.adelete_thread(thread)
    return len(old)
