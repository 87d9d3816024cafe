"""The rows of replicas: who serves runs, and when each last said so."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import delete, insert, select, update

from orchestrator.runs.store.database import Database
from orchestrator.runs.store.schema import REPLICAS
from orchestrator.runs.store.whole import whole


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica. `incarnation` is of its process: one that was started again is another."""

    replica_id: str
    incarnation: str
    heartbeat: datetime
    graph_versions: str


class ReplicaRows:
    """Reads and writes heartbeats. All methods raise StoreUnavailable where the database does not answer.

    A replica's own are written on the reserved connection: those at work on runs may have all the others.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @whole
    async def register(self, replica_id: str, incarnation: str, graph_versions: str) -> None:
        """Says that this incarnation is the replica from now on."""
        values = {"incarnation": incarnation, "heartbeat": datetime.now(UTC), "graph_versions": graph_versions}
        async with self._database.write(reserved=True) as connection:
            known = update(REPLICAS).where(REPLICAS.c.replica_id == replica_id).values(values)
            if (await connection.execute(known)).rowcount == 0:
                await connection.execute(insert(REPLICAS).values(replica_id=replica_id, **values))

    @whole
    async def beat(self, replica_id: str, incarnation: str) -> bool:
        """Says that the replica is alive; False where another incarnation has taken its name."""
        mine = (REPLICAS.c.replica_id == replica_id) & (REPLICAS.c.incarnation == incarnation)
        async with self._database.write(reserved=True) as connection:
            beaten = update(REPLICAS).where(mine).values(heartbeat=datetime.now(UTC))
            return (await connection.execute(beaten)).rowcount == 1

    @whole
    async def rejoin(self, replica_id: str, incarnation: str, graph_versions: str) -> bool:
        """Takes the name again, where the one that had taken it is gone; whether it is."""
        values = {"incarnation": incarnation, "heartbeat": datetime.now(UTC), "graph_versions": graph_versions}
        async with self._database.write(reserved=True) as connection:
            taken = select(REPLICAS.c.incarnation).where(REPLICAS.c.replica_id == replica_id)
            if (await connection.execute(taken)).first() is not None:
                return False
            await connection.execute(insert(REPLICAS).values(replica_id=replica_id, **values))
            return True

    @whole
    async def leave(self, replica_id: str, incarnation: str) -> None:
        """Says that this incarnation is gone."""
        mine = (REPLICAS.c.replica_id == replica_id) & (REPLICAS.c.incarnation == incarnation)
        async with self._database.write(reserved=True) as connection:
            await connection.execute(delete(REPLICAS).where(mine))

    @whole
    async def all(self) -> Sequence[Replica]:
        """All replicas that have not left."""
        async with self._database.read() as connection:
            rows = await connection.execute(select(REPLICAS))
            return [Replica(row.replica_id, row.incarnation, row.heartbeat, row.graph_versions) for row in rows]

    @whole
    async def forget(self, before: datetime) -> None:
        """Deletes those that have not beaten since, dead ones that never left. One that still lives joins again."""
        async with self._database.write() as connection:
            await connection.execute(delete(REPLICAS).where(REPLICAS.c.heartbeat < before))
