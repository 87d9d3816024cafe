"""The artifact store in the database, for replicas that share no folder: one row an artifact, named by its SHA-256."""

import hashlib
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert as upsert

from orchestrator.errors import ArtifactMissing, ArtifactTooLarge
from orchestrator.runs.store.database import Database
from orchestrator.runs.store.schema import ARTIFACTS
from orchestrator.runs.store.whole import whole

MAXIMUM_BYTES = 64 * 1024 * 1024


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
    async def measure(self, age: timedelta) -> tuple[int, int]:
        """How many there are that nobody kept or kept again for that long, and how many bytes they have."""
        size = func.coalesce(func.sum(func.length(ARTIFACTS.c.content)), 0)
        query = select(func.count(), size).where(ARTIFACTS.c.kept_time < datetime.now(UTC) - age)
        async with self._database.read() as connection:
            count, total = (await connection.execute(query)).one()
        return int(count), int(total)

    @whole
    async def prune(self, age: timedelta) -> int:
        """Deletes what nobody kept or kept again for that long; gives back how many there were."""
        old = delete(ARTIFACTS).where(ARTIFACTS.c.kept_time < datetime.now(UTC) - age)
        async with self._database.write() as connection:
            return (await connection.execute(old)).rowcount

    def close(self) -> None:
        """Nothing to wait for: the database is closed by whoever opened it."""
