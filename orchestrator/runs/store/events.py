"""The events of runs: numbered 1, 2, 3, … without a gap, in the order in which they were added.

Numbers are given in the transaction that adds the rows, under the claim of whoever works on the run.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Row, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.errors import Fenced
from orchestrator.runs.events import NewEvent, Payload, RunEvent, dump_payload, load_payload
from orchestrator.runs.store.claims import Claim, held
from orchestrator.runs.store.database import Database
from orchestrator.runs.store.schema import RUN_EVENTS, RUNS
from orchestrator.runs.store.whole import whole

PAGE = 500


class EventRows:
    """Reads and adds events."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @whole
    async def append(self, claim: Claim, events: Sequence[NewEvent], after: int | None = None) -> int:
        """Adds events of a run at work; gives back the number of the last one.

        Args:
            claim: under which they are added.
            events: what happened.
            after: number of the newest event by then; None: whatever it is. Where the run has the first of these events
                already, since the answer to an earlier call was lost, the others are added.

        Raises:
            Fenced: the claim is lost, or somebody else has added events.
            StoreUnavailable: the database does not answer.
        """
        mine = held(claim) if after is None else held(claim) & (RUNS.c.last_sequence == after)
        async with self._database.write() as connection:
            last = await _count(connection, mine, len(events))
            if last is None and after is not None:
                known = await _known(connection, claim, events, after)
                events = events[known:]
                last = await _count(connection, held(claim) & (RUNS.c.last_sequence == after + known), len(events))
            if last is None:
                raise Fenced(f"{claim.run_id} was taken over or has ended")
            await add_events(connection, claim.run_id, last - len(events) + 1, events)
            return last

    @whole
    async def read(self, run_id: str, after: int, limit: int = PAGE) -> Sequence[RunEvent]:
        """At most `limit` events with a greater number than `after`, in order."""
        columns = (RUN_EVENTS.c.sequence, RUN_EVENTS.c.time, RUN_EVENTS.c.kind, RUN_EVENTS.c.payload)
        wanted = (
            select(*columns)
            .where(RUN_EVENTS.c.run_id == run_id, RUN_EVENTS.c.sequence > after)
            .order_by(RUN_EVENTS.c.sequence)
            .limit(limit)
        )
        async with self._database.read() as connection:
            return [_event(run_id, row) for row in await connection.execute(wanted)]

    @whole
    async def of_kind(self, run_id: str, kind: str) -> Sequence[RunEvent]:
        """All events of a run whose payload is of that kind, in order."""
        columns = (RUN_EVENTS.c.sequence, RUN_EVENTS.c.time, RUN_EVENTS.c.kind, RUN_EVENTS.c.payload)
        wanted = select(*columns).where(RUN_EVENTS.c.run_id == run_id, RUN_EVENTS.c.kind == kind)
        async with self._database.read() as connection:
            return [_event(run_id, row) for row in await connection.execute(wanted.order_by(RUN_EVENTS.c.sequence))]

    @whole
    async def keys(self, run_id: str) -> frozenset[str]:
        """Keys of the events that are kept once."""
        wanted = select(RUN_EVENTS.c.event_key).where(
            RUN_EVENTS.c.run_id == run_id, RUN_EVENTS.c.event_key.is_not(None)
        )
        async with self._database.read() as connection:
            return frozenset((await connection.execute(wanted)).scalars())


async def _count(connection: AsyncConnection, mine: ColumnElement[bool], more: int) -> int | None:
    """Counts events in the run's row; gives back the number of the last one, or None where the row is not mine."""
    counted = update(RUNS).where(mine).values(last_sequence=RUNS.c.last_sequence + more)
    last: int | None = (await connection.execute(counted.returning(RUNS.c.last_sequence))).scalar_one_or_none()
    return last


async def _known(connection: AsyncConnection, claim: Claim, events: Sequence[NewEvent], after: int) -> int:
    """How many of these events the run has, from the first one on, after that number. Raises Fenced: it has others."""
    columns = (RUN_EVENTS.c.kind, RUN_EVENTS.c.payload)
    wanted = select(*columns).where(RUN_EVENTS.c.run_id == claim.run_id, RUN_EVENTS.c.sequence > after)
    found = [tuple(row) for row in await connection.execute(wanted.order_by(RUN_EVENTS.c.sequence))]
    if found != [dump_payload(event.payload) for event in events[: len(found)]]:
        raise Fenced(f"{claim.run_id} was taken over or has ended")
    return len(found)


async def add_events(connection: AsyncConnection, run_id: str, first: int, events: Sequence[NewEvent]) -> None:
    """Adds rows, numbered from `first`, in the caller's transaction, which has counted them in the run's row."""
    rows = []
    for sequence, event in enumerate(events, first):
        kind, payload = dump_payload(event.payload)
        rows.append(
            {
                "run_id": run_id,
                "sequence": sequence,
                "time": event.time,
                "event_key": event.key or None,
                "kind": kind,
                "payload": payload,
            }
        )
    if rows:
        await connection.execute(insert(RUN_EVENTS), rows)


def happened(payload: Payload, key: str = "") -> NewEvent:
    """An event of this moment."""
    return NewEvent(datetime.now(UTC), payload, key)


def _event(run_id: str, row: Row[int, datetime, str, str]) -> RunEvent:
    return RunEvent(row.sequence, row.time, run_id, load_payload(row.kind, row.payload))
