"""The artifact store in the database, for replicas that share no folder: one row an artifact, named by its SHA-256."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert as upsert

from orchestrator.errors import ArtifactMissing, ArtifactTooLarge
from orchestrator.runs.store.database import Database
from orchestrator.runs.store.schema import ARTIFACTS
from orchestrator.runs.store.whole import whole

MAXIMUM_BYTES = 64 * 1024 * 1024
_BATCH = 500  # deleted in one transaction


class ArtifactRows:
    """Artifacts in Postgres. All methods raise StoreUnavailable where the database does not answer."""

    def __init__(self, database: Database, *, maximum_bytes: int = MAXIMUM_BYTES) -> None:
        self._database = database
        self._maximum_bytes = maximum_bytes

    @whole
    async def put(self, content: bytes) -> str:
        """Keeps the bytes and gives back their name. Raises ArtifactTooLarge."""
        if len(content) > self._maximum_bytes:
            raise ArtifactTooLarge(f"an artifact of {len(content)} bytes is over the limit of {self._maximum_bytes}")
        name = hashlib.sha256(content).hexdigest()
        row = {"name": name, "content": content, "kept_time": datetime.now(UTC)}
        again = upsert(ARTIFACTS).values(row)
        again = again.on_conflict_do_update(index_elements=["name"], set_={"kept_time": again.excluded.kept_time})
        async with self._database.write() as connection:
            await connection.execute(again)
        return name

    @whole
    async def get(self, name: str) -> bytes:
        """The bytes of that name. Raises ArtifactMissing where they are not there, or are not what the name says."""
        query = select(ARTIFACTS.c.content).where(ARTIFACTS.c.name == name)
        async with self._database.read() as connection:
            content = (await connection.execute(query)).scalar_one_or_none()
        if content is None or hashlib.sha256(content).hexdigest() != name:
            raise ArtifactMissing(f"artifact {name[:80]} is missing or damaged")
        return bytes(content)

    @whole
    async def measure(self, age: timedelta, needed: frozenset[str] = frozenset()) -> tuple[int, int]:
        """How many there are that `prune` would delete, and how many bytes they have."""
        size = func.length(ARTIFACTS.c.content).label("size")
        query = select(ARTIFACTS.c.name, size).where(ARTIFACTS.c.kept_time < datetime.now(UTC) - age)
        async with self._database.read() as connection:
            sizes = [row.size for row in await connection.execute(query) if row.name not in needed]
        return len(sizes), sum(sizes)

    async def prune(self, age: timedelta, needed: frozenset[str] = frozenset()) -> int:
        """Deletes what nobody kept or kept again for that long, but for these; gives back how many there were."""
        before = datetime.now(UTC) - age
        names = [name for name in await self._older(before) if name not in needed]
        pieces = [names[start : start + _BATCH] for start in range(0, len(names), _BATCH)]
        return sum([await self._delete_older(before, piece) for piece in pieces])

    @whole
    async def _older(self, before: datetime) -> Sequence[str]:
        async with self._database.read() as connection:
            found = await connection.execute(select(ARTIFACTS.c.name).where(ARTIFACTS.c.kept_time < before))
            return found.scalars().all()

    @whole
    async def _delete_older(self, before: datetime, names: Sequence[str]) -> int:
        still = ARTIFACTS.c.name.in_(names) & (ARTIFACTS.c.kept_time < before)  # none that was kept again meanwhile
        async with self._database.write() as connection:
            return (await connection.execute(delete(ARTIFACTS).where(still))).rowcount

    def close(self) -> None:
        """Nothing to wait for: the database is closed by whoever opened it."""
