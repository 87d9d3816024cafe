"""The face of runs to whoever asks for them: made once per request, watched, waited for, cancelled, resumed, drained.

It holds no run itself: the database does. Who works on a run is the dispatcher's and the worker's business, and a run
that nobody works on any more is found by the sweeper.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from orchestrator.errors import QueueFull, ServiceDraining
from orchestrator.runs.dispatch import Dispatcher
from orchestrator.runs.engine import Engine
from orchestrator.runs.events import NewEvent, RunEvent
from orchestrator.runs.identity import digest, new_run_id
from orchestrator.runs.records import Breakpoints, NewRun, Origin, Resume, RunFilter, RunRecord, Wait
from orchestrator.runs.states import TERMINAL, RunState
from orchestrator.runs.store import QueueBound, RunRows, TapeEntry
from orchestrator.runs.watching import Watching
from orchestrator.runs.worker import Worker
from orchestrator.workflows import WORKFLOWS, Outcome, RunSpec, Stop


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


def new_run(spec: RunSpec, request_id: str = "") -> NewRun:
    """A run to be made of a request by today's graph; with its breakpoints, and queued."""
    now = datetime.now(UTC)
    return NewRun(
        run_id=new_run_id(now),
        request_id=request_id,
        spec=spec,
        digest=digest(spec),
        graph_version=WORKFLOWS[spec.workflow].version,
        create_time=now,
        breakpoints=Breakpoints(spec.options.interrupt_before, spec.options.interrupt_after),
    )


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
        owner: str,
    ) -> None:
        """Makes the manager; `owner` is how this process signs the runs that it works on."""
        self._runs = runs
        self._watching = watching
        self._engine = engine
        self._worker = worker
        self._dispatcher = dispatcher
        self._policy = policy
        self._owner = owner
        self._draining = False

    async def create(self, spec: RunSpec, request_id: str = "", *, origin: Origin | None = None) -> RunRecord:
        """Makes a run, or finds the one that this request_id made. Raises as `make`."""
        return await self.make(replace(new_run(spec, request_id), origin=origin))

    async def make(self, new: NewRun, *, tape: Sequence[TapeEntry] = (), told: Sequence[NewEvent] = ()) -> RunRecord:
        """Makes a run, or finds the one that its request_id made.

        Args:
            new: the run.
            tape: what it has taken before it begins, see `RunRows.create`.
            told: events of how it was made.

        Raises:
            RequestIdTaken: the request_id made a run from another request.
            QueueFull: too many runs wait.
            ServiceDraining: the service is stopping.
            StoreUnavailable: the database does not answer.
        """
        bound = QueueBound(
            self._policy.queue_size, self._policy.tenant_queue_size, self._owner, self._policy.concurrency
        )
        try:
            if not await self.has_made(new.spec.tenant, new.request_id):
                await self._refuse(bound, new.spec.tenant)
            record, made = await self._runs.create(new, tape=tape, told=told, bound=bound)
        except QueueFull:
            if (known := await self._runs.known(new)) is not None:  # made by a call at the same time, in the last place
                return known
            raise
        if made and record.state is RunState.QUEUED:
            self._dispatcher.wake()
        return record

    async def known(self, new: NewRun) -> RunRecord | None:
        """The run that this request_id made before. Raises RequestIdTaken where it was made from another request."""
        return await self._runs.known(new)

    async def has_made(self, tenant: str, request_id: str) -> bool:
        """Whether there is a run of this request_id."""
        return bool(request_id) and bool(await self._runs.find_request(tenant, request_id))

    async def _refuse(self, bound: QueueBound, tenant: str) -> None:
        """Refuses at once what would be refused in the end, so that a crowd costs the others no turn of writing."""
        if self._draining:
            raise ServiceDraining("the service is stopping and takes no new runs")
        await self._runs.check_room(bound, tenant)

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
