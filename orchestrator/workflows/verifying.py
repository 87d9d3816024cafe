"""The node that has code executed: tests where there are tests, else the check script, else the program itself.

The verdict comes from the sandbox's structured fields. A sandbox that is busy or unreachable is tried again within the
run's time; whatever else it answers ends the run, since the same job would fail again.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from orchestrator.errors import ArtifactError, OutOfTime, SandboxBusy, SandboxError, SandboxUnavailable
from orchestrator.workflows.answers import SANDBOX, Ran
from orchestrator.workflows.artifacts import FileSet, load, load_files, save, save_files
from orchestrator.workflows.checking import check_run
from orchestrator.workflows.context import CodegenContext
from orchestrator.workflows.events import ExecutionFinished
from orchestrator.workflows.failures import (
    error_count,
    fingerprint,
    for_event,
    name_some,
    one_line,
    regressions,
    summary,
)
from orchestrator.workflows.plain import as_plain
from orchestrator.workflows.sandbox import (
    Caller,
    Execution,
    ExecutionStatus,
    File,
    Limits,
    ProgramJob,
    ReportOutcome,
    TestJob,
    TestReport,
)
from orchestrator.workflows.state import (
    BUILDS_ON_BASE,
    Attempt,
    CodegenState,
    Draft,
    Outcome,
    Stop,
    Verdict,
    unexecuted,
)
from orchestrator.workflows.tape import STEP, Effect, Request

_FIRST_DELAY, _LONGEST_DELAY = 0.2, 5.0  # seconds between two tries, doubled each time
_DEADLINE_MARGIN = timedelta(seconds=1)  # the run's own clock must end a call before the call's deadline does

T = TypeVar("T")


async def execute(state: CodegenState, context: CodegenContext) -> CodegenState:
    """Has the draft executed and gives it its verdict."""
    draft = state.get("draft")
    if draft is None:  # routes lead here with a draft alone
        return {}
    stop = await context.limit_met(f"before attempt {draft.number} was executed", spends_tokens=False)
    if stop is None:
        try:
            report, execution = await _ran(draft, context)
            return {"draft": None, "attempts": [await _judge(draft, report, execution, context)]}
        except OutOfTime as error:
            stop = Stop(Outcome.BUDGET_EXHAUSTED, str(error))
        except SandboxBusy as error:
            late = context.out_of_time("while the sandbox was busy")
            stop = Stop(Outcome.BUDGET_EXHAUSTED, one_line(f"{late.reason}: {error}"))
        except (SandboxError, ArtifactError) as error:
            stop = Stop(Outcome.ERROR, one_line(f"the sandbox could not be used: {error}"))
    verdict = Verdict.ERROR if stop.outcome is Outcome.ERROR else Verdict.STOPPED
    attempt = unexecuted(draft, verdict, stop.reason, STEP.get().elapsed)
    return {"draft": None, "attempts": [attempt], "stop": stop}


async def _ran(draft: Draft, context: CodegenContext) -> Ran:
    """What came of the draft's job. Its files and tests are kept under the names that the request has for them."""
    files = await load_files(context.artifacts, draft.code_hash)
    task, options = context.task, context.options
    check = (File("check", task.check_script.encode("utf-8", "replace")),) if task.check_script else ()
    content = {
        "files": draft.code_hash,
        "tests": await save_files(context.artifacts, task.tests) if task.tests else "",
        "check": await save_files(context.artifacts, check) if check else "",
        "entry": "" if task.tests or check else task.solution_path,
        "environment": options.environment,
        "limits": as_plain(Limits, options.limits),
    }

    async def live() -> Ran:
        job = _job(files, context, draft.number)  # one job for all tries: its step runs once
        return await context.within_time(lambda: _patiently(context, job), "while the code was executed")

    context.progress.executing.add(draft.number)
    return await context.tape.take(Request(Effect.SANDBOX, content), live, SANDBOX)


def _job(files: FileSet, context: CodegenContext, number: int) -> Callable[[], Awaitable[Ran]]:
    """The job that verifies an attempt's files; each call is one try of it."""
    task, options, sandbox = context.task, context.options, context.sandbox
    caller = Caller(context.tenant, f"{context.run_id}/{number}" if context.run_id else "")

    def deadline() -> timedelta:
        return timedelta(seconds=context.remaining()) + _DEADLINE_MARGIN

    if task.tests:
        tests = TestJob(files, task.tests, options.environment, options.limits)
        return lambda: sandbox.run_tests(tests, deadline=deadline(), caller=caller)
    if task.check_script:
        check = check_run(files, task.check_script, options)

        async def checked() -> Ran:
            return None, check.judged(await sandbox.run_program(check.job, deadline=deadline(), caller=caller))

        return checked
    program = ProgramJob(files, task.solution_path, options.environment, options.limits)

    async def ran() -> Ran:
        return None, await sandbox.run_program(program, deadline=deadline(), caller=caller)

    return ran


async def _patiently(context: CodegenContext, attempt: Callable[[], Awaitable[T]]) -> T:
    """Tries again while the sandbox is busy, and for `sandbox_patience` while it cannot be reached."""
    loop = asyncio.get_running_loop()
    gives_up = loop.time() + context.sandbox_patience.total_seconds()
    delay = _FIRST_DELAY
    while True:
        try:
            return await attempt()
        except (SandboxBusy, SandboxUnavailable) as error:
            asked = error.retry_after.total_seconds() if error.retry_after is not None else 0.0
            wait = max(asked, delay * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
            end = context.deadline if isinstance(error, SandboxBusy) else min(context.deadline, gives_up)
            if loop.time() + wait >= end:
                raise
        await asyncio.sleep(wait)
        delay = min(2 * delay, _LONGEST_DELAY)


async def _judge(draft: Draft, report: TestReport | None, execution: Execution, context: CodegenContext) -> Attempt:
    context.emit(ExecutionFinished(draft.number, *for_event(execution, report)))
    verdict = verdict_of(report, execution, checked=bool(context.task.check_script))
    broken = await _regressions(draft, report, context)
    passed, errors = believed(report, execution)
    return replace(
        unexecuted(draft, verdict, summary(report, execution), STEP.get().elapsed),
        report_outcome=report.outcome if report is not None else None,
        execution_status=execution.status if report is None else None,
        tests_passed=passed,
        tests_total=report.total if report is not None else 0,
        errors=errors,
        fingerprint=fingerprint(report, execution) if verdict is Verdict.FAILED else "",
        regressions=len(broken),
        regressed=name_some(broken),
        report_hash=await save(context.artifacts, TestReport, report) if report is not None else "",
        execution_hash=await save(context.artifacts, Execution, execution),
    )


def verdict_of(report: TestReport | None, execution: Execution, *, checked: bool) -> Verdict:
    """What an execution proves. What is not known to be a pass is none; a report without tests never passes."""
    if report is not None:
        passed = report.outcome is ReportOutcome.PASSED and report.total > 0
        return Verdict.PASSED if passed else Verdict.FAILED
    if execution.status is not ExecutionStatus.SUCCEEDED:
        return Verdict.FAILED
    return Verdict.PASSED if checked else Verdict.UNVERIFIED


def believed(report: TestReport | None, execution: Execution) -> tuple[int, int]:
    """Tests that passed, and what speaks against the code. Of a report that was tampered with, no pass is believed."""
    if report is None:
        return 0, int(execution.status is not ExecutionStatus.SUCCEEDED)
    if report.outcome is ReportOutcome.TAMPERED:
        return 0, max(error_count(report), report.total, 1)
    return report.passed, error_count(report)


async def _regressions(draft: Draft, report: TestReport | None, context: CodegenContext) -> tuple[str, ...]:
    base = context.progress.find(draft.base)
    if report is None or base is None or not base.report_hash or draft.strategy not in BUILDS_ON_BASE:
        return ()
    if base.report_outcome is ReportOutcome.TAMPERED:  # what it says has passed may never have run
        return ()
    return regressions(await load(context.artifacts, TestReport, base.report_hash), report)
