"""Runs tests with the code under test in a cell of its own, or beside them where they need more than plain data.

Two cells at most: the judge's, which has the tests and decides where the code runs, and the candidate's, which has no
test. They speak over a socket that the service makes and keeps no end of. Both start at once where the code will likely
run apart: the candidate's cell then waits, and nothing of the code runs in it before the judge has asked for it. How a
cell is made is its kind's.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from sandbox_service.cells.expectations import Expectations
from sandbox_service.cells.report import ReportBuilder
from sandbox_service.cells.report_verdict import Candidate
from sandbox_service.domain import Job, JobOutcome, Result, Status, TestIsolation, TestRun
from sandbox_service.languages import Language

_log = logging.getLogger(__name__)
_KEY_BYTES = 32
_LEAVES_S = 1.0
"""What the candidate gets, once the judge has gone, to notice that and end."""
_BY_ITSELF = (Status.SUCCEEDED, Status.FAILED, Status.SIGNALED)
_CANDIDATE_TEMPLATE = "python"


@dataclass(frozen=True, slots=True)
class Part:
    """One cell's part of a job.

    Attributes:
        job: what is laid out in the cell, within which limits.
        template: name of the template that the cell is forked from.
        start: how the program starts, as `guest.process.program` reads it.
        report: takes the report of a test run; None: the cell reports nothing.
        channel: this cell's end of the channel between judge and candidate; whoever gives the order closes it.
        over: set when nobody waits for the cell's program any more.
    """

    job: Job
    template: str
    start: Mapping[str, Any]
    report: ReportBuilder | None = None
    channel: socket.socket | None = None
    over: asyncio.Event | None = None


RunCell = Callable[[Part], Awaitable[JobOutcome]]
"""Runs a part in a cell and returns when nothing of it is left. Raises what CellKind.run raises."""


async def run_tests(run: TestRun, language: Language, run_cell: RunCell, expectations: Expectations) -> JobOutcome:
    """Runs tests, apart from the code under test where that can be and nobody asked for anything else.

    Args:
        run: tests and code.
        language: theirs.
        run_cell: runs each cell.
        expectations: where the code's cell starts before the plan is known.

    Raises:
        CellUnavailable, CellFailure: as CellKind.run.
    """
    template, start = language.start_tests(run)
    if not language.separates:
        report = ReportBuilder(asked=run.isolation)
        outcome = await run_cell(Part(run, template, start, report))
        return replace(outcome, report=report.report(outcome.result.status))
    first = Part(run, template, {**start, "isolation": run.isolation, "reason": "", "beside": _beside(run)})
    outcome, report = await _judged(run, first, run_cell, expectations)
    if report.needs_sharing and run.isolation is TestIsolation.AUTO:
        again = {**first.start, "isolation": TestIsolation.SHARED, "reason": report.unplain}
        outcome, report = await _judged(run, replace(first, start=again), run_cell, expectations)
    return replace(outcome, report=report.report(outcome.result.status))


def _beside(run: TestRun) -> list[str]:
    """Top-level names that could be imported from the code under test."""
    paths = [file.path for file in run.files]
    paths += [entry.path.decode("utf-8", "replace") for entry in run.workspace or ()]
    return sorted({path.partition("/")[0].partition(".")[0] for path in paths})


async def _judged(
    run: TestRun, part: Part, run_cell: RunCell, expectations: Expectations
) -> tuple[JobOutcome, ReportBuilder]:
    """One run: the judge's cell, and the candidate's with it or as soon as the judge has settled that it needs one."""
    planned = asyncio.Event()
    key = secrets.token_bytes(_KEY_BYTES)
    asked = TestIsolation(part.start["isolation"])
    report = ReportBuilder(key, asked=asked, on_plan=planned.set)
    start = {**part.start, "key": key.hex()}
    if asked is TestIsolation.SHARED:
        return await run_cell(replace(part, start=start, report=report)), report
    with _channel() as (ours, theirs):
        over = asyncio.Event()
        judge = asyncio.ensure_future(run_cell(replace(part, start=start, report=report, channel=ours)))
        tasks: list[asyncio.Future[Any]] = [judge, asyncio.ensure_future(planned.wait())]
        candidate: asyncio.Future[JobOutcome] | None = None
        try:
            if expectations.of(run) is TestIsolation.SEPARATE:
                candidate = asyncio.ensure_future(run_cell(_candidate(run, part, theirs, over)))
                tasks.append(candidate)
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
            is_separate = _is_separate(report)
            if report.plan is not None:
                expectations.learn(run, TestIsolation.SEPARATE if is_separate else TestIsolation.SHARED)
            if not is_separate or judge.done():
                if candidate is not None:
                    candidate.cancel()  # killed while the judge goes on; what it was doing concerns nobody
                theirs.close()
                return await judge, report
            if candidate is None:
                candidate = asyncio.ensure_future(run_cell(_candidate(run, part, theirs, over)))
                tasks.append(candidate)
            return await _both(judge, candidate, over, report), report
        finally:
            await _ended(tasks)


@contextmanager
def _channel() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def _is_separate(report: ReportBuilder) -> bool:
    return report.plan is not None and report.plan.isolation is TestIsolation.SEPARATE and not report.plan.refused


def _candidate(run: TestRun, part: Part, channel: socket.socket, over: asyncio.Event) -> Part:
    """The same files and limits, without a test.

    The judge's clock is the run's: this cell is ended with it, and has a little more time, since it may have started
    first.
    """
    limits = replace(run.limits, wall_time=run.limits.wall_time + timedelta(seconds=_LEAVES_S))
    start = {"kind": "serve", "coverage": part.start["coverage"]}
    return Part(
        replace(run, tests=(), select=(), limits=limits), _CANDIDATE_TEMPLATE, start, channel=channel, over=over
    )


async def _both(
    judge: asyncio.Future[JobOutcome], candidate: asyncio.Future[JobOutcome], over: asyncio.Event, report: ReportBuilder
) -> JobOutcome:
    """Waits for both cells and puts one outcome together."""
    await asyncio.wait((judge, candidate), return_when=asyncio.FIRST_COMPLETED)
    if candidate.done() and candidate.exception() is not None:
        return await candidate  # it never ran, or its cell is lost: so is the job
    judged = await judge
    if judged.result.status in _BY_ITSELF:  # otherwise the candidate may still be at work on its last question
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(candidate), _LEAVES_S)
    forced = not candidate.done()
    over.set()
    tested = await candidate
    if not forced:
        report.candidate = Candidate(tested.result.status, tested.result.reason)
    return replace(judged, result=_merged(judged.result, tested.result, forced=forced), changes=tested.changes)


def _merged(judge: Result, candidate: Result, *, forced: bool) -> Result:
    """The judge's result, with what the code under test used, made and was ended for."""
    merged = replace(
        judge,
        cpu_time=judge.cpu_time + candidate.cpu_time,
        peak_memory_bytes=max(judge.peak_memory_bytes, candidate.peak_memory_bytes),
        files=candidate.files,
        files_left_out=candidate.files_left_out,
    )
    if forced or candidate.status in _BY_ITSELF or judge.status is Status.TIMED_OUT:
        return merged
    return replace(
        merged,
        status=candidate.status,
        reason=candidate.reason,
        exit_code=candidate.exit_code,
        signal=candidate.signal,
    )


async def _ended(tasks: list[asyncio.Future[Any]]) -> None:
    """Cancels what still runs and waits until it is gone: a cell cleans up after itself before it ends.

    No task is cancelled twice, which would cut its cleaning up short; a cancellation that comes meanwhile comes out
    afterwards.
    """
    for task in tasks:
        if not (isinstance(task, asyncio.Task) and task.cancelling()):
            task.cancel()
    interrupted: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            interrupted = error
    for task in tasks:
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log.debug("a cell of a test run that nobody waited for: %r", failure)
    if interrupted is not None:
        raise interrupted
