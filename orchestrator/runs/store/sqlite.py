"""Connections to SQLite that go to their thread once a statement, instead of once for each of a cursor's methods.

On a busy machine each way there and back is a wait for the processor; a transaction of three statements had twelve.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import aiosqlite


class _Cursor:
    """A cursor that has read all rows of its statement when that is done."""

    arraysize = 1

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self._rows: list[Any] = []
        self.description: Sequence[Any] | None = None
        self.rowcount = -1
        self.lastrowid: int | None = None

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, statement: str, parameters: Sequence[Any] = ()) -> "_Cursor":
        return await self._run(lambda cursor: cursor.execute(statement, parameters))

    async def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> "_Cursor":
        return await self._run(lambda cursor: cursor.executemany(statement, parameters))

    async def fetchall(self) -> Sequence[Any]:
        rows, self._rows = self._rows, []
        return rows

    async def close(self) -> None:
        """Nothing is open."""

    async def _run(self, work: Callable[[sqlite3.Cursor], object]) -> "_Cursor":
        await self._connection.in_thread(lambda connection: self._whole(connection, work))
        return self

    def _whole(self, connection: sqlite3.Connection, work: Callable[[sqlite3.Cursor], object]) -> None:
        cursor = connection.cursor()
        try:
            work(cursor)
            self._rows = cursor.fetchall() if cursor.description is not None else []
            self.description, self.rowcount, self.lastrowid = cursor.description, cursor.rowcount, cursor.lastrowid
        finally:
            cursor.close()


class _Connection(aiosqlite.Connection):
    def cursor(self) -> _Cursor:  # type: ignore[override]
        return _Cursor(self)

    async def in_thread(self, work: Callable[[sqlite3.Connection], None]) -> None:
        await self._execute(lambda: work(self._conn))  # type: ignore[no-untyped-call]


async def connect(path: Path, busy_seconds: float) -> aiosqlite.Connection:
    """A connection whose transactions its user begins, as SQLAlchemy's `async_creator` wants it."""

    def connector() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=busy_seconds, isolation_level=None)

    connection = _Connection(connector, 64)
    connection._thread.daemon = True  # noqa: SLF001 - as SQLAlchemy's own; a process may end without closing it
    return await connection
