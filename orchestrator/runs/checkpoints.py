"""LangGraph's checkpoints, beside the runs' SQLite file or in the runs' Postgres: one saver a process, a thread a run.

Only known types are read back. What is handed to LangGraph refuses to write once this process may not write for its
runs any more, and fails with the errors of the store.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite
import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import ERROR
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from orchestrator.errors import StoreError, StoreUnavailable
from orchestrator.runs.store import ANSWER_SECONDS, CONNECT_SECONDS, SQLITE_PRAGMAS, sqlite_path, to_its_end
from orchestrator.workflows import RECORDS

_BUSY_SECONDS = 30.0  # other processes may write to the same file
_POOL_SIZE = 8
_RECONNECT_SECONDS = 2.0  # its tries grow rarer; after that, the next call begins anew
_SETUP_LOCK = 0x636F6373  # any number of our own
_SETUP_POLL_SECONDS = 0.05

T = TypeVar("T")


def serializer() -> JsonPlusSerializer:
    """Reads back the workflow's own records and plain values, and nothing else."""
    return JsonPlusSerializer(allowed_msgpack_modules=RECORDS)


def checkpoints_path(database: Path) -> Path:
    """The file of the checkpoints of the runs in that SQLite file."""
    return database.with_name(f"{database.stem}-checkpoints{database.suffix}")


class LeasedSaver(BaseCheckpointSaver[str]):
    """A saver that writes for as long as this process may. `open_saver` makes it; it has the async methods alone.

    All methods raise StoreUnavailable where the database does not answer, and StoreError where it refuses.
    """

    def __init__(
        self, saver: BaseCheckpointSaver[str], check_lease: Callable[[], None], answer_seconds: float | None
    ) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver
        self._check_lease = check_lease
        self._answer_seconds = answer_seconds

    def get_next_version(self, current: str | None, channel: None) -> str:
        """The version that follows; as of the saver within."""
        return self._saver.get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> "LeasedSaver":
        """One that reads these types back, too."""
        clone = copy(self)
        clone._saver = self._saver.with_allowlist(extra_allowlist)  # noqa: SLF001 - its own kind
        clone.serde = clone._saver.serde  # noqa: SLF001
        return clone

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """A thread's checkpoint, by default its newest."""
        async with self._answered():
            return await self._saver.aget_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - its signature
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Checkpoints, newest first."""
        async with self._answered():
            # All are read before the first is given out: the saver is locked meanwhile, and its caller may write.
            found = [one async for one in self._saver.alist(config, filter=filter, before=before, limit=limit)]
        for one in found:
            yield one

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keeps a checkpoint. Raises Fenced where this process may not write any more."""
        self._check_lease()
        async with self._answered():
            return await self._saver.aput(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keeps what a task wrote after a checkpoint. Raises Fenced where this process may not write any more."""
        self._check_lease()
        if any(channel == ERROR for channel, _ in writes):
            # What a step wrote before it failed is no result: with it, the step would count as done, without its route.
            writes = [write for write in writes if write[0] in WRITES_IDX_MAP]
        async with self._answered():
            await self._saver.aput_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Deletes all of a thread."""
        async with self._answered():
            await self._saver.adelete_thread(thread_id)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What channels were written since their last snapshot."""
        async with self._answered():
            return await self._saver.aget_delta_channel_history(config=config, channels=channels)

    @asynccontextmanager
    async def _answered(self) -> AsyncIterator[None]:
        with _explained():
            async with asyncio.timeout(self._answer_seconds):
                yield


@asynccontextmanager
async def open_saver(url: str, check_lease: Callable[[], None] = lambda: None) -> AsyncIterator[LeasedSaver]:
    """The process's saver, its tables made when they are not there.

    Args:
        url: of the runs' database, as for `open_database`.
        check_lease: called before each write; raises Fenced where this process may not write any more.

    Raises:
        StoreUnavailable: the database cannot be reached or opened.
        StoreError: it refused something, or the file is no database.
    """
    path = sqlite_path(url)
    async with contextlib.AsyncExitStack() as stack:
        opened = _sqlite_saver(checkpoints_path(path)) if path is not None else _postgres_saver(url)
        with _explained():
            saver = await stack.enter_async_context(opened)
        # SQLite has its own limit, for whoever has the file locked; its writes must not be broken off.
        yield LeasedSaver(saver, check_lease, ANSWER_SECONDS if path is None else None)


@asynccontextmanager
async def _sqlite_saver(path: Path) -> AsyncIterator[BaseCheckpointSaver[str]]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with aiosqlite.connect(path, timeout=_BUSY_SECONDS) as connection:
        saver = _WholeSqliteSaver(connection, serde=serializer())
        try:
            for pragma in SQLITE_PRAGMAS:
                await connection.execute(f"PRAGMA {pragma}")
            await saver.setup()
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{path} cannot be used: {error}") from error
        yield saver


class _WholeSqliteSaver(AsyncSqliteSaver):
    """Never leaves a transaction open, which would lock the file: a write ends though its caller is cancelled."""

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await to_its_end(self._undone_on_error(super().aput(config, checkpoint, metadata, new_versions)))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await to_its_end(self._undone_on_error(super().aput_writes(config, writes, task_id, task_path)))

    async def adelete_thread(self, thread_id: str) -> None:
        await to_its_end(self._undone_on_error(super().adelete_thread(thread_id)))

    async def _undone_on_error(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except sqlite3.Error:
            async with self.lock:
                await self.conn.rollback()
            raise


@asynccontextmanager
async def _postgres_saver(url: str) -> AsyncIterator[BaseCheckpointSaver[str]]:
    arguments = {
        "autocommit": True,
        "prepare_threshold": None,  # a pooler between us and the server may give another connection each time
        "row_factory": dict_row,
        "connect_timeout": CONNECT_SECONDS,
    }
    pool: AsyncConnectionPool[psycopg.AsyncConnection[DictRow]] = AsyncConnectionPool(
        url,
        kwargs=arguments,
        min_size=1,
        max_size=_POOL_SIZE,
        timeout=CONNECT_SECONDS,
        reconnect_timeout=_RECONNECT_SECONDS,
        check=AsyncConnectionPool.check_connection,
        open=False,
        name="checkpoints",
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(pool.close)
        await pool.open(wait=True, timeout=CONNECT_SECONDS)
        saver = AsyncPostgresSaver(pool, serde=serializer())
        # Its lock is for a single connection. Those of a pool have one user each, however many work at one time.
        saver.lock = asyncio.Semaphore(_POOL_SIZE)  # type: ignore[assignment]
        async with pool.connection() as connection, _one_at_a_time(connection):
            await saver.setup()
        yield saver


@asynccontextmanager
async def _one_at_a_time(connection: psycopg.AsyncConnection[DictRow]) -> AsyncIterator[None]:
    """Replicas that start together take turns."""
    while True:
        async with connection.transaction():
            # Asked again and again: making an index waits for all who have a statement open, also for this lock.
            found = await connection.execute(f"SELECT pg_try_advisory_xact_lock({_SETUP_LOCK}) AS mine")
            row = await found.fetchone()
            if row is not None and row["mine"]:
                yield
                return
        await asyncio.sleep(_SETUP_POLL_SECONDS)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (sqlite3.OperationalError, psycopg.OperationalError) as error:
        raise StoreUnavailable(f"the checkpoints' database does not answer: {_first_line(error)}") from error
    except TimeoutError as error:
        raise StoreUnavailable("the checkpoints' database does not answer in time") from error
    except (sqlite3.Error, psycopg.Error) as error:
        raise StoreError(f"the checkpoints' database refused a statement: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
