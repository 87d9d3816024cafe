"""The face of runs to whoever asks for them: made once per request, watched, waited for, cancelled, resumed, drained.

It holds no run itself: the database does. Who works on a run is the dispatcher's and the worker's business, and a run
that nobody works on any more is found by the sweeper.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from orchestrator.errors import QueueFull, ServiceDraining
from orchestrator.runs.dispatch import Dispatcher
from orchestrator.runs.engine import Engine
from orchestrator.runs.events import NewEvent, RunEvent
from orchestrator.runs.identity import digest, new_run_id
from orchestrator.runs.records import Breakpoints, NewRun, Origin, Resume, RunFilter, RunRecord, Wait
from orchestrator.runs.states import TERMINAL, RunState
from orchestrator.runs.store import RunRows
from orchestrator.runs.watching import Watching
from orchestrator.runs.worker import Worker
from orchestrator.workflows import WORKFLOWS, Outcome, RunSpec, Stop

_RETRY = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Policy:
    """How many runs at one time.

    Attributes:
        concurrency: runs at work at one time in this process.
        queue_size: runs that may wait, over all replicas; the next one is refused.
        tenant_queue_size: runs of one tenant that may wait; zero: no limit of its own.
    """

    concurrency: int = 32
    queue_size: int = 1000
    tenant_queue_size: int = 0


class RunManager:
    """All runs, of this process and of others."""

    def __init__(
        self,
        *,
        runs: RunRows,
        watching: Watching,
        engine: Engine,
        worker: Worker,
        dispatcher: Dispatcher,
        policy: Policy,
    ) -> None:
        self._runs = runs
        self._watching = watching
        self._engine = engine
        self._worker = worker
        self._dispatcher = dispatcher
        self._policy = policy
        self._draining = False

    async def create(
        self,
        spec: RunSpec,
        request_id: str = "",
        *,
        run_id: str = "",
        origin: Origin | None = None,
        wait: Wait | None = None,
    ) -> RunRecord:
        """Makes a run, or finds the one that this request_id made.

        Args:
            spec: what it is made from.
            request_id: the caller's; may be empty.
            run_id: its id, where something of it was made before; empty: a new one.
            origin: where it comes from.
            wait: what it waits for from the beginning; None: it is queued.

        Raises:
            RequestIdTaken: the request_id made a run from another request.
            QueueFull: too many runs wait.
            ServiceDraining: the service is stopping.
            StoreUnavailable: the database does not answer.
        """
        known = bool(request_id) and await self.has_made(spec.tenant, request_id)
        if not known:
            await self._refuse_when_full(spec.tenant)
        now = datetime.now(UTC)
        new = NewRun(
            run_id=run_id or new_run_id(now),
            request_id=request_id,
            spec=spec,
            digest=digest(spec),
            graph_version=WORKFLOWS[spec.workflow].version,
            create_time=now,
            breakpoints=Breakpoints(spec.options.interrupt_before, spec.options.interrupt_after),
            origin=origin,
            wait=wait,
        )
        record, made = await self._runs.create(new)
        if made and record.state is RunState.QUEUED:
            self._dispatcher.wake()
        return record

    async def has_made(self, tenant: str, request_id: str) -> bool:
        """Whether there is a run of this request_id."""
        return bool(request_id) and bool(await self._runs.find_request(tenant, request_id))

    async def _refuse_when_full(self, tenant: str) -> None:
        if self._draining:
            raise ServiceDraining("the service is stopping and takes no new runs")
        if await self._runs.count({RunState.QUEUED}) >= self._policy.queue_size + self._dispatcher.free:
            raise QueueFull(f"{self._policy.queue_size} runs wait already", _RETRY)
        most = self._policy.tenant_queue_size
        if most and await self._runs.count({RunState.QUEUED}, tenant=tenant) >= most:
            raise QueueFull(f"{most} runs of this tenant wait already", _RETRY)

    async def get(self, run_id: str) -> RunRecord:
        """The run with this id. Raises RunNotFound."""
        return await self._runs.get(run_id)

    async def list(self, wanted: RunFilter) -> Sequence[RunRecord]:
        """A page of a tenant's runs, newest first."""
        return await self._runs.list(wanted)

    def watch(self, run_id: str, after: int, *, heartbeat: timedelta) -> AsyncGenerator[RunEvent | None]:
        """A run's events, see `Watching.watch`."""
        return self._watching.watch(run_id, after, heartbeat=heartbeat)

    async def wait_until(self, run_id: str, states: frozenset[RunState] = TERMINAL) -> RunRecord:
        """The run, once it is in one of the states, whoever works on it. Raises RunNotFound."""
        return await self._watching.until(run_id, states)

    async def request_cancel(self, run_id: str, reason: str) -> RunRecord:
        """Begins to end a run, and does not wait for it. A run that has ended is left as it is. Raises RunNotFound."""
        record = await self._runs.request_cancel(run_id, reason)
        if record.state is RunState.RUNNING:
            self._worker.cancel(run_id, record.cancel_reason or reason)  # where it is another's, its owner looks itself
        elif not record.has_ended:
            await self.end_idle(record, Stop(Outcome.CANCELLED, record.cancel_reason or "cancelled"))
        return record

    async def cancel(self, run_id: str, reason: str) -> RunRecord:
        """Ends a run; returns when its model call and its sandbox job are cancelled. Raises RunNotFound."""
        await self.request_cancel(run_id, reason)
        return await self.wait_until(run_id)

    async def end_idle(self, record: RunRecord, stop: Stop) -> bool:
        """Ends a run that nobody works on, with its best attempt; False where it has moved on since."""
        result = await self._engine.early_result(record, stop)
        if ended := await self._runs.finish_idle(record, result):
            self._engine.observer.ended(record, result)
        self._watching.wake(record.run_id)
        return ended

    async def resume(
        self, record: RunRecord, resume: Resume, breakpoints: Breakpoints | None = None
    ) -> RunRecord | None:
        """Queues a WAITING run again; None where it has moved on since `record` was read."""
        resumed = await self._runs.resume(record, resume, breakpoints)
        if resumed is not None:
            self._watching.wake(record.run_id)
            self._dispatcher.wake()
        return resumed

    async def edited(self, record: RunRecord, wait: Wait, event: NewEvent) -> RunRecord | None:
        """Lets a WAITING run stand at the checkpoint that an edit made; None where it has moved on since."""
        edited = await self._runs.edited(record, wait, event)
        self._watching.wake(record.run_id)
        return edited

    def refuse(self) -> None:
        """Takes no new runs and begins no waiting ones; those at work stop at their next step."""
        self._draining = True
        self._dispatcher.refuse()
        self._worker.request_drain()

    async def drain(self, grace: timedelta) -> None:
        """Waits `grace` for runs to reach their next step, then breaks them off; all go on when a service is back."""
        self.refuse()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace.total_seconds()):
                await self._dispatcher.idle()
        self._worker.give_up_all()
        await self._dispatcher.idle()
