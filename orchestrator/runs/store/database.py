"""The database that runs are kept in: SQLite in one file, or Postgres by a URL, behind the same few calls.

Every write is one short transaction. SQLite has one writer at a time, so writers of this process take turns before
they ask for its lock; other processes are waited for by its busy timeout. Heartbeats have a connection of their own.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, event, insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from orchestrator.errors import StoreError, StoreUnavailable
from orchestrator.runs.store.schema import METADATA, MIGRATIONS, SCHEMA_VERSION
from orchestrator.runs.store.sqlite import connect

VERSION = len(MIGRATIONS) + 1
BUSY_SECONDS = 30.0  # how long other processes' writers are waited for
CONNECT_SECONDS = 5  # a server that does not answer is given up after that, and the caller told
ANSWER_SECONDS = 30.0  # a transaction on Postgres: one that takes longer hangs on a lost server, or on a lock
IDLE_SECONDS = 15.0  # a paused replica may hold locks within a transaction: the server ends one that hears nothing
_SHARED: Mapping[str, int] = {"pool_size": 10, "max_overflow": 10}
_RESERVED: Mapping[str, int] = {"pool_size": 1, "max_overflow": 0}
SQLITE_PRAGMAS = (
    "auto_vacuum = INCREMENTAL",  # of a new file only: what is deleted can be given back bit by bit
    "journal_mode = WAL",
    "synchronous = NORMAL",
    "foreign_keys = ON",
)
_READ_ONLY = "codemend_read_only"
_MIGRATION_LOCK = 0x636F6465  # any number of our own: replicas that start together migrate one after the other


class Database:
    """Connections to the database. `open_database` makes it."""

    def __init__(self, engine: AsyncEngine, reserved: AsyncEngine) -> None:
        self._engine = engine
        self._reserved = reserved
        self.is_sqlite = engine.dialect.name == "sqlite"
        # A single statement needs no transaction: without one, Postgres is asked once, and SQLite has nothing to end.
        self._reader = engine.execution_options(
            **({_READ_ONLY: True} if self.is_sqlite else {"isolation_level": "AUTOCOMMIT"})
        )
        # SQLite: the file, one writer of this process at a time. Whoever has the turn has a connection, so that it is
        # soon over; writers that share connections line up before they ask for one, and leave the rest to readers.
        self._turn = asyncio.Lock()
        self._line = asyncio.Lock()
        self._in_use = 0
        self._is_closed = False
        self._unused = asyncio.Event()

    @contextlib.asynccontextmanager
    async def write(self, *, reserved: bool = False) -> AsyncIterator[AsyncConnection]:
        """A transaction that is committed when its block ends, and rolled back when it raises.

        Args:
            reserved: on the one connection that is kept for what must never wait for a shared one: heartbeats.

        Raises:
            StoreUnavailable: the database does not answer, or is locked for too long.
            StoreError: it refused a statement.
            IntegrityError: a row broke a constraint, left as it is for the caller to explain.
        """
        engine = self._reserved if reserved else self._engine
        with _explained(), self._used():
            async with (
                self._bounded(),
                self._lined_up(reserved=reserved),
                engine.connect() as connection,
                self._its_turn(),
                connection.begin(),
            ):
                yield connection

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A connection to read from, each statement by itself; raises as `write`."""
        with _explained(), self._used():
            async with self._bounded(), self._reader.connect() as connection:
                yield connection

    def _lined_up(self, *, reserved: bool) -> contextlib.AbstractAsyncContextManager[object]:
        return self._line if self.is_sqlite and not reserved else contextlib.nullcontext()

    def _its_turn(self) -> contextlib.AbstractAsyncContextManager[object]:
        return self._turn if self.is_sqlite else contextlib.nullcontext()

    def _bounded(self) -> contextlib.AbstractAsyncContextManager[object]:
        return asyncio.timeout(None if self.is_sqlite else ANSWER_SECONDS)

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        if self._is_closed:  # a connection made now would never be closed
            raise StoreUnavailable("the service is stopping")
        self._in_use += 1
        try:
            yield
        finally:
            self._in_use -= 1
            self._unused.set()

    async def close(self) -> None:
        """Closes all connections, those at work once they are not; no new ones are made."""
        self._is_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BUSY_SECONDS):
                while self._in_use:
                    self._unused.clear()
                    await self._unused.wait()
        await self._engine.dispose()
        await self._reserved.dispose()


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except IntegrityError:
        raise
    except (OperationalError, InterfaceError) as error:
        raise StoreUnavailable(f"the database does not answer: {_first_line(error)}") from error
    except (NoConnectionLeft, TimeoutError) as error:
        raise StoreUnavailable("the database does not answer in time") from error
    except DBAPIError as error:
        raise StoreError(f"the database refused a statement: {_first_line(error)}") from error


def _first_line(error: DBAPIError) -> str:
    return str(error.orig).splitlines()[0] if error.orig is not None and str(error.orig) else type(error).__name__


@contextlib.asynccontextmanager
async def open_database(url: str) -> AsyncIterator[Database]:
    """The database at a URL, brought to the newest schema.

    Args:
        url: `sqlite:///PATH` or `postgresql://…`; a SQLite file and its folder are made when they are not there.

    Raises:
        StoreUnavailable: it cannot be reached or opened.
        StoreError: it has a newer schema than this service knows, or the URL is of another kind of database.
    """
    database = Database(_engine(url, _SHARED), _engine(url, _RESERVED))
    try:
        try:
            await _migrate(database)
        except (StoreError, IntegrityError) as error:
            kind = type(error) if isinstance(error, StoreError) else StoreError
            raise kind(f"{sqlite_path(url) or 'Postgres'} cannot be used: {error}") from error
        yield database
    finally:
        await database.close()


def sqlite_path(url: str) -> Path | None:
    """The file that a URL names; None: it is of another kind of database."""
    scheme, _, rest = url.partition("://")
    return Path(rest.removeprefix("/")) if scheme == "sqlite" else None


def _engine(url: str, size: Mapping[str, int]) -> AsyncEngine:
    scheme, _, rest = url.partition("://")
    if (path := sqlite_path(url)) is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        engine = create_async_engine(
            URL.create("sqlite+aiosqlite", database=str(path)),
            poolclass=AsyncAdaptedQueuePool,
            **size,
            async_creator=partial(connect, path, BUSY_SECONDS),
        )
        _prepare_sqlite(engine)
        return engine
    if scheme in {"postgresql", "postgres"}:
        # Poolers between us and the server may hand out another connection each time: no prepared statements.
        arguments = {"prepare_threshold": None, "connect_timeout": CONNECT_SECONDS, "keepalives_idle": 30}
        engine = create_async_engine(
            f"postgresql+psycopg://{rest}",
            **size,
            pool_timeout=2 * CONNECT_SECONDS,
            pool_pre_ping=True,
            connect_args=arguments,
        )
        _prepare_postgres(engine)
        return engine
    raise StoreError(f"{scheme!r} is no database that runs can be kept in; use sqlite:///PATH or postgresql://…")


def _prepare_postgres(engine: AsyncEngine) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def connected(connection: Any, record: object) -> None:  # noqa: ANN401, ARG001 - its signature
        cursor = connection.cursor()  # not as an option of the connection: poolers between refuse those
        cursor.execute(f"SET idle_in_transaction_session_timeout = {int(IDLE_SECONDS * 1000)}")
        cursor.close()
        connection.commit()


def _prepare_sqlite(engine: AsyncEngine) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def connected(connection: Any, record: object) -> None:  # noqa: ANN401, ARG001 - its signature
        cursor = connection.cursor()
        for pragma in SQLITE_PRAGMAS:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begun(connection: Connection) -> None:
        # A transaction that reads first and writes then would fail at once where another wrote in between.
        if not connection.get_execution_options().get(_READ_ONLY):
            connection.exec_driver_sql("BEGIN IMMEDIATE")


async def _migrate(database: Database) -> None:
    async with database.write() as connection:
        if not database.is_sqlite:
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
        await connection.run_sync(SCHEMA_VERSION.create, checkfirst=True)
        found = (await connection.execute(select(SCHEMA_VERSION.c.version))).scalar_one_or_none()
        if found is None:
            await connection.run_sync(METADATA.create_all)
            await connection.execute(insert(SCHEMA_VERSION).values(version=VERSION))
            return
        if found > VERSION:
            raise StoreError(f"the database has schema version {found}, and this service knows {VERSION} at most")
        for statements in MIGRATIONS[found - 1 :]:
            for statement in statements:
                await connection.execute(text(statement))
        if found < VERSION:
            await connection.execute(SCHEMA_VERSION.update().values(version=VERSION))
