"""Which waiting run is begun next: by the limits of all replicas together, in turn between tenants.

Choosing and claiming are one transaction, and one replica at a time does it, so that no limit is overrun however many
replicas claim at once (a lock a row does not give that: what two transactions count, neither has changed yet).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Row, func, select, text, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.errors import RunNotFound
from orchestrator.runs.records import RunRecord
from orchestrator.runs.states import RunState
from orchestrator.runs.store.database import Database
from orchestrator.runs.store.runs import claim_row
from orchestrator.runs.store.schema import RUNS
from orchestrator.runs.store.whole import whole

RATE_PERIOD = timedelta(minutes=1)
_CLAIM_LOCK = 0x636F6D71  # any number of our own


@dataclass(frozen=True, slots=True)
class Limits:
    """How many runs at one time, and how many may begin; zero: no such limit.

    Attributes:
        running: at work at one time, over all replicas.
        tenant_running: of one tenant at work at one time, over all replicas.
        tenant_starts: of one tenant begun for the first time within any `RATE_PERIOD`.
    """

    running: int = 0
    tenant_running: int = 0
    tenant_starts: int = 0


class Queue:
    """The waiting runs. All methods raise StoreUnavailable where the database does not answer."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self._database = database
        self._limits = limits

    @whole
    async def claim(self, owner: str, versions: Mapping[str, int], most: int) -> Sequence[RunRecord]:
        """Claims at most that many waiting runs for a replica.

        Of tenants with a waiting run, the one with the fewest runs at work is served first, then the one that was
        served longest ago; of one tenant's runs, the one with the lowest priority number, then the oldest.

        Args:
            owner: signature of the replica.
            versions: of the workflows that it can carry out, by their name.
            most: how many it has room for.
        """
        async with self._database.write() as connection:
            if not self._database.is_sqlite:
                await connection.execute(text(f"SELECT pg_advisory_xact_lock({_CLAIM_LOCK})"))
            claimed: list[RunRecord] = []
            tenants = await self._tenants(connection)
            room = most if not self._limits.running else min(most, self._limits.running - sum(t.busy for t in tenants))
            while len(claimed) < room and (turn := self._next(tenants)) is not None:
                head = await self._head(connection, turn.name, versions)
                if head is None:
                    turn.waiting = 0
                    continue
                try:
                    claimed.append(await claim_row(connection, head.run_id, owner))
                except RunNotFound:  # it was ended at this moment; whoever ends runs takes no turn in the queue
                    turn.waiting -= 1
                else:
                    turn.served(first=head.start_time is None)
            return claimed

    def _next(self, tenants: Sequence["_Tenant"]) -> "_Tenant | None":
        limits = self._limits
        able = [
            tenant
            for tenant in tenants
            if tenant.waiting
            and not (limits.tenant_running and tenant.busy >= limits.tenant_running)
            and not (limits.tenant_starts and tenant.starts >= limits.tenant_starts)
        ]
        return min(able, key=lambda tenant: (tenant.busy, tenant.last), default=None)

    async def _tenants(self, connection: AsyncConnection) -> Sequence["_Tenant"]:
        """All tenants that have a run waiting or at work."""
        tenants: dict[str, _Tenant] = {}
        counted = (
            select(RUNS.c.tenant, RUNS.c.state, func.count().label("runs"))
            .where(RUNS.c.state.in_([RunState.QUEUED, RunState.RUNNING]))
            .group_by(RUNS.c.tenant, RUNS.c.state)
        )
        for row in await connection.execute(counted):
            tenant = tenants.setdefault(row.tenant, _Tenant(row.tenant))
            if row.state == RunState.QUEUED:
                tenant.waiting = row.runs
            else:
                tenant.busy = row.runs
        recent = (
            select(RUNS.c.tenant, func.count().label("starts"), func.max(RUNS.c.start_time).label("last"))
            .where(RUNS.c.start_time > datetime.now(UTC) - RATE_PERIOD)
            .group_by(RUNS.c.tenant)
        )
        for row in await connection.execute(recent):
            if row.tenant in tenants:
                tenants[row.tenant].starts, tenants[row.tenant].last = row.starts, row.last
        return list(tenants.values())

    async def _head(
        self, connection: AsyncConnection, tenant: str, versions: Mapping[str, int]
    ) -> Row[str, datetime | None] | None:
        query = (
            select(RUNS.c.run_id, RUNS.c.start_time)
            .where(
                RUNS.c.state == RunState.QUEUED,
                RUNS.c.tenant == tenant,
                RUNS.c.cancel_reason.is_(None),
                tuple_(RUNS.c.workflow, RUNS.c.graph_version).in_(list(versions.items())),
            )
            .order_by(RUNS.c.priority, RUNS.c.create_time, RUNS.c.run_id)
            .limit(1)
        )
        return (await connection.execute(query)).one_or_none()


_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class _Tenant:
    name: str
    waiting: int = 0
    busy: int = 0
    starts: int = 0
    last: datetime = _NEVER

    def served(self, *, first: bool) -> None:
        self.waiting -= 1
        self.busy += 1
        self.starts += first
        self.last = datetime.now(UTC)
