"""This process as one of the replicas: its heartbeat, and the lease that the heartbeat gives it.

A replica whose heartbeat is stale is taken for dead, and its runs are given to others. One that could not write its
heartbeat for a while therefore stops writing anything of its runs before the others begin: clocks that run evenly are
enough for that, they need not show the same time.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.errors import Fenced, StoreError
from orchestrator.runs.store import ReplicaRows

BEAT = timedelta(seconds=2)
LEASE = timedelta(seconds=8)  # without a heartbeat for so long, a replica writes nothing any more
_LOOK = timedelta(milliseconds=500)
STALE = timedelta(seconds=12)  # and after so long it is dead to the others

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seen:
    """A process that is alive: how it signs its runs, and what it can go on with."""

    owner: str
    graph_versions: str


class Replica:
    """This process among the replicas. Start it with `running`.

    Args:
        rows: where heartbeats go.
        replica_id: the same when the process is started again, as a StatefulSet's pod name is.
        graph_versions: of the workflows that this process can go on with, as text for the others.
    """

    def __init__(self, rows: ReplicaRows, replica_id: str, graph_versions: str) -> None:
        self._rows = rows
        self._graph_versions = graph_versions
        self.replica_id = replica_id
        self.incarnation = secrets.token_hex(8)
        self._last_beat = time.monotonic()
        self._replaced = False
        self._seen: dict[str, tuple[datetime, float]] = {}  # each heartbeat, and since when it is the same
        self._last_look = self._last_beat

    @property
    def owner(self) -> str:
        """How this process signs the runs that it works on: another process of the same replica_id signs otherwise."""
        return f"{self.replica_id}/{self.incarnation}"

    @property
    def has_lease(self) -> bool:
        """Whether this process may still write for its runs."""
        return not self._replaced and time.monotonic() - self._last_beat < LEASE.total_seconds()

    def check_lease(self) -> None:
        """Raises Fenced where this process must not write for its runs any more."""
        if not self.has_lease:
            raise Fenced(f"replica {self.replica_id} could not write its heartbeat for {LEASE.total_seconds():g} s")

    @contextlib.asynccontextmanager
    async def running(self, on_loss: Callable[[], None]) -> AsyncGenerator[None]:
        """Beats for as long as the context lasts.

        Args:
            on_loss: called once each time that the lease is lost.

        Raises:
            StoreUnavailable: the first heartbeat could not be written.
        """
        await self._rows.register(self.replica_id, self.incarnation, self._graph_versions)
        self._last_beat = time.monotonic()
        tasks = [
            asyncio.create_task(self._beats(), name="heartbeat"),
            asyncio.create_task(self._losses(on_loss), name="lease"),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            with contextlib.suppress(StoreError):
                await self._rows.leave(self.replica_id, self.incarnation)

    async def others(self) -> Sequence[Seen]:
        """All that are alive, this one included. Call it regularly: a heartbeat that stays the same is stale.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        rows = await self._rows.all()
        now = time.monotonic()
        if now - self._last_look > LEASE.total_seconds():
            self._seen = {}  # the others could not write either, or this process stood still: all begin anew
        self._last_look = now
        seen: dict[str, tuple[datetime, float]] = {}
        alive = []
        for row in rows:
            owner = f"{row.replica_id}/{row.incarnation}"
            heartbeat, since = self._seen.get(owner, (None, now))
            seen[owner] = (row.heartbeat, since if heartbeat == row.heartbeat else now)
            if now - seen[owner][1] < STALE.total_seconds():
                alive.append(Seen(owner, row.graph_versions))
        self._seen = seen
        return alive

    async def _beats(self) -> None:
        before = time.monotonic()
        while True:
            # From beginning to beginning: the lease of one that hung is nearly over when it ends.
            await asyncio.sleep(before + BEAT.total_seconds() - time.monotonic())
            before = time.monotonic()
            try:
                if await self._rows.beat(self.replica_id, self.incarnation):
                    self._last_beat = before
                elif self._replaced and await self._rows.rejoin(
                    self.replica_id, self.incarnation, self._graph_versions
                ):
                    self._last_beat, self._replaced = before, False
                    logger.info("the other process is gone: this one works on runs again")
                else:
                    self._give_way()
            except StoreError:
                logger.warning("the heartbeat could not be written; it is tried again", exc_info=True)

    async def _losses(self, on_loss: Callable[[], None]) -> None:
        """Looks at the lease apart from the heartbeat, which may hang with its database."""
        had_lease = True
        while True:
            await asyncio.sleep(_LOOK.total_seconds())
            if had_lease and not self.has_lease:
                logger.error("lost the lease: the runs of this process are left to others")
                on_loss()
            had_lease = self.has_lease

    def _give_way(self) -> None:
        if not self._replaced:
            logger.error(
                "another process has the same replica id: this one stops working on runs",
                extra={"replica": self.replica_id},
            )
        self._replaced = True
