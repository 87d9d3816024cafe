"""The rows of tapes: what each step of a run took from outside, written before the step goes on."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, insert, literal, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.errors import Fenced, StoreError
from orchestrator.runs.store.claims import Claim, held
from orchestrator.runs.store.database import Database
from orchestrator.runs.store.schema import RUNS, TAPE
from orchestrator.runs.store.whole import whole

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class TapeEntry:
    """One answer from outside.

    Attributes:
        step_id: of the graph's step that took it.
        name: what it is within the run, as "generate/1/model".
        kind: "model", "sandbox" or "limit".
        request_digest: SHA-256 of the request, hex.
        request: the request as JSON.
        response: the answer as JSON.
        elapsed: how long it took, live.
    """

    step_id: str
    name: str
    kind: str
    request_digest: str
    request: str
    response: str
    elapsed: timedelta


class TapeRows:
    """Reads and adds entries. All methods raise StoreUnavailable where the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @whole
    async def add(self, claim: Claim, entry: TapeEntry) -> None:
        """Adds an entry at the end. Raises Fenced where the claim is lost, StoreError where the step has it."""
        place = select(func.coalesce(func.max(TAPE.c.position), 0) + 1).where(TAPE.c.run_id == claim.run_id)
        row = _row(claim.run_id, 0, entry)
        values: list[ColumnElement[Any]] = [literal(value, TAPE.c[name].type) for name, value in row.items()]
        values[list(row).index("position")] = place.scalar_subquery()
        mine = select(RUNS.c.run_id).where(held(claim))
        added = insert(TAPE).from_select(list(row), select(*values).where(mine.exists())).returning(TAPE.c.position)
        try:
            async with self._database.write() as connection:
                if not self._database.is_sqlite:  # steps side by side, and whoever takes the run over, wait for this
                    await connection.execute(mine.with_for_update())
                if (await connection.execute(added)).one_or_none() is None:
                    raise Fenced(f"{claim.run_id} was taken over or has ended")
        except IntegrityError as error:
            raise StoreError(
                f"{entry.name} of step {entry.step_id} is on the tape of {claim.run_id} already"
            ) from error

    @whole
    async def read(self, run_id: str) -> Sequence[TapeEntry]:
        """All entries of a run, in the order in which they were taken."""
        query = select(TAPE).where(TAPE.c.run_id == run_id).order_by(TAPE.c.position)
        async with self._database.read() as connection:
            return [
                TapeEntry(
                    step_id=row.step_id,
                    name=row.name,
                    kind=row.kind,
                    request_digest=row.request_digest,
                    request=row.request,
                    response=row.response,
                    elapsed=row.elapsed_us * _MICROSECOND,
                )
                for row in await connection.execute(query)
            ]


async def begin_tape(connection: AsyncConnection, run_id: str, entries: Sequence[TapeEntry]) -> None:
    """Writes the tape that a run begins with, in the transaction that makes the run: a fork's is its origin's."""
    rows = [_row(run_id, position, entry) for position, entry in enumerate(entries, 1)]
    if rows:
        await connection.execute(insert(TAPE), rows)


def _row(run_id: str, position: int, entry: TapeEntry) -> dict[str, object]:
    return {
        "run_id": run_id,
        "position": position,
        "step_id": entry.step_id,
        "name": entry.name,
        "kind": entry.kind,
        "request_digest": entry.request_digest,
        "request": entry.request,
        "response": entry.response,
        "elapsed_us": entry.elapsed // _MICROSECOND,
    }
