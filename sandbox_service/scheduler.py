"""Who runs when: bounded concurrency, a bounded first-in-first-out queue, and refusals that come at once and say why.

A job holds its place from before its cell is made until its cell is gone, also when its caller has left in between:
what is counted here as free is free. How a job is carried out is the cells' part.
"""

import asyncio
import heapq
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from sandbox_service.cells import CellKind, OutputSink
from sandbox_service.domain import Job, JobOutcome
from sandbox_service.errors import CellFailure, DeadlineTooShort, QueueFull, ServiceDraining

logger = logging.getLogger(__name__)

CELL_ALLOWANCE = timedelta(seconds=30)
"""Set-up and tear-down of a cell together; a job that takes this and its wall time limit is taken for stuck."""

REMEMBERED_JOBS = 64
"""Jobs whose mean duration stands for the next one's."""

LEAST_RETRY = timedelta(milliseconds=100)
UNKNOWN_RETRY = timedelta(seconds=1)
"""Told to a refused caller while no job has ended yet."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What the scheduler is doing: jobs now, jobs ended since the start, and how long the recent ones held a place."""

    running: int
    waiting: int
    ended: int
    mean_duration: timedelta


class Scheduler:
    """Runs jobs in cells of one kind, within its places. One event loop; no method blocks."""

    def __init__(
        self, cells: CellKind, *, concurrency: int, queue_size: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Makes an idle scheduler.

        Args:
            cells: started cells.
            concurrency: jobs at one time.
            queue_size: jobs that may wait.
            clock: monotonic seconds.
        """
        self._cells = cells
        self._concurrency = concurrency
        self._queue_size = queue_size
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._running: dict[asyncio.Task[JobOutcome], float] = {}  # with the time of its start
        self._granted = 0  # places given to waiters that have not taken them yet
        self._durations: deque[float] = deque(maxlen=REMEMBERED_JOBS)
        self._ended = 0
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    def stats(self) -> Stats:
        """What it is doing now."""
        mean = timedelta(seconds=self._mean() or 0)
        return Stats(len(self._running), len(self._waiting), self._ended, mean)

    async def submit(
        self, job: Job, *, deadline: timedelta | None = None, sink: OutputSink | None = None
    ) -> JobOutcome:
        """Runs a job when its turn comes. Cancelling the task that awaits this kills the job, then comes out.

        Args:
            job: a checked job.
            deadline: time from now that the caller will wait; None: without an end of its own.
            sink: gets the output as it appears.

        Raises:
            ServiceDraining: the service is stopping.
            QueueFull: no place to wait.
            DeadlineTooShort: the deadline passed, or would before the job's turn.
            InvalidJob, CellUnavailable, CellFailure: as the cells say.
        """
        arrival = self._clock()
        self._admit(deadline)
        try:
            async with asyncio.timeout(None if deadline is None else deadline.total_seconds()):
                await self._turn()
                outcome = await self._run(job, sink)
        except TimeoutError as error:
            raise DeadlineTooShort("the caller's deadline passed") from error
        waited = timedelta(seconds=self._clock() - arrival) - outcome.result.wall_time
        return replace(outcome, result=replace(outcome.result, queue_time=max(waited, timedelta())))

    def refuse_new(self) -> None:
        """Refuses jobs from now on, those that wait included; what runs goes on."""
        self._is_draining = True
        while self._waiting:
            turn = self._waiting.popleft()
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

    def _admit(self, deadline: timedelta | None) -> None:
        if self._is_draining:
            raise ServiceDraining("the service is stopping")
        if deadline is not None and deadline <= timedelta():
            raise DeadlineTooShort("the caller's deadline has passed")
        if self._free_places():
            return
        if len(self._waiting) >= self._queue_size:
            raise QueueFull(f"{self._concurrency} jobs run and {self._queue_size} wait", self._retry_after())
        if deadline is not None and (wait := self._expected_wait()) > deadline.total_seconds():
            raise DeadlineTooShort(
                f"a turn is expected in {wait:.1f} s, after the deadline in {deadline.total_seconds():.1f} s"
            )

    def _free_places(self) -> int:
        return self._concurrency - len(self._running) - self._granted

    async def _turn(self) -> None:
        """Waits for a place; it is granted to this caller alone and counted until `_run` takes it."""
        if self._free_places():
            self._granted += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._granted -= 1  # granted in the moment the caller left
                self._hand_on()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    async def _run(self, job: Job, sink: OutputSink | None) -> JobOutcome:
        """Runs the job in a task of its own, so that a second cancellation cannot cut its clean-up short."""
        task = asyncio.create_task(self._carry_out(job, sink))
        self._granted -= 1
        self._running[task] = self._clock()
        self._idle.clear()
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

    async def _carry_out(self, job: Job, sink: OutputSink | None) -> JobOutcome:
        limit = job.limits.wall_time + CELL_ALLOWANCE
        try:
            async with asyncio.timeout(limit.total_seconds()):
                return await self._cells.run(job, sink)
        except TimeoutError as error:
            raise CellFailure(f"the cell was still there after {limit.total_seconds():g} s") from error

    def _free(self, task: asyncio.Task[JobOutcome]) -> None:
        """A job and its cell are gone: its place goes to the first who waits."""
        self._durations.append(self._clock() - self._running.pop(task))
        self._ended += 1
        if not task.cancelled():
            task.exception()  # read here, since the caller may have left
        self._hand_on()

    def _hand_on(self) -> None:
        """Gives free places to those who wait longest."""
        while self._waiting and self._free_places():
            turn = self._waiting.popleft()
            if not turn.done():
                self._granted += 1
                turn.set_result(None)
        if not self._running and not self._granted:
            self._idle.set()

    def _mean(self) -> float | None:
        return sum(self._durations) / len(self._durations) if self._durations else None

    def _expected_wait(self) -> float:
        """Seconds until a job that came now would start, if all took the recent mean. Zero while nothing is known."""
        mean = self._mean()
        if mean is None:
            return 0.0
        places = [*self._remaining(mean), *[0.0] * max(self._free_places(), 0)]
        heapq.heapify(places)
        for _ in self._waiting:
            heapq.heapreplace(places, places[0] + mean)
        return places[0] if places else mean

    def _retry_after(self) -> timedelta:
        """Time until the next place to wait should be free."""
        mean = self._mean()
        if mean is None:
            return UNKNOWN_RETRY
        return max(timedelta(seconds=min(self._remaining(mean), default=mean)), LEAST_RETRY)

    def _remaining(self, mean: float) -> list[float]:
        now = self._clock()
        return [max(mean - (now - started), 0.0) for started in self._running.values()]
