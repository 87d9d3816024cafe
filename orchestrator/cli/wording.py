"""Words for what the services report: outcomes, failing tests, usage. Pure functions from messages to lines.

`run`, `test`, `exec` and `eval` say the same thing in the same words because all of them come here.
"""

from collections.abc import Iterator

from codemend.orchestrator.v1 import runs_pb2
from codemend.sandbox.v1 import sandbox_pb2

from orchestrator.cli.terminal import printable

_FAILED_TESTS_SHOWN = 5
_MESSAGE_LINES = 12
_OUTPUT_LINES = 15
_FAILING = {
    sandbox_pb2.TEST_OUTCOME_FAILED,
    sandbox_pb2.TEST_OUTCOME_ERROR,
    sandbox_pb2.TEST_OUTCOME_UNFINISHED,
    sandbox_pb2.TEST_OUTCOME_XPASSED,
}


def run_state(state: "runs_pb2.RunState.ValueType") -> str:
    """`QUEUED`, `WAITING`, …: the state without its enum's prefix."""
    return runs_pb2.RunState.Name(state).removeprefix("RUN_STATE_")


def run_outcome(outcome: "runs_pb2.RunOutcome.ValueType") -> str:
    """`PASSED`, `STUCK`, …: the outcome without its enum's prefix."""
    return runs_pb2.RunOutcome.Name(outcome).removeprefix("RUN_OUTCOME_")


def report_outcome(outcome: "sandbox_pb2.ReportOutcome.ValueType") -> str:
    """`PASSED`, `NO_TESTS`, …: the outcome without its enum's prefix."""
    return sandbox_pb2.ReportOutcome.Name(outcome).removeprefix("REPORT_OUTCOME_")


def execution_status(status: "sandbox_pb2.ExecutionStatus.ValueType") -> str:
    """`SUCCEEDED`, `TIMED_OUT`, …: the status without its enum's prefix."""
    return sandbox_pb2.ExecutionStatus.Name(status).removeprefix("EXECUTION_STATUS_")


def case_outcome(outcome: "sandbox_pb2.TestOutcome.ValueType") -> str:
    """`PASSED`, `SKIPPED`, …: the outcome without its enum's prefix."""
    return sandbox_pb2.TestOutcome.Name(outcome).removeprefix("TEST_OUTCOME_")


def attempt_headline(attempt: runs_pb2.Attempt) -> str:
    """`attempt 1 draft: FAILED 1/3 tests`."""
    if attempt.report_outcome:
        verdict = f"{report_outcome(attempt.report_outcome)} {attempt.tests_passed}/{attempt.tests_total} tests"
    elif attempt.execution_status:
        verdict = execution_status(attempt.execution_status)
    else:
        verdict = "NOT EXECUTED"
    return f"attempt {attempt.number} {attempt.strategy}: {verdict}"


def failures(report: sandbox_pb2.TestReport) -> Iterator[str]:
    """Lines that say what failed, with the values compared: collection errors, then tests."""
    for error in report.collection_errors:
        yield f"{printable(error.path)} could not be collected"
        yield from _failure(error.failure)
    failing = [test for test in report.tests if test.outcome in _FAILING]
    for test in failing[:_FAILED_TESTS_SHOWN]:
        yield f"{printable(test.node_id)} {case_outcome(test.outcome)}"
        yield from _failure(test.failure)
    if len(failing) > _FAILED_TESTS_SHOWN:
        yield f"and {len(failing) - _FAILED_TESTS_SHOWN} more"


def output_tail(output: sandbox_pb2.Output) -> list[str]:
    """The last lines that a stream held, made safe to print."""
    raw = output.tail if output.dropped_bytes else output.head
    return printable(raw.decode("utf-8", "replace")).splitlines()[-_OUTPUT_LINES:]


def ending(run: runs_pb2.Run) -> str:
    """`PASSED after 2 attempts`, with the reason where it did not pass; for a run that waits, where it does."""
    if not run.HasField("result"):
        return f"{run.run_id} waits ({printable(run.wait.reason)}) at checkpoint {run.wait.checkpoint_id}"
    result = run.result
    count = len(result.attempts)
    line = f"{run_outcome(result.outcome)} after {count} attempt{'' if count == 1 else 's'}"
    if result.outcome == runs_pb2.RUN_OUTCOME_PASSED or not result.reason:
        return line
    return f"{line}: {printable(result.reason)}"


def usage(spent: runs_pb2.Usage) -> str:
    """`3 model calls, 2,110 tokens in, 345 out`."""
    calls = f"{spent.model_calls} model call{'' if spent.model_calls == 1 else 's'}"
    return f"{calls}, {spent.input_tokens:,} tokens in, {spent.output_tokens:,} out"


def _failure(failure: sandbox_pb2.Failure) -> Iterator[str]:
    at = f" at {printable(failure.location)}" if failure.location else ""
    lines = printable(failure.message).splitlines() or [""]
    first = lines[0].removeprefix(f"{failure.type}: ")
    yield f"    {printable(failure.type)}{at}: {first}".rstrip(": ")
    for line in lines[1:_MESSAGE_LINES]:
        yield f"      {line}"
    if failure.HasField("comparison"):
        compared = failure.comparison
        yield f"      left  = {printable(compared.left)}"
        yield f"      right = {printable(compared.right)}"
