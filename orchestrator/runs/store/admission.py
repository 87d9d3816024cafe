"""Whether one more run may wait: counted in the transaction that makes it, so that no crowd overruns the queue.

Far from the bound, those that make runs do not wait for each other. Near it, one of them at a time makes a run: on
Postgres by a lock that all others share, on SQLite as any writer.
"""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, ScalarSelect, column, func, select, table, text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.errors import QueueFull
from orchestrator.runs.states import RunState
from orchestrator.runs.store.schema import RUNS

_LOCK = 0x636F6D61  # any number of our own
_RETRY = timedelta(seconds=1)
_MAKERS = (
    select(func.count())
    .select_from(table("pg_locks", column("locktype"), column("objid"), column("granted")))
    .where(column("locktype") == "advisory", column("objid") == _LOCK, column("granted"))
)
"""Transactions that make a run at this moment: each has the lock until it is committed."""


@dataclass(frozen=True, slots=True)
class QueueBound:
    """How many runs may be queued.

    Attributes:
        waiting: over all replicas, beside those that the process has free places for.
        tenant_waiting: of one tenant; zero: no limit of its own.
        owner: signature of the process that makes the run.
        places: runs at work at one time in that process.
    """

    waiting: int
    tenant_waiting: int
    owner: str
    places: int


class Crowded(Exception):  # noqa: N818 - not an error, but the wish to be asked again
    """What is made at this moment might not fit in all together; to be told, nobody else may make a run meanwhile."""


async def admit(connection: AsyncConnection, bound: QueueBound, tenant: str, *, alone: bool) -> None:
    """Lets a transaction make one more queued run.

    Args:
        connection: of the transaction, which has written nothing yet.
        bound: how many runs there may be.
        tenant: of the run.
        alone: nobody else makes a run until the transaction ends; others are waited for.

    Raises:
        QueueFull: there is no room.
        Crowded: not `alone`, and the room might not do for all that make runs now.
    """
    if connection.dialect.name == "sqlite":  # whoever writes is alone
        await check_room(connection, bound, tenant)
    elif alone:
        await connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        await check_room(connection, bound, tenant)
    else:
        await connection.execute(text(f"SELECT pg_advisory_xact_lock_shared({_LOCK})"))
        # Asked in a statement before the counting: what is committed in between is counted twice, and nothing never.
        makers = int((await connection.execute(_MAKERS)).scalar_one())
        try:
            await check_room(connection, bound, tenant, spare=makers - 1)
        except QueueFull as full:
            raise Crowded from full


async def check_room(connection: AsyncConnection, bound: QueueBound, tenant: str, *, spare: int = 0) -> None:
    """Counts the queued runs. Raises QueueFull where there is no room for one more, and for `spare` beside it."""
    is_queued = RUNS.c.state == RunState.QUEUED
    # Each by itself: every one is read from an index alone, whatever else there is.
    counts = [_count(is_queued), _count(RUNS.c.owner == bound.owner, RUNS.c.state == RunState.RUNNING)]
    if bound.tenant_waiting:
        counts.append(_count(is_queued, RUNS.c.tenant == tenant))
    queued, at_work, *of_tenant = (await connection.execute(select(*counts))).one()
    # What is at work is counted here as well: a claim that its process does not know of yet has taken its place.
    if queued + spare >= bound.waiting + max(bound.places - at_work, 0):
        raise QueueFull(f"{bound.waiting} runs wait already", _RETRY)
    if of_tenant and of_tenant[0] + spare >= bound.tenant_waiting:
        raise QueueFull(f"{bound.tenant_waiting} runs of this tenant wait already", _RETRY)


def _count(*conditions: ColumnElement[bool]) -> ScalarSelect[int]:
    return select(func.count()).select_from(RUNS).where(*conditions).scalar_subquery()
