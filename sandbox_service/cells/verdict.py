"""Decides what a job's evidence means: which status an execution has and which outcome a test run.

Pure functions of structured fields.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from sandbox_service.domain import Limits, ReportOutcome, Status, TestCase, TestOutcome


class Kill(Enum):
    """Why the service ended a job."""

    WALL_TIME = Status.TIMED_OUT
    CPU_TIME = Status.CPU_LIMIT
    OUTPUT = Status.OUTPUT_LIMIT


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen of a job's end. `wait_status` (as of waitpid) is None where the whole cell died."""

    wait_status: int | None
    kill: Kill | None = None
    out_of_memory_kills: int = 0
    process_limit_hits: int = 0
    disk_full: bool = False
    file_limit_met: bool = False
    memory_error: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """Status of an execution with its reason, and the exit code or the signal."""

    status: Status
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None


def ending(evidence: Evidence, limits: Limits) -> Ending | None:
    """How a job ended, or None where the evidence does not say: never a success by default."""
    code, number = _decode(evidence.wait_status)
    if evidence.kill is not None:
        reason = _kill_reason(evidence.kill, limits)
        if evidence.process_limit_hits:
            reason += f"; it had met the limit of {limits.processes} processes"
        return Ending(evidence.kill.value, reason, signal=signal.SIGKILL)
    if code == 0:
        return Ending(Status.SUCCEEDED, exit_code=0)
    found = _limit(evidence, limits, number)
    if found is not None:
        return Ending(*found, exit_code=code, signal=number)
    if number is not None:
        return Ending(Status.SIGNALED, f"ended by {_name(number)}", signal=number)
    return Ending(Status.FAILED, f"exit code {code}", exit_code=code) if code is not None else None


def _decode(wait_status: int | None) -> tuple[int | None, int | None]:
    if wait_status is None:
        return None, None
    return (wait_status >> 8, None) if wait_status & 0x7F == 0 else (None, wait_status & 0x7F)


def _limit(evidence: Evidence, limits: Limits, number: int | None) -> tuple[Status, str] | None:
    """The limit that a failed program met, the most telling first."""
    if evidence.out_of_memory_kills or evidence.memory_error:
        return Status.MEMORY_LIMIT, f"over the memory limit of {limits.memory_bytes} bytes"
    if number == signal.SIGXCPU:
        return Status.CPU_LIMIT, _kill_reason(Kill.CPU_TIME, limits)
    if number == signal.SIGXFSZ or evidence.file_limit_met:
        return Status.DISK_LIMIT, f"failed with a file at the limit of {limits.file_bytes} bytes"
    if evidence.disk_full:
        return Status.DISK_LIMIT, f"failed with its disk full: {limits.disk_bytes} bytes or {limits.inodes} files"
    if evidence.process_limit_hits:
        return Status.PROCESS_LIMIT, f"failed after it met the limit of {limits.processes} processes"
    return None


def _kill_reason(kill: Kill, limits: Limits) -> str:
    match kill:
        case Kill.WALL_TIME:
            return f"still running after {limits.wall_time.total_seconds():g} s of wall time"
        case Kill.CPU_TIME:
            return f"over the limit of {limits.cpu_time.total_seconds():g} s of processor time"
        case Kill.OUTPUT:
            return f"wrote more than {limits.output_bytes} bytes of output"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_USUAL_EXIT_CODES = frozenset({0, 1, 5})
"""All passed, some failed, none collected (pytest.ExitCode)."""
_UNUSUAL_EXIT_CODES = {2: "interrupted", 3: "internal error", 4: "a test asked for is not there"}


@dataclass(frozen=True, slots=True)
class ReportEvidence:
    """What was seen of a test run.

    Attributes:
        status: how its process ended.
        exit_code: what pytest said at its end; None: it never came to it.
        collected: tests that were to report.
        tests: tests that did.
        collection_errors: files that could not be collected.
        broken: what was wrong with the report itself; empty: nothing.
    """

    status: Status
    exit_code: int | None
    collected: int
    tests: Sequence[TestCase]
    collection_errors: int
    broken: str = ""


def outcome(evidence: ReportEvidence) -> tuple[ReportOutcome, str]:
    """What a test run says, and why. PASSED needs an end, no error, and every collected test reported as expected."""
    if evidence.broken:
        return ReportOutcome.ERROR, f"the report broke off: {evidence.broken}"
    if evidence.status is Status.TIMED_OUT:
        return ReportOutcome.TIMED_OUT, "the tests were still running at the wall time limit"
    if evidence.exit_code is None:
        limited = evidence.status not in (Status.SUCCEEDED, Status.FAILED, Status.SIGNALED)
        kind = ReportOutcome.LIMIT_EXCEEDED if limited else ReportOutcome.ERROR
        return kind, f"the process ended before it had reported ({evidence.status})"
    if evidence.collection_errors:
        return ReportOutcome.ERROR, f"{evidence.collection_errors} test file(s) could not be collected"
    if evidence.exit_code not in _USUAL_EXIT_CODES:
        what = _UNUSUAL_EXIT_CODES.get(evidence.exit_code, "unknown")
        return ReportOutcome.ERROR, f"pytest ended with exit code {evidence.exit_code} ({what})"
    return _of_tests(evidence)


def _of_tests(evidence: ReportEvidence) -> tuple[ReportOutcome, str]:
    counts: dict[TestOutcome, int] = {}
    for test in evidence.tests:
        counts[test.outcome] = counts.get(test.outcome, 0) + 1
    total = len(evidence.tests)
    others = ", ".join(
        f"{number} {kind.lower()}" for kind, number in sorted(counts.items()) if kind is not TestOutcome.PASSED
    )
    if total != evidence.collected:
        return ReportOutcome.ERROR, f"{evidence.collected} tests were collected and {total} reported"
    if total == 0 or counts.get(TestOutcome.SKIPPED, 0) == total:
        return ReportOutcome.NO_TESTS, "no test ran" + (f": {others}" if others else "")
    if counts.get(TestOutcome.ERROR) and not counts.get(TestOutcome.FAILED):
        return ReportOutcome.ERROR, f"{others} of {total} tests"
    if any(not _as_expected(test) for test in evidence.tests):
        return ReportOutcome.FAILED, f"{others} of {total} tests"
    if evidence.exit_code != 0:
        return ReportOutcome.ERROR, f"pytest ended with exit code {evidence.exit_code} although every test passed"
    return ReportOutcome.PASSED, ""


def _as_expected(test: TestCase) -> bool:
    """Passed, or skipped or failed as the tests themselves want it: a skip out of the code under test is no pass."""
    wanted = test.by_tests and test.outcome in (TestOutcome.SKIPPED, TestOutcome.XFAILED)
    return test.outcome is TestOutcome.PASSED or wanted
