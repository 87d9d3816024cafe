"""Finds runs that nobody works on as they should: those of dead replicas, those that were cancelled, and late ones.

Every replica sweeps; what two find at once, compare-and-swap gives to one of them.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

from orchestrator.errors import OrchestratorError, StoreError
from orchestrator.runs.dispatch import Dispatcher
from orchestrator.runs.events import StateChanged
from orchestrator.runs.manager import RunManager
from orchestrator.runs.records import RunRecord
from orchestrator.runs.replica import Replica, Seen
from orchestrator.runs.states import RunState
from orchestrator.runs.store import Claim, EventRows, RunRows, conditions
from orchestrator.runs.worker import Worker
from orchestrator.workflows import NodeFinished, Outcome, Stop

CANCEL_POLL = timedelta(milliseconds=250)
SWEEP = timedelta(seconds=2)
MAXIMUM_RECOVERIES = 5  # without the end of a step between them; such a run is taken for what kills its replicas
_CLAIM_TIME = timedelta(seconds=5)  # between a claim and its worker's knowing of it

logger = logging.getLogger(__name__)


class Sweeper:
    """The sweeps of this process. Start them with `running`."""

    def __init__(
        self,
        runs: RunRows,
        events: EventRows,
        manager: RunManager,
        *,
        worker: Worker,
        dispatcher: Dispatcher,
        replica: Replica,
    ) -> None:
        self._runs = runs
        self._events = events
        self._manager = manager
        self._worker = worker
        self._dispatcher = dispatcher
        self._replica = replica
        self._orphans: dict[str, tuple[int, float]] = {}  # own runs without a worker: epoch, and since when

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Sweeps for as long as the context lasts."""
        rounds = ((self._cancellations, CANCEL_POLL), (self.sweep, SWEEP))
        tasks = [asyncio.create_task(_repeat(work, every), name=work.__name__) for work, every in rounds]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _cancellations(self) -> None:
        """Ends what anybody asked for the end of, here or at another replica."""
        for record in await self._runs.select(conditions.asked_to_end()):
            reason = record.cancel_reason or "cancelled"
            if record.state is not RunState.RUNNING:
                await self._end(record, Stop(Outcome.CANCELLED, reason))
            elif record.owner == self._replica.owner:
                self._worker.cancel(record.run_id, reason)

    async def sweep(self) -> None:
        """One round over the runs of all replicas; the records are read of those alone that something is wrong with."""
        alive = await self._replica.others()
        owners = {seen.owner for seen in alive}
        for claim, owner in await self._runs.at_work():
            if owner == self._replica.owner:
                await self._recover_own(claim)
            elif owner not in owners and self._replica.has_lease:
                await self._recover(owner, claim, f"its replica {owner.partition('/')[0]} died")
        await self._end_overdue()
        if self._replica.has_lease and self._replica.owner in owners:  # else what it sees of the others is old, too
            await self._end_unserved(alive)

    async def _recover_own(self, claim: Claim) -> None:
        """A run of this process without a worker: its work broke off on a fault of the database."""
        now = asyncio.get_running_loop().time()
        if claim.run_id in self._worker.stints:
            self._orphans.pop(claim.run_id, None)
            return
        epoch, since = self._orphans.setdefault(claim.run_id, (claim.epoch, now))
        if epoch != claim.epoch:
            self._orphans[claim.run_id] = (claim.epoch, now)
        elif now - since > _CLAIM_TIME.total_seconds():
            del self._orphans[claim.run_id]
            await self._recover(self._replica.owner, claim, "its work broke off")

    async def _recover(self, owner: str, claim: Claim, why: str) -> None:
        if not await self._runs.take_from(claim.run_id, owner, claim.epoch, why):
            return
        logger.warning("a run is taken up again: %s", why, extra={"run": claim.run_id})
        taken = await self._runs.get(claim.run_id)
        if taken.recoveries > MAXIMUM_RECOVERIES and await self._vain_starts(taken) > MAXIMUM_RECOVERIES:
            times = f"{MAXIMUM_RECOVERIES} times in a row"
            text = f"it was taken up again {times}, and each time its replica died before a step ended"
            await self._end(taken, Stop(Outcome.ERROR, text))
        else:
            self._dispatcher.wake()

    async def _vain_starts(self, record: RunRecord) -> int:
        """How often it was begun since its last step ended."""
        steps = await self._events.of_kind(record.run_id, NodeFinished.__name__)
        last = max((event.sequence for event in steps), default=0)
        changes = await self._events.of_kind(record.run_id, StateChanged.__name__)
        payloads = [event.payload for event in changes if event.sequence > last]
        states = [payload.state for payload in payloads if isinstance(payload, StateChanged)]
        return states.count(RunState.RUNNING)

    async def _end_overdue(self) -> None:
        for record in await self._runs.select(conditions.overdue(datetime.now(UTC))):
            await self._end(record, Stop(Outcome.BUDGET_EXHAUSTED, "the run's time was used up in the queue"))

    async def _end_unserved(self, alive: Sequence[Seen]) -> None:
        served = {graph for seen in alive for graph in json.loads(seen.graph_versions).items()}
        for record in await self._runs.select(conditions.unserved(served)):
            made = f"version {record.graph_version} of {record.workflow!r}"
            versions = sorted({seen.graph_versions for seen in alive})
            text = f"it was begun with {made}, and no replica has that graph: they have {', '.join(versions)}"
            await self._end(record, Stop(Outcome.ERROR, text))

    async def _end(self, record: RunRecord, stop: Stop) -> None:
        """Ends a run; whatever is wrong with it keeps no other from its end."""
        try:
            await self._manager.end_idle(record, stop)
        except StoreError:
            raise
        except Exception:
            logger.exception("a run could not be ended; it is tried again", extra={"run": record.run_id})


async def _repeat(work: Callable[[], Awaitable[None]], every: timedelta) -> None:
    while True:
        try:
            await work()
        except OrchestratorError:
            logger.warning("a sweep failed; it is tried again", exc_info=True)
        except Exception:
            logger.exception("fault in a sweep; it is tried again")
        await asyncio.sleep(every.total_seconds())
