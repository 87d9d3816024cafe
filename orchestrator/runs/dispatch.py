"""Begins waiting runs as long as this process has room: at once where it queued them itself, else within a poll."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta

from orchestrator.errors import OrchestratorError, StoreError
from orchestrator.runs.records import RunRecord
from orchestrator.runs.replica import Replica
from orchestrator.runs.store import Queue
from orchestrator.runs.worker import Worker

POLL = timedelta(milliseconds=200)  # runs that other replicas queued, or that a limit held back
_BATCH = 16  # claims in one transaction: the others that claim wait meanwhile

logger = logging.getLogger(__name__)


class Dispatcher:
    """The dispatcher of this process. Start it with `running`."""

    def __init__(
        self, queue: Queue, worker: Worker, replica: Replica, versions: Mapping[str, int], concurrency: int
    ) -> None:
        self._queue = queue
        self._worker = worker
        self._replica = replica
        self._versions = versions
        self._concurrency = concurrency
        self._work: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._refusing = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Dispatches for as long as the context lasts. Work that goes on then is cancelled: drain first."""
        task = asyncio.create_task(self._rounds(), name="dispatch")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            for work in self._work:
                work.cancel()
            if self._work:
                await asyncio.wait(self._work)

    @property
    def free(self) -> int:
        """Places for further runs."""
        return max(self._concurrency - len(self._work), 0)

    def wake(self) -> None:
        """A run was queued."""
        self._news.set()

    def refuse(self) -> None:
        """Begins nothing any more."""
        self._refusing = True

    async def idle(self) -> None:
        """Returns when no run is at work."""
        while self._work:
            await asyncio.wait(self._work)

    async def _rounds(self) -> None:
        while True:
            self._news.clear()
            try:
                while await self._begin_some():
                    pass
            except StoreError:
                logger.warning("no run could be claimed; it is tried again", exc_info=True)
            except Exception:  # whatever it is, the runs that wait must not wait for ever
                logger.exception("fault in claiming runs; it is tried again")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL.total_seconds()):
                    await self._news.wait()

    async def _begin_some(self) -> bool:
        """Claims runs and begins them; whether there may be more."""
        room = min(self.free, _BATCH)
        if not room or self._refusing or not self._replica.has_lease:
            return False
        claimed = await self._queue.claim(self._replica.owner, self._versions, room)
        for record in claimed:
            task = asyncio.create_task(self._carry_out(record), name=f"work on {record.run_id}")
            self._work.add(task)
            task.add_done_callback(self._ended)
        return len(claimed) == room

    async def _carry_out(self, record: RunRecord) -> None:
        try:
            await self._worker.carry_out(record)
        except OrchestratorError:
            logger.warning(
                "a run could not be carried on; a sweep takes it up", exc_info=True, extra={"run": record.run_id}
            )

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        self._news.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("fault in the work on a run; a sweep takes it up", exc_info=error)
