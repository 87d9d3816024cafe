"""Works on runs: claims one, drives its graph until it ends, waits or must be given up, and writes down which it was.

However a stretch of work ends, by a conclusion, a breakpoint, a fault, a cancellation, its time or a stop of the
service, the run's row tells it exactly once, under the claim; a worker whose claim is lost writes nothing more.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from langgraph.runtime import RunControl

from orchestrator.errors import Fenced, StoreError
from orchestrator.runs.engine import Engine, Prepared
from orchestrator.runs.recorder import Recorder
from orchestrator.runs.records import Interrupt, RunRecord, Wait
from orchestrator.runs.replica import Replica
from orchestrator.runs.states import RunResult
from orchestrator.runs.store import Claim, EventRows, RunRows
from orchestrator.workflows import Conclusion, Drained, Finished, Outcome, Paused, Stop, break_off

HARD_MARGIN = timedelta(seconds=5)  # the workflow ends itself at its deadline; this much later it is ended
CLEAN_UP_TIME = timedelta(seconds=10)  # for cancelled work to let go of its model call and its sandbox job

logger = logging.getLogger(__name__)

End: TypeAlias = Finished | Paused | Drained


@dataclass(slots=True)
class Stint:
    """One stretch of work on a run."""

    claim: Claim
    control: RunControl = field(default_factory=RunControl)
    work: asyncio.Task[End] | None = None
    cancel_reason: str | None = None
    given_up: bool = False  # the run is to go on elsewhere, or later

    def cancel(self, reason: str) -> None:
        """Somebody asked for the run's end."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
            self._stop()

    def give_up(self) -> None:
        """The work is to be broken off where it is; the run goes on from its last checkpoint."""
        self.given_up = True
        self._stop()

    def _stop(self) -> None:
        if self.work is not None:
            self.work.cancel()


class Worker:
    """Carries runs out, one call of `carry_out` a stretch of work."""

    def __init__(
        self,
        engine: Engine,
        runs: RunRows,
        events: EventRows,
        replica: Replica,
        *,
        wake: Callable[[str], None],
        tell: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._runs = runs
        self._events = events
        self._replica = replica
        self._wake = wake  # a run's state was changed
        self._tell = tell  # an event of a run was written
        self.stints: dict[str, Stint] = {}

    async def carry_out(self, record: RunRecord) -> None:
        """Works on a run that was claimed for this replica.

        Raises:
            StoreUnavailable: the database does not answer; the run is found again by a sweep.
        """
        run_id = record.run_id
        stint = self.stints[run_id] = Stint(Claim(run_id, record.epoch))
        self._wake(run_id)
        try:
            await self._stretch(record, stint)
        except Fenced as error:
            logger.warning("a run was taken over: %s", error, extra={"run": run_id})
        finally:
            del self.stints[run_id]
            self._wake(run_id)

    def cancel(self, run_id: str, reason: str) -> None:
        """Ends the work on a run, where it is this worker's."""
        if (stint := self.stints.get(run_id)) is not None:
            stint.cancel(reason)

    def request_drain(self) -> None:
        """Every run stops at its next step and is handed back."""
        for stint in self.stints.values():
            stint.control.request_drain()

    def give_up_all(self) -> None:
        """Every run is broken off where it is."""
        for stint in list(self.stints.values()):
            stint.give_up()

    async def _stretch(self, record: RunRecord, stint: Stint) -> None:
        recorder = Recorder(
            self._events,
            stint.claim,
            known=await self._events.keys(record.run_id) if record.epoch > 1 else frozenset(),
            count=record.last_sequence,
            wake=lambda: self._tell(record.run_id),
            redact=self._engine.redact,
        )
        try:
            if record.cancel_reason is not None:
                stint.cancel_reason = record.cancel_reason
            try:
                prepared = await self._engine.prepare(record, stint.claim, recorder)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the run must get an end
                reason = fault("it could not be begun", record.run_id, error)
                await self._finish(record, stint, recorder, RunResult(Outcome.ERROR, reason))
                return
            end = await self._work(record, stint, prepared)
            await self._settle(record, stint, prepared, recorder, end)
        finally:
            await recorder.close()

    async def _work(self, record: RunRecord, stint: Stint, prepared: Prepared) -> End | None:
        """How the work ended; None where the run is to go on from its last checkpoint."""
        stint.work = work = asyncio.create_task(self._engine.drive(record, prepared, stint.control))
        if stint.cancel_reason is not None or stint.given_up:  # before there was anything to cancel
            work.cancel()
        left = (record.deadline - datetime.now(UTC)) if record.deadline is not None else timedelta()
        try:
            await asyncio.wait({work}, timeout=max(left, timedelta()).total_seconds() + HARD_MARGIN.total_seconds())
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work}, timeout=CLEAN_UP_TIME.total_seconds())
        return self._ended(record, stint, prepared, work)

    def _ended(self, record: RunRecord, stint: Stint, prepared: Prepared, work: asyncio.Task[End]) -> End | None:
        error = work.exception() if work.done() and not work.cancelled() else None
        if work.done() and not work.cancelled() and error is None:
            return work.result()
        if isinstance(error, StoreError):
            raise error
        if stint.cancel_reason is not None:
            return _early(prepared, Outcome.CANCELLED, stint.cancel_reason or "cancelled")
        if stint.given_up:
            return None
        if record.deadline is not None and datetime.now(UTC) >= record.deadline:
            return _early(prepared, Outcome.BUDGET_EXHAUSTED, "the run's time was used up")
        reason = fault("its work broke off", record.run_id, error or RuntimeError("cancelled from inside"))
        return _early(prepared, Outcome.ERROR, reason)

    async def _settle(
        self, record: RunRecord, stint: Stint, prepared: Prepared, recorder: Recorder, end: End | None
    ) -> None:
        self._replica.check_lease()
        match end:
            case Finished(conclusion):
                await recorder.flush()
                await self._finish(record, stint, recorder, await self._result(record, prepared, conclusion))
            case Paused():
                await recorder.flush()
                await self._runs.wait(stint.claim, as_wait(end))
            case Drained() | None:
                await recorder.flush()
                await self._runs.hand_back(stint.claim, "the service is stopping")

    async def _result(self, record: RunRecord, prepared: Prepared, conclusion: Conclusion) -> RunResult:
        try:
            return await self._engine.result(prepared, conclusion)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever fails here, the run must get an end
            return RunResult(Outcome.ERROR, fault("its result could not be made", record.run_id, error))

    async def _finish(self, record: RunRecord, stint: Stint, recorder: Recorder, result: RunResult) -> None:
        await recorder.flush()
        if await self._runs.finish(stint.claim, result):
            extra = {"run": stint.claim.run_id, "outcome": result.outcome.value, "reason": result.reason}
            logger.info("run ended", extra=extra)
            self._engine.observer.ended(record, result)


def as_wait(paused: Paused) -> Wait:
    """What a run that was stopped there waits for."""
    interrupts = tuple(
        Interrupt(question.interrupt_id, question.node, question.value_json) for question in paused.interrupts
    )
    return Wait(paused.checkpoint_id, paused.next, paused.reason, interrupts)


def _early(prepared: Prepared, outcome: Outcome, reason: str) -> Finished:
    return Finished(break_off(prepared.context, Stop(outcome, reason)))


def fault(what: str, run_id: str, error: BaseException) -> str:
    """Logs a fault of the service under an id, and gives back what a caller may read of it."""
    error_id = f"err_{secrets.token_hex(8)}"
    logger.error("fault in a run: %s", what, exc_info=error, extra={"run": run_id, "error_id": error_id})
    return f"a fault of the service: {what} ({error_id})"
