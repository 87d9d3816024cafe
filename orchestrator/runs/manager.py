"""The life of runs: made once per request_id, queued, carried out side by side, cancelled, drained, forgotten.

Each run has a supervisor that outlives its work: however the work ends, by result, fault, cancellation or time, the
supervisor gives the run exactly one end. What a run does is the engine's business.
"""

import asyncio
import logging
import secrets
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from orchestrator.errors import QueueFull, RequestIdTaken, RunNotFound, ServiceDraining
from orchestrator.runs.run import Run, digest
from orchestrator.runs.states import RunResult, RunState
from orchestrator.workflows import Conclusion, Outcome, RunSpec, Stop, conclude

HARD_MARGIN = timedelta(seconds=5)  # the workflow ends itself at its deadline; this much later it is ended
CLEAN_UP_TIME = timedelta(seconds=10)  # for cancelled work to let go of its model call and its sandbox job
_USUAL_TIME = timedelta(seconds=20)  # what a run is taken to need before any has ended
_LEAST_RETRY, _MOST_RETRY = timedelta(seconds=1), timedelta(minutes=1)

logger = logging.getLogger(__name__)


class Engine(Protocol):
    """Carries runs out."""

    async def work(self, run: Run) -> Conclusion:
        """Does the run's work. When it is cancelled, everything that it started is gone as it returns."""
        ...

    async def result(self, run: Run, conclusion: Conclusion) -> RunResult:
        """Makes the run's result of its conclusion and its progress."""
        ...

    async def archive(self, run: Run) -> None:
        """Puts an ended run's events where they take no memory."""
        ...


@dataclass(frozen=True, slots=True)
class Policy:
    """How many runs at one time, and how many are kept.

    Attributes:
        concurrency: runs at work at one time.
        queue_size: runs that may wait; the next one is refused.
        keep_runs: ended runs that are remembered.
        keep_for: how long an ended run is remembered.
    """

    concurrency: int = 32
    queue_size: int = 1000
    keep_runs: int = 10_000
    keep_for: timedelta = timedelta(hours=24)


class RunManager:
    """All runs of this process. Made inside the event loop; `drain` ends it."""

    def __init__(self, engine: Engine, policy: Policy) -> None:
        self._engine = engine
        self._policy = policy
        self._runs: dict[str, Run] = {}
        self._by_request: dict[str, str] = {}
        self._ended: deque[str] = deque()
        self._forgotten: list[str] = []
        self._work: dict[str, asyncio.Task[Conclusion]] = {}
        self._supervisors: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(policy.concurrency)
        self._usual_time = _USUAL_TIME
        self._active = 0  # runs that have not ended
        self._draining = False

    def create(self, spec: RunSpec, request_id: str = "") -> Run:
        """Makes a run, or finds the one that this request_id made.

        Raises:
            RequestIdTaken: the request_id made a run from another request.
            QueueFull: too many runs wait.
            ServiceDraining: the service is stopping.
        """
        if request_id and (known := self._by_request.get(request_id)) is not None:
            run = self._runs[known]
            if run.digest != digest(spec):
                raise RequestIdTaken(f"request_id {request_id!r} was used for {known}, made from another request")
            return run
        if self._draining:
            raise ServiceDraining("the service is stopping and takes no new runs")
        self._refuse_when_full()
        run = Run(spec, request_id, asyncio.get_running_loop().time() + spec.options.timeout.total_seconds())
        self._runs[run.run_id] = run
        self._active += 1
        if request_id:
            self._by_request[request_id] = run.run_id
        supervisor = asyncio.create_task(self._supervise(run), name=f"supervise {run.run_id}")
        self._supervisors.add(supervisor)
        supervisor.add_done_callback(self._supervisors.discard)
        return run

    def has_made(self, request_id: str) -> bool:
        """Whether a run of this request_id is remembered."""
        return request_id in self._by_request

    def _refuse_when_full(self) -> None:
        if self._active >= self._policy.concurrency + self._policy.queue_size:
            estimate = self._usual_time / self._policy.concurrency
            wait = min(max(estimate, _LEAST_RETRY), _MOST_RETRY)
            raise QueueFull(f"{self._policy.queue_size} runs wait already", wait)

    def get(self, run_id: str) -> Run:
        """The run with this id. Raises RunNotFound."""
        run = self._runs.get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        return run

    def request_cancel(self, run_id: str, reason: str) -> Run:
        """Begins to end a run, and does not wait for it. A run that has ended is left as it is. Raises RunNotFound."""
        run = self.get(run_id)
        work = self._work.get(run_id)
        if not run.has_ended and run.cancel_reason is None:
            run.cancel_reason = reason
            if work is not None:
                work.cancel()
        return run

    async def cancel(self, run_id: str, reason: str) -> Run:
        """Ends a run; returns when its model call and its sandbox job are cancelled. Raises RunNotFound."""
        run = self.request_cancel(run_id, reason)
        await run.ended.wait()
        return run

    async def _supervise(self, run: Run) -> None:
        work = asyncio.create_task(self._in_turn(run), name=f"work {run.run_id}")
        self._work[run.run_id] = work
        if run.cancel_reason is not None:  # cancelled before there was anything to cancel
            work.cancel()
        try:
            left = run.deadline - asyncio.get_running_loop().time() + HARD_MARGIN.total_seconds()
            await asyncio.wait({work}, timeout=left)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work}, timeout=CLEAN_UP_TIME.total_seconds())
        del self._work[run.run_id]
        await self._end(run, _conclusion(run, work))

    async def _in_turn(self, run: Run) -> Conclusion:
        try:
            async with asyncio.timeout_at(run.deadline):
                await self._slots.acquire()
        except TimeoutError:
            return conclude(run.progress, Stop(Outcome.BUDGET_EXHAUSTED, "the run's time was used up in the queue"))
        try:
            run.start()
            return await self._engine.work(run)
        finally:
            self._slots.release()

    async def _end(self, run: Run, conclusion: Conclusion) -> None:
        try:
            result = await self._engine.result(run, conclusion)
        except Exception as error:  # noqa: BLE001 - whatever fails here, the run must get an end
            result = RunResult(Outcome.ERROR, _fault("its result could not be made", run, error))
        run.finish(result)
        self._active -= 1
        if run.start_time is not None and run.end_time is not None:
            self._usual_time = (3 * self._usual_time + (run.end_time - run.start_time)) / 4
        logger.info("run ended", extra={"run": run.run_id, "outcome": result.outcome.value, "reason": result.reason})
        try:
            await self._engine.archive(run)
        except Exception as error:  # noqa: BLE001 - the events then stay in memory
            _fault("its events could not be archived", run, error)
        self._ended.append(run.run_id)
        self.forget_old()

    def forget_old(self) -> None:
        """Forgets ended runs beyond the policy; `take_forgotten` says which."""
        oldest = datetime.now(UTC) - self._policy.keep_for
        while self._ended:
            run = self._runs[self._ended[0]]
            is_old = run.end_time is not None and run.end_time < oldest
            if len(self._ended) <= self._policy.keep_runs and not is_old:
                return
            self._ended.popleft()
            del self._runs[run.run_id]
            self._by_request.pop(run.request_id, None)
            self._forgotten.append(run.run_id)

    def take_forgotten(self) -> list[str]:
        """Ids of the runs forgotten since the last call, for whoever keeps something of them."""
        taken, self._forgotten = self._forgotten, []
        return taken

    def refuse(self) -> None:
        """Takes no new runs from now on, and cancels those that wait."""
        self._draining = True
        for run in list(self._runs.values()):
            if run.state is RunState.QUEUED:
                self.request_cancel(run.run_id, "the service is stopping")

    async def drain(self, grace: timedelta) -> None:
        """Waits for runs at work for `grace`, then cancels them; returns when every run has its end."""
        self.refuse()
        if self._supervisors:
            await asyncio.wait(self._supervisors, timeout=grace.total_seconds())
        for run in list(self._runs.values()):
            self.request_cancel(run.run_id, "the service is stopping")
        if self._supervisors:
            await asyncio.wait(self._supervisors)


def _conclusion(run: Run, work: asyncio.Task[Conclusion]) -> Conclusion:
    """How the run ended, from how its work ended."""
    if work.done() and not work.cancelled() and work.exception() is None:
        return work.result()
    if run.cancel_reason is not None:
        return conclude(run.progress, Stop(Outcome.CANCELLED, run.cancel_reason or "cancelled"))
    if asyncio.get_running_loop().time() >= run.deadline:
        return conclude(run.progress, Stop(Outcome.BUDGET_EXHAUSTED, "the run's time was used up"))
    error = work.exception() if work.done() and not work.cancelled() else None
    reason = _fault("its work broke off", run, error or RuntimeError("cancelled from inside"))
    return conclude(run.progress, Stop(Outcome.ERROR, reason))


def _fault(what: str, run: Run, error: BaseException) -> str:
    """Logs a fault of the service under an id, and gives back what a caller may read of it."""
    error_id = f"err_{secrets.token_hex(8)}"
    logger.error("fault in a run: %s", what, exc_info=error, extra={"run": run.run_id, "error_id": error_id})
    return f"a fault of the service: {what} ({error_id})"
