"""What failed, from the sandbox's structured fields: a line for a person, a fingerprint to tell circles by, what broke.

Two attempts have one fingerprint when the same tests failed with the same types and texts, apart from what differs
between two runs of the same code: addresses, line numbers, temporary paths, times.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from orchestrator.workflows.plain import clean_text
from orchestrator.workflows.sandbox import (
    FAILING,
    Execution,
    ExecutionStatus,
    Failure,
    ReportOutcome,
    TestCase,
    TestOutcome,
    TestReport,
)

UNTRUSTED: Mapping[ReportOutcome, str] = {
    ReportOutcome.TAMPERED: "the code reached into the test framework",
    ReportOutcome.INCOMPLETE: "the tests did not come to their end",
}
"""Outcomes of which the report's own reason says more than any test in it."""
SUMMARY_CHARS = 240
EVENT_OUTPUT_BYTES = 2048  # of each stream; two streams make the 4 KiB of an event
EVENT_TESTS = 16
_NAMES_SHOWN = 3

_VOLATILE = (
    (re.compile(r"0x[0-9a-fA-F]+"), "0x…"),
    (re.compile(r"(?:/[\w.\-]+)*/(?:tmp|var/tmp|private|dev/shm)(?:/[\w.\-]+)+"), "<path>"),
    (re.compile(r"\bline \d+"), "line …"),
    (re.compile(r"(\.py):\d+(?::\d+)?"), r"\1:…"),
    (re.compile(r"\b\d+(?:\.\d+)?(?:e-?\d+)? ?(?:s|ms|us|µs|ns|seconds?)\b"), "<time>"),
    (re.compile(r"\s+"), " "),
)


def normalise(text: str) -> str:
    """The text without what differs between two runs of the same code."""
    for pattern, mark in _VOLATILE:
        text = pattern.sub(mark, text)
    return text.strip()


def failing_tests(report: TestReport) -> tuple[TestCase, ...]:
    """Tests that speak against the code, in order of running."""
    return tuple(test for test in report.tests if test.outcome in FAILING)


def error_count(report: TestReport) -> int:
    """Tests that speak against the code, listed or not, and files that could not be collected."""
    return sum(report.counts.get(outcome, 0) for outcome in FAILING) + len(report.collection_errors)


def fingerprint(report: TestReport | None, execution: Execution) -> str:
    """Equal for equal failures. 16 hex digits."""
    parts = _report_parts(report) if report is not None else _execution_parts(execution)
    return hashlib.sha256("\x00".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _report_parts(report: TestReport) -> Iterator[str]:
    yield report.outcome.value
    for test in sorted(failing_tests(report), key=lambda case: case.node_id):
        yield from (test.node_id, test.outcome.value, *_failure_parts(test.failure))
    for error in sorted(report.collection_errors, key=lambda item: item.path):
        yield from (error.path, *_failure_parts(essence(error.failure)))
    if report.outcome in UNTRUSTED or (not report.tests and not report.collection_errors):
        yield normalise(report.reason)


def _failure_parts(failure: Failure | None) -> tuple[str, ...]:
    if failure is None:
        return ("",)
    if failure.comparison is not None:
        compared = failure.comparison
        return failure.type, compared.operator, normalise(compared.left), normalise(compared.right)
    return failure.type, normalise(failure.message)


def _execution_parts(execution: Execution) -> tuple[str, ...]:
    seen = execution.reason if execution.status is ExecutionStatus.VIOLATION else last_line(execution.stderr.text())
    return execution.status.value, str(execution.exit_code), normalise(seen)


def last_line(text: str) -> str:
    """The last line that is not empty: of a traceback, the exception."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def one_line(text: str, limit: int = SUMMARY_CHARS) -> str:
    """The text on one line of at most `limit` characters, fit to be kept anywhere."""
    flat = " ".join(clean_text(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def summary(report: TestReport | None, execution: Execution) -> str:
    """One line: the failing assertion, the error, or what passed."""
    if report is None:
        return one_line(_program_summary(execution))
    if report.outcome is ReportOutcome.PASSED:
        return _pass_summary(report)
    if report.outcome in UNTRUSTED and report.reason:
        return one_line(f"{UNTRUSTED[report.outcome]}: {report.reason}")
    if report.collection_errors:
        first = report.collection_errors[0]
        return one_line(f"{first.path}: {describe_failure(essence(first.failure))}")
    failing = failing_tests(report)
    if not failing:
        return one_line(report.reason or execution.reason or f"the test run ended as {report.outcome.value}")
    more = error_count(report) - 1
    text = f"{failing[0].node_id}: {describe_failure(failing[0].failure)}"
    return one_line(text, SUMMARY_CHARS - 20) + (f" (and {more} more)" if more > 0 else "")


def essence(failure: Failure) -> Failure:
    """A test file's import error as the error itself: pytest tells it as a text, in lines that begin with E."""
    if failure.type != "CollectError":
        return failure
    lines = [line[1:].removeprefix("   ") for line in failure.traceback.splitlines() if line.startswith("E  ")]
    if not lines:
        return failure
    kind = lines[-1].partition(":")[0].strip()
    return replace(failure, type=kind, message=lines[-1].strip(), traceback="\n".join(lines))


def describe_failure(failure: Failure | None) -> str:
    """Type and first line of the text, without saying the type twice."""
    if failure is None:
        return "failed"
    head = next((line.strip() for line in failure.message.splitlines() if line.strip()), "")
    if not head:
        return failure.type or "failed"
    if not failure.type or head.startswith((failure.type, "assert ")):
        return head
    return f"{failure.type}: {head}"


def _pass_summary(report: TestReport) -> str:
    if report.passed < report.total:
        return f"{report.passed} of {report.total} tests passed, and the others ended as their marks say"
    return f"all {report.total} tests passed" if report.total != 1 else "the one test passed"


def _program_summary(execution: Execution) -> str:
    if execution.status is ExecutionStatus.SUCCEEDED:
        return "it ran to its end (exit code 0)"
    if execution.status is ExecutionStatus.FAILED and execution.exit_code:
        error = last_line(execution.stderr.text())
        return f"exit code {execution.exit_code}" + (f": {error}" if error else "")
    return execution.reason or f"it ended as {execution.status.value}"


def regressions(before: TestReport, after: TestReport) -> tuple[str, ...]:
    """Tests that passed before and do not pass now. A test that a full report does not list any more did not pass."""
    passed = {test.node_id for test in before.tests if test.outcome is TestOutcome.PASSED}
    now = {test.node_id: test.outcome for test in after.tests}
    return tuple(
        name
        for name in sorted(passed)
        if (name in now and now[name] is not TestOutcome.PASSED) or (name not in now and not after.tests_left_out)
    )


def name_some(names: Iterable[str]) -> str:
    """The first few names, and how many there are beyond."""
    listed = list(names)
    shown = ", ".join(one_line(name, 80) for name in listed[:_NAMES_SHOWN])
    return shown + (f" and {len(listed) - _NAMES_SHOWN} more" if len(listed) > _NAMES_SHOWN else "")


def for_event(execution: Execution, report: TestReport | None) -> tuple[Execution, TestReport | None]:
    """Both, cut to what an event may hold: 4 KiB of output, and 16 failing tests without what they printed."""
    short = replace(
        execution, stdout=execution.stdout.cut(EVENT_OUTPUT_BYTES), stderr=execution.stderr.cut(EVENT_OUTPUT_BYTES)
    )
    if report is None:
        return short, None
    shown = tuple(replace(test, stdout=b"", stderr=b"") for test in failing_tests(report)[:EVENT_TESTS])
    return short, replace(report, tests=shown, tests_left_out=report.total - len(shown))
