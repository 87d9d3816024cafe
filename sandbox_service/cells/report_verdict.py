"""Decides what a test run's evidence means: its outcome, and which checks of its integrity held.

Pure functions of structured fields. Unknown is never a pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sandbox_service.domain import (
    Integrity,
    IntegrityCheck,
    ReportOutcome,
    Status,
    TestCase,
    TestIsolation,
    TestOutcome,
)

_USUAL_EXIT_CODES = frozenset({0, 1, 5})
"""All passed, some failed, none collected: pytest.ExitCode, which every reporter here uses."""
_UNUSUAL_EXIT_CODES = {2: "interrupted", 3: "internal error", 4: "a test asked for is not there"}
_ENDED_BY_ITSELF = (Status.SUCCEEDED, Status.FAILED, Status.SIGNALED)
_LISTED = 8
"""Names of tests in a reason."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was settled before the code under test was imported.

    Attributes:
        isolation: where it runs.
        reason: why it is SHARED although nobody asked for it.
        refused: why the tests cannot run; empty: they can.
        is_open: why more tests may report than are expected; empty: there are no others.
        read_only: the tests' place cannot be written to.
    """

    isolation: TestIsolation
    reason: str = ""
    refused: str = ""
    is_open: str = ""
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Canaries:
    """Tests that had to fail: how many, how many did, and what was seen of the first that did not."""

    planned: int = 0
    failed: int = 0
    alive: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """How the cell of the code under test ended, where it had one: by itself, or for a limit."""

    status: Status
    reason: str


@dataclass(frozen=True, slots=True)
class ReportEvidence:
    """What was seen of a test run.

    Attributes:
        status: how its process ended.
        exit_code: what the test framework said at its end; None: it never came to it.
        collected: tests that were to report.
        tests: tests that did.
        collection_errors: files that could not be collected.
        broken: what was wrong with the report itself; empty: nothing.
        plan: what was settled before; None: nothing was said of it.
        expected: node ids, without parameters, that had to report.
        skipped_files: files that the tests themselves skip as a whole.
        canaries: what became of them.
        tampering: what was found changed in the test framework; empty: nothing.
        unplain: what a test handed to code that runs elsewhere, and could not; empty: nothing.
        gone: why code that runs elsewhere answered no more; empty: it did to the end.
        candidate: how the other cell ended; None: there was none.
        framework: name and version of the test framework; empty: it never came to tell them.
    """

    status: Status
    exit_code: int | None
    collected: int
    tests: Sequence[TestCase]
    collection_errors: int
    broken: str = ""
    plan: Plan | None = None
    expected: Sequence[str] = ()
    skipped_files: Sequence[str] = ()
    canaries: Canaries = Canaries()
    tampering: str = ""
    unplain: str = ""
    gone: str = ""
    candidate: Candidate | None = None
    framework: str = ""

    @property
    def framework_name(self) -> str:
        """Its name without its version."""
        return self.framework.rpartition(" ")[0] or self.framework or "the test framework"


def outcome(evidence: ReportEvidence) -> tuple[ReportOutcome, str]:
    """What a test run says, and why. PASSED needs an end, no error, and every expected test reported as passed."""
    if seen := _tampering(evidence):
        return ReportOutcome.TAMPERED, seen
    if evidence.plan is not None and evidence.plan.refused:
        return ReportOutcome.ERROR, evidence.plan.refused
    if evidence.status is Status.VIOLATION:
        return ReportOutcome.ERROR, "the run was ended for a forbidden system call"
    if evidence.unplain:
        return ReportOutcome.ERROR, f"{evidence.unplain}: these tests need isolation SHARED"
    if evidence.broken:
        return ReportOutcome.ERROR, f"the report broke off: {evidence.broken}"
    return _of_end(evidence) or _of_tests(evidence)


def _tampering(evidence: ReportEvidence) -> str:
    if evidence.tampering:
        return evidence.tampering
    canaries = evidence.canaries
    if canaries.alive:
        return f"a test that must fail did not: {canaries.alive}"
    return ""


def _of_end(evidence: ReportEvidence) -> tuple[ReportOutcome, str] | None:
    """What the end of the run says already, whatever its tests say."""
    candidate = evidence.candidate
    if evidence.status is Status.TIMED_OUT:
        return ReportOutcome.TIMED_OUT, "the tests were still running at the wall time limit"
    if candidate is not None and candidate.status not in _ENDED_BY_ITSELF:
        return ReportOutcome.LIMIT_EXCEEDED, f"the code under test was ended: {candidate.reason}"
    if evidence.exit_code is None:
        return _without_end(evidence)
    if evidence.collection_errors:
        unread = f"{evidence.collection_errors} test file(s) could not be collected"
        return (ReportOutcome.FAILED, _gone(evidence)) if evidence.gone else (ReportOutcome.ERROR, unread)
    if evidence.exit_code not in _USUAL_EXIT_CODES:
        what = _UNUSUAL_EXIT_CODES.get(evidence.exit_code, "unknown")
        return ReportOutcome.ERROR, f"{evidence.framework_name} ended with exit code {evidence.exit_code} ({what})"
    return None


def _without_end(evidence: ReportEvidence) -> tuple[ReportOutcome, str]:
    reason = f"the process ended before it had reported ({evidence.status})"
    if evidence.status not in _ENDED_BY_ITSELF:
        return ReportOutcome.LIMIT_EXCEEDED, reason
    missing = _named(_missing(evidence), "did not report")
    return ReportOutcome.INCOMPLETE, f"{reason}; {missing}" if missing else reason


def _gone(evidence: ReportEvidence) -> str:
    how = evidence.candidate.reason or "exit code 0" if evidence.candidate else "it was ended"
    return f"{evidence.gone} ({how})"


def _of_tests(evidence: ReportEvidence) -> tuple[ReportOutcome, str]:
    counts: dict[TestOutcome, int] = {}
    for test in evidence.tests:
        counts[test.outcome] = counts.get(test.outcome, 0) + 1
    total = len(evidence.tests)
    others = ", ".join(
        f"{number} {kind.lower()}" for kind, number in sorted(counts.items()) if kind is not TestOutcome.PASSED
    )
    if vanished := _vanished(evidence):
        return ReportOutcome.INCOMPLETE, vanished
    if total == 0 or counts.get(TestOutcome.SKIPPED, 0) == total:
        return ReportOutcome.NO_TESTS, "no test ran" + (f": {others}" if others else "")
    if counts.get(TestOutcome.ERROR) and not counts.get(TestOutcome.FAILED):
        return ReportOutcome.ERROR, f"{others} of {total} tests"
    if any(not _as_expected(test) for test in evidence.tests):
        gone = f"; {_gone(evidence)}" if evidence.gone else ""
        return ReportOutcome.FAILED, f"{others} of {total} tests{gone}"
    return _of_passed(evidence)


def _vanished(evidence: ReportEvidence) -> str:
    """Which tests did not report although they must; "": none."""
    total = len(evidence.tests)
    if total != evidence.collected:
        return f"{evidence.collected} tests were collected and {total} reported"
    return _named(_missing(evidence), "did not report")


def _of_passed(evidence: ReportEvidence) -> tuple[ReportOutcome, str]:
    """Where every test is as it should be: whether the run as a whole is, too."""
    if evidence.gone:  # a test that expects an exception takes that for one
        return ReportOutcome.FAILED, _gone(evidence)
    if evidence.exit_code != 0:
        ended = f"{evidence.framework_name} ended with exit code {evidence.exit_code}"
        return ReportOutcome.ERROR, f"{ended} although every test passed"
    if evidence.canaries.failed != evidence.canaries.planned:
        number = evidence.canaries.planned - evidence.canaries.failed
        return ReportOutcome.INCOMPLETE, f"{number} of {evidence.canaries.planned} canaries did not report"
    return ReportOutcome.PASSED, ""


def coverage_missing(evidence: ReportEvidence) -> str:
    """Why a run told no coverage of any file, for one that was asked for it: the first of these that holds."""
    unread = evidence.plan.refused if evidence.plan is not None else ""
    if evidence.exit_code is None:
        unread = unread or evidence.unplain
    reasons = (
        (unread, f"no test ran: {unread}"),
        (evidence.broken, f"the report broke off: {evidence.broken}"),
        (evidence.exit_code is None, f"the run ended before the coverage was told ({evidence.status})"),
        (evidence.gone, f"the code under test ended before the coverage was told: {_gone(evidence)}"),
        (not evidence.tests, "no test ran"),
        (True, "no python file under test could be measured; stderr says more where there is more to say"),
    )
    return next(text for holds, text in reasons if holds)


def _as_expected(test: TestCase) -> bool:
    """Passed, or skipped or failed as the tests themselves want it: a skip out of the code under test is no pass."""
    wanted = test.by_tests and test.outcome in (TestOutcome.SKIPPED, TestOutcome.XFAILED)
    return test.outcome is TestOutcome.PASSED or wanted


def _missing(evidence: ReportEvidence) -> list[str]:
    """Expected tests that did not report, but for those in files that the tests skip as a whole."""
    plain = {test.node_id.partition("[")[0] for test in evidence.tests if test.outcome is not TestOutcome.UNFINISHED}
    whole = {test.node_id for test in evidence.tests if test.outcome is not TestOutcome.UNFINISHED}
    return [
        node_id
        for node_id in evidence.expected
        if node_id not in plain and node_id not in whole and node_id.partition("::")[0] not in evidence.skipped_files
    ]


def _named(node_ids: Sequence[str], what: str) -> str:
    """How many tests, and the first of them by name."""
    if not node_ids:
        return ""
    listed = ", ".join(node_ids[:_LISTED])
    more = f" and {len(node_ids) - _LISTED} more" if len(node_ids) > _LISTED else ""
    return f"{len(node_ids)} expected test(s) {what}: {listed}{more}"


def integrity(evidence: ReportEvidence, asked: TestIsolation) -> Integrity:
    """How far the outcome can be trusted.

    Args:
        evidence: what was seen.
        asked: what the caller wanted, for a run that ended before it was settled.
    """
    plan = evidence.plan
    if plan is None:
        isolation = TestIsolation.SEPARATE if asked is TestIsolation.SEPARATE else TestIsolation.SHARED
        return Integrity(isolation, "the run ended before anything was settled", (_handshake(evidence),))
    checks = [
        IntegrityCheck("read_only_tests", held=plan.read_only),
        _expected(evidence, plan),
        _handshake(evidence),
    ]
    if evidence.canaries.planned or evidence.tampering:
        checks.append(_canaries(evidence))
    return Integrity(plan.isolation, plan.reason, tuple(checks))


def _expected(evidence: ReportEvidence, plan: Plan) -> IntegrityCheck:
    missing = _missing(evidence)
    number = len(evidence.expected)
    detail = _named(missing, "did not report") or f"all {number} reported"
    if plan.is_open:
        detail += f"; there may be others: {plan.is_open}"
    return IntegrityCheck(
        "expected_tests", held=not missing and len(evidence.tests) == evidence.collected, detail=detail
    )


def _handshake(evidence: ReportEvidence) -> IntegrityCheck:
    held = evidence.exit_code is not None and not evidence.broken
    detail = evidence.broken or ("" if held else f"the process ended before it had reported ({evidence.status})")
    return IntegrityCheck("handshake", held=held, detail=detail)


def _canaries(evidence: ReportEvidence) -> IntegrityCheck:
    canaries = evidence.canaries
    held = not _tampering(evidence) and canaries.failed == canaries.planned
    detail = _tampering(evidence) or f"{canaries.failed} of {canaries.planned} failed as they must"
    return IntegrityCheck("canaries", held=held, detail=detail)
