"""Who runs when: bounded concurrency, a bounded queue that is fair between tenants, refusals that come at once.

A job holds its place from before its cell is made until its cell is gone, also when its caller has left in between:
what is counted here as free is free. Whose turn it is, is decided in `fairness`; how a job is carried out is the
cells' part.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from sandbox_service.cells import CellKind, OutputSink
from sandbox_service.domain import NO_LEASE, Job, JobOutcome, Lease
from sandbox_service.errors import (
    CellFailure,
    DeadlineTooShort,
    QueueFull,
    SandboxError,
    ServiceDraining,
    TenantQueueFull,
)
from sandbox_service.fairness import FairQueue, Place
from sandbox_service.forecast import expected_wait

logger = logging.getLogger(__name__)

CELL_ALLOWANCE = timedelta(seconds=30)
"""Set-up and tear-down of a cell together; a job that takes this and its wall time limit is taken for stuck."""

LEAST_RETRY, MOST_RETRY = timedelta(milliseconds=100), timedelta(minutes=1)
UNKNOWN_RETRY = timedelta(seconds=1)
"""Told to a refused caller while no job has ended yet."""

EARLY_SHARE, EARLY_TIME = 0.02, timedelta(milliseconds=100)
"""A caller's own clock ends its call before the deadline has passed here, by the request's way and by what gRPC rounds
up (at most a hundredth of the time): a cancellation so close to the deadline is the deadline's."""

TENANT_SHARE = 3
"""One tenant may have so many jobs waiting for each place to wait that is still free, where no number is set: a dynamic
threshold (Choudhury and Hahne, 1998). Alone it fills three quarters of the queue; two fill three sevenths each, and
however many there are, the next tenant finds room."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What the scheduler is doing: jobs now, jobs ended since the start, and how long the recent ones held a place."""

    running: int
    waiting: int
    ended: int
    mean_duration: timedelta
    tenants_waiting: int = 0


class Observer(Protocol):
    """Hears what becomes of jobs. Nothing here may block or raise."""

    def refused(self, error: SandboxError) -> None:
        """A job that never started: no place to wait, no time left, or the service stops."""

    def started(self, job: Job, waited: timedelta) -> None:
        """A job got its place after this time."""

    def ended(self, job: Job, held: timedelta, outcome: JobOutcome | None, error: BaseException | None) -> None:
        """A job and its cell are gone after this time: with its outcome, an error, or neither where it was killed."""


class Nobody:
    """An Observer that hears nothing."""

    def refused(self, error: SandboxError) -> None:
        """Nothing."""

    def started(self, job: Job, waited: timedelta) -> None:
        """Nothing."""

    def ended(self, job: Job, held: timedelta, outcome: JobOutcome | None, error: BaseException | None) -> None:
        """Nothing."""


class Scheduler:
    """Runs jobs in cells of one kind, within its places. One event loop; no method blocks."""

    def __init__(
        self,
        cells: CellKind,
        *,
        concurrency: int,
        queue_size: int,
        tenant_running: int | None = None,
        tenant_waiting: int | None = None,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes an idle scheduler.

        Args:
            cells: started cells.
            concurrency: jobs at one time.
            queue_size: jobs that may wait.
            tenant_running: jobs of one tenant at one time; None: as many as there are places.
            tenant_waiting: jobs of one tenant that may wait; None: a share of what is free (see TENANT_SHARE).
            observer: hears what becomes of jobs.
            clock: monotonic seconds.
        """
        self._cells = cells
        self._concurrency = concurrency
        self._queue_size = queue_size
        self._tenant_running = tenant_running
        self._tenant_waiting = tenant_waiting
        self._observer = observer or Nobody()
        self._clock = clock
        self._queue: FairQueue[asyncio.Future[Place]] = FairQueue(running_limit=tenant_running, clock=clock)
        self._running: dict[asyncio.Task[JobOutcome], tuple[Job, Place]] = {}
        self._ended = 0
        self._refused = 0  # since a job last got a place to run
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    def stats(self) -> Stats:
        """What it is doing now."""
        mean = timedelta(seconds=self._queue.mean() or 0)
        return Stats(len(self._running), self._queue.waiting, self._ended, mean, self._queue.tenants_waiting)

    async def submit(
        self,
        job: Job,
        *,
        deadline: timedelta | None = None,
        patience: timedelta | None = None,
        sink: OutputSink | None = None,
        lease: Lease = NO_LEASE,
    ) -> JobOutcome:
        """Runs a job when its turn comes. Cancelling the task that awaits this kills the job, then comes out.

        Args:
            job: a checked job.
            deadline: time from now after which the job ends, wherever it is; None: without an end of its own.
            patience: refuse the job at once where its turn is not expected in this time; None: the deadline. Unlike
                the deadline it ends nothing later.
            sink: gets the output as it appears.
            lease: for whom the job is. Its tenant is the one that takes turns.

        Raises:
            ServiceDraining: the service is stopping.
            QueueFull: no place to wait.
            TenantQueueFull: no place to wait for this tenant.
            DeadlineTooShort: the deadline passed, or would before the job's turn.
            InvalidJob, CellUnavailable, CellFailure: as the cells say.
        """
        arrival = self._clock()
        place = None
        try:
            self._admit(lease.tenant, deadline if patience is None else patience)
            async with asyncio.timeout(None if deadline is None else deadline.total_seconds()):
                place = await self._turn(lease.tenant)
                self._observer.started(job, timedelta(seconds=self._clock() - arrival))
                outcome = await self._run(job, place, sink, lease)
        except TimeoutError as error:
            late = DeadlineTooShort("the caller's deadline passed")
            if place is None:
                self._observer.refused(late)
            raise late from error
        except asyncio.CancelledError:
            if place is None and self._is_late(arrival, deadline or patience):
                self._observer.refused(DeadlineTooShort("the caller's deadline passed"))
            raise
        except SandboxError as error:
            if place is None:
                self._observer.refused(error)
            raise
        waited = timedelta(seconds=self._clock() - arrival) - outcome.result.wall_time
        return replace(outcome, result=replace(outcome.result, queue_time=max(waited, timedelta())))

    def refuse_new(self) -> None:
        """Refuses jobs from now on, those that wait included; what runs goes on."""
        self._is_draining = True
        for turn in self._queue.clear():
            if not turn.done():
                turn.set_exception(ServiceDraining("the service is stopping"))

    async def drained(self) -> None:
        """Waits until no job runs."""
        await self._idle.wait()

    async def stop(self) -> None:
        """Refuses new jobs, kills those that run, and waits until their cells are gone."""
        self.refuse_new()
        for task in self._running:
            task.cancel()
        await self.drained()

    def _is_late(self, arrival: float, given: timedelta | None) -> bool:
        """Whether a caller that leaves now has waited as long as it was going to."""
        if given is None:
            return False
        return self._clock() - arrival >= given.total_seconds() * (1 - EARLY_SHARE) - EARLY_TIME.total_seconds()

    def _admit(self, tenant: str, patience: timedelta | None) -> None:
        if self._is_draining:
            raise ServiceDraining("the service is stopping")
        if patience is not None and patience <= timedelta():
            raise DeadlineTooShort("the caller's deadline has passed")
        if self._may_start(tenant):
            return
        self._check_room(tenant)
        if patience is not None and (wait := self._forecast(tenant, patience.total_seconds())) is not None:
            raise DeadlineTooShort(
                f"a turn is expected in {wait:.1f} s, after the deadline in {patience.total_seconds():.1f} s"
            )

    def _check_room(self, tenant: str) -> None:
        """Raises where there is no place to wait, for anybody or for this tenant."""
        free = self._queue_size - self._queue.waiting
        mine = self._queue.waiting_of(tenant)
        if free <= 0:
            if self._queue.at_limit(tenant) and self._free_places():
                limit = f"{self._tenant_running} running at one time"
                raise TenantQueueFull(tenant, limit, self._retry_after(tenant))
            held = len(self._queue.places)
            raise QueueFull(f"{held} jobs run and {self._queue.waiting} wait", self._retry_after(None))
        most = TENANT_SHARE * free if self._tenant_waiting is None else self._tenant_waiting
        if mine >= most:
            share = f", a share of the {self._queue_size} places" if self._tenant_waiting is None else ""
            raise TenantQueueFull(tenant, f"{mine} waiting{share}", self._retry_after(tenant))

    def _free_places(self) -> int:
        return self._concurrency - len(self._queue.places)

    def _may_start(self, tenant: str) -> bool:
        return self._free_places() > 0 and not self._queue.at_limit(tenant)

    async def _turn(self, tenant: str) -> Place:
        """Waits for a place; it is this caller's alone from the moment it is granted."""
        if self._may_start(tenant):
            self._idle.clear()
            return self._queue.begin(tenant)
        turn: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._queue.join(tenant, turn)
        try:
            return await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._queue.end(turn.result(), learn=False)  # granted in the moment the caller left
            else:
                self._queue.leave(tenant, turn)
            self._hand_on()
            raise

    async def _run(self, job: Job, place: Place, sink: OutputSink | None, lease: Lease) -> JobOutcome:
        """Runs the job in a task of its own, so that a second cancellation cannot cut its clean-up short."""
        task = asyncio.create_task(self._carry_out(job, sink, lease))
        self._running[task] = job, place
        self._refused = 0
        task.add_done_callback(self._free)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and not (caller and caller.cancelling()):  # killed from inside, by `stop` or a fault
                if self._is_draining:
                    raise ServiceDraining("the service is stopping; the job was killed") from None
                raise CellFailure("the cell gave the job up") from None
            task.cancel()
            await asyncio.wait({task})
            raise

    async def _carry_out(self, job: Job, sink: OutputSink | None, lease: Lease) -> JobOutcome:
        limit = job.limits.wall_time + CELL_ALLOWANCE
        clock = asyncio.timeout(limit.total_seconds())
        try:
            async with clock:
                return await self._cells.run(job, sink, lease=lease)
        except TimeoutError as error:
            if clock.expired():
                raise CellFailure(f"the cell was still there after {limit.total_seconds():g} s") from error
            raise CellFailure(f"a step of the cell took too long: {error or 'it did not say which'}") from error

    def _free(self, task: asyncio.Task[JobOutcome]) -> None:
        """A job and its cell are gone: its place goes to the one whose turn it is."""
        job, place = self._running.pop(task)
        held = timedelta(seconds=self._clock() - place.since)
        self._queue.end(place)
        self._ended += 1
        error = None if task.cancelled() else task.exception()  # read, since the caller may have left
        outcome = None if task.cancelled() or error is not None else task.result()
        self._observer.ended(job, held, outcome, error)
        self._hand_on()

    def _hand_on(self) -> None:
        """Gives free places to those whose turn it is."""
        while self._free_places() > 0 and (granted := self._queue.next()) is not None:
            turn, place = granted
            if turn.done():
                self._queue.end(place, learn=False)
            else:
                self._idle.clear()
                turn.set_result(place)
        if not self._queue.places:
            self._idle.set()

    def _forecast(self, tenant: str, patience: float) -> float | None:
        """Seconds until a job that came now is expected to start, where that is after its patience; else None."""
        places, limit = self._concurrency, self._tenant_running
        if self._queue.work / min(places, limit or places) <= patience:  # even behind all that there is
            return None
        lines, remaining = self._queue.lines(tenant), self._queue.remaining()
        virtual = self._queue.virtual
        wait = expected_wait(lines, remaining, newcomer=tenant, places=places, limit=limit, virtual=virtual)
        return wait if wait > patience else None

    def _retry_after(self, tenant: str | None) -> timedelta:
        """Time until the next place to wait should be free: of the queue, or of one tenant in it.

        Callers that are refused one after the other are told later and later times, so that they do not come back
        together.
        """
        mean = self._queue.mean()
        if mean is None:
            return UNKNOWN_RETRY
        step = mean / self._concurrency
        soonest = min((seconds for seconds, _ in self._queue.remaining()), default=mean)
        if tenant is not None:  # its turn comes once in a round of all tenants that wait
            soonest += step * max(self._queue.tenants_waiting - 1, 0)
        wait = timedelta(seconds=soonest + step * self._refused)
        self._refused += 1
        return min(max(wait, LEAST_RETRY), MOST_RETRY)
