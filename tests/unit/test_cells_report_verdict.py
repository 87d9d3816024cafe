"""What a test run's evidence means: every outcome, every check of its integrity; unknown is never a pass."""

import itertools
from dataclasses import replace

import pytest

from sandbox_service.cells.report_verdict import (
    Canaries,
    Candidate,
    Plan,
    ReportEvidence,
    coverage_missing,
    integrity,
    outcome,
)
from sandbox_service.domain import ReportOutcome, Status, TestCase, TestIsolation, TestOutcome


def case(kind, *, by_tests=True, name="t"):
    return TestCase(name, kind, by_tests=by_tests)


def case_named(name):
    return case(TestOutcome.PASSED, name=f"f::{name}")


def run(*tests, status=Status.SUCCEEDED, exit_code=0, collected=None, errors=0, broken="", **more):
    count = len(tests) if collected is None else collected
    return ReportEvidence(status, exit_code, count, tests, errors, broken, **more)


P, F, E = case(TestOutcome.PASSED), case(TestOutcome.FAILED), case(TestOutcome.ERROR)
S, XF, XP, U = (case(getattr(TestOutcome, name)) for name in ("SKIPPED", "XFAILED", "XPASSED", "UNFINISHED"))
A, B1, B2 = map(case_named, ("a", "b[1]", "b[x::y]"))
LEFT = Candidate(Status.SUCCEEDED, "")
PLAN = Plan(TestIsolation.SEPARATE, read_only=True)
SKIPPED_BY_CODE, XFAILED_BY_CODE = replace(S, by_tests=False), replace(XF, by_tests=False)

OUTCOMES = [
    (run(P), ReportOutcome.PASSED, ""),
    (run(P, P, P), ReportOutcome.PASSED, ""),
    (run(P, S), ReportOutcome.PASSED, ""),
    (run(P, XF), ReportOutcome.PASSED, ""),
    (run(XF), ReportOutcome.PASSED, ""),
    (run(P, F, exit_code=1, status=Status.FAILED), ReportOutcome.FAILED, "1 failed of 2"),
    (run(P, XP), ReportOutcome.FAILED, "1 xpassed of 2"),
    (run(P, SKIPPED_BY_CODE), ReportOutcome.FAILED, "1 skipped of 2"),
    (run(P, XFAILED_BY_CODE), ReportOutcome.FAILED, "1 xfailed of 2"),
    (run(P, U), ReportOutcome.FAILED, "1 unfinished of 2"),
    (run(P, E, exit_code=1), ReportOutcome.ERROR, "1 error of 2"),
    (run(F, E, exit_code=1), ReportOutcome.FAILED, "1 error, 1 failed of 2"),
    (run(exit_code=5), ReportOutcome.NO_TESTS, "no test ran"),
    (run(), ReportOutcome.NO_TESTS, "no test ran"),
    *[(run(exit_code=code), ReportOutcome.ERROR, "") for code in (2, 3, 4)],  # interrupted, broken, wrongly called
    (run(S, S), ReportOutcome.NO_TESTS, "2 skipped"),
    (run(SKIPPED_BY_CODE), ReportOutcome.NO_TESTS, "1 skipped"),
    (run(P, collected=2), ReportOutcome.INCOMPLETE, "2 tests were collected and 1 reported"),
    (run(P, P, collected=1), ReportOutcome.INCOMPLETE, "1 tests were collected and 2 reported"),
    (run(P, collected=0), ReportOutcome.INCOMPLETE, "0 tests were collected"),
    (run(P, exit_code=1), ReportOutcome.ERROR, "exit code 1"),
    (run(P, exit_code=3), ReportOutcome.ERROR, "exit code 3"),
    (run(P, exit_code=5), ReportOutcome.ERROR, "exit code 5"),
    (run(P, errors=1, exit_code=2), ReportOutcome.ERROR, "1 test file(s) could not be collected"),
    (run(P, exit_code=None), ReportOutcome.INCOMPLETE, "SUCCEEDED"),
    (run(P, exit_code=None, status=Status.FAILED), ReportOutcome.INCOMPLETE, "FAILED"),
    (run(P, exit_code=None, status=Status.SIGNALED), ReportOutcome.INCOMPLETE, "SIGNALED"),
    *[(run(P, exit_code=None, status=status), ReportOutcome.LIMIT_EXCEEDED, str(status)) for status in (
        Status.CPU_LIMIT, Status.MEMORY_LIMIT, Status.OUTPUT_LIMIT, Status.DISK_LIMIT, Status.PROCESS_LIMIT)],
    (run(P, status=Status.TIMED_OUT, exit_code=None), ReportOutcome.TIMED_OUT, "wall time"),
    (run(P, status=Status.TIMED_OUT), ReportOutcome.TIMED_OUT, "wall time"),
    (run(P, broken="ValueError: x"), ReportOutcome.ERROR, "broke off: ValueError: x"),
    (run(P, broken="x", status=Status.TIMED_OUT), ReportOutcome.ERROR, "broke off"),
    # what was expected
    (run(A, expected=["f::a", "f::b"]), ReportOutcome.INCOMPLETE, "1 expected test(s) did not report: f::b"),
    (run(A, B1, B2, expected=["f::a", "f::b"]), ReportOutcome.PASSED, ""),
    (run(A, expected=["f::a", "g::b"], skipped_files=["g"]), ReportOutcome.PASSED, ""),
    (run(expected=["g::b"], skipped_files=["g"], exit_code=5), ReportOutcome.NO_TESTS, "no test ran"),
    (run(expected=["g::b"], exit_code=5), ReportOutcome.INCOMPLETE, "g::b"),
    (run(A, exit_code=None, expected=["f::a", "f::b"]), ReportOutcome.INCOMPLETE, "f::b"),
    (run(A, replace(U, node_id="f::b"), expected=["f::a", "f::b"], exit_code=None), ReportOutcome.INCOMPLETE, "f::b"),
    (run(A, expected=[f"f::{n}" for n in "abcdefghijkl"]), ReportOutcome.INCOMPLETE, "and 3 more"),
    # what was seen of tampering comes before all else
    (run(P, tampering="Function.runtest was replaced"), ReportOutcome.TAMPERED, "Function.runtest was replaced"),
    (run(F, tampering="x", status=Status.TIMED_OUT, exit_code=None), ReportOutcome.TAMPERED, "x"),
    (run(P, broken="forged", tampering="forged"), ReportOutcome.TAMPERED, "forged"),
    (run(P, canaries=Canaries(4, 3, "PASSED")), ReportOutcome.TAMPERED, "must fail did not: PASSED"),
    (run(P, canaries=Canaries(4, 4)), ReportOutcome.PASSED, ""),
    (run(P, canaries=Canaries(4, 3)), ReportOutcome.INCOMPLETE, "1 of 4 canaries"),
    # two cells
    (run(P, plan=replace(PLAN, refused="needs plain data: a.py:1 …")), ReportOutcome.ERROR, "plain data"),
    (run(F, unplain="a.py:1 passes a function to m.f", exit_code=1), ReportOutcome.ERROR, "need isolation SHARED"),
    (run(F, exit_code=1, gone="it ended", candidate=LEFT), ReportOutcome.FAILED, "exit code 0"),
    (run(F, exit_code=1, gone="x", candidate=replace(LEFT, reason="code 3")), ReportOutcome.FAILED, "x (code 3)"),
    (run(F, exit_code=1, gone="it ended"), ReportOutcome.FAILED, "it was ended"),
    (run(errors=1, exit_code=2, gone="it ended"), ReportOutcome.FAILED, "it ended"),
    (run(P, candidate=Candidate(Status.SUCCEEDED, "")), ReportOutcome.PASSED, ""),
    *[(run(P, candidate=Candidate(status, "over it")), ReportOutcome.LIMIT_EXCEEDED, "over it") for status in (
        Status.CPU_LIMIT, Status.MEMORY_LIMIT, Status.OUTPUT_LIMIT, Status.DISK_LIMIT, Status.PROCESS_LIMIT)],
    (run(P, status=Status.VIOLATION), ReportOutcome.ERROR, "forbidden system call"),
]  # fmt: skip


@pytest.mark.parametrize(("evidence", "expected", "said"), OUTCOMES)
def test_an_outcome_is_what_was_reported(evidence, expected, said):
    verdict, reason = outcome(evidence)
    assert verdict is expected
    assert said in reason
    assert bool(reason) == (verdict is not ReportOutcome.PASSED)


def test_every_outcome_has_a_case():
    assert {expected for _evidence, expected, _said in OUTCOMES} == set(ReportOutcome)


def test_passed_needs_all_of_its_conditions_at_once():
    choices = {
        "tests": [(P, P), (P, XF), (P, F), (P, SKIPPED_BY_CODE), (S, S), ()],
        "status": list(Status),
        "exit_code": [0, 1, 2, 3, 4, 5, None],
        "missing": [0, 1],
        "errors": [0, 1],
        "broken": ["", "x"],
    }
    for tests, status, exit_code, missing, errors, broken in itertools.product(*choices.values()):
        given_evidence = ReportEvidence(status, exit_code, len(tests) + missing, tests, errors, broken)
        good = tests in ((P, P), (P, XF)) and exit_code == 0 and not (missing or errors or broken)
        good = good and status not in (Status.TIMED_OUT, Status.VIOLATION)
        assert (outcome(given_evidence)[0] is ReportOutcome.PASSED) == good, given_evidence


@pytest.mark.parametrize(
    ("framework", "name"),
    [("pytest 9.2.0", "pytest"), ("node --test 18.19.0", "node --test"), ("", "the test framework")],
)
def test_an_end_names_the_framework_that_ended(framework, name):
    assert outcome(run(exit_code=4, framework=framework))[1].startswith(f"{name} ended with exit code 4")
    assert outcome(run(P, exit_code=1, framework=framework))[1].startswith(f"{name} ended with exit code 1")


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        (run(plan=replace(PLAN, refused="needs plain data"), exit_code=None), "no test ran: needs plain data"),
        (run(unplain="a.py:1 passes a function", exit_code=None), "no test ran: a.py:1"),
        (run(P, broken="nonsense"), "broke off: nonsense"),
        (run(U, exit_code=None, status=Status.TIMED_OUT), "ended before the coverage was told (TIMED_OUT)"),
        (run(F, exit_code=1, gone="it ended", candidate=LEFT), "it ended (exit code 0)"),
        (run(exit_code=5), "no test ran"),
        (run(P), "no python file under test could be measured"),
    ],
)
def test_why_there_is_no_coverage_is_told(evidence, said):
    assert said in coverage_missing(evidence)


def checks(evidence, asked=TestIsolation.AUTO):
    found = integrity(evidence, asked)
    return found.isolation, {check.name: (check.held, check.detail) for check in found.checks}


def test_a_separate_run_names_the_three_checks_that_it_has():
    isolation, found = checks(run(A, plan=PLAN, expected=["f::a"]))
    assert isolation is TestIsolation.SEPARATE
    assert found == {
        "read_only_tests": (True, ""), "expected_tests": (True, "all 1 reported"), "handshake": (True, ""),
    }  # fmt: skip


def test_a_shared_run_has_canaries_too_and_its_reason():
    plan = Plan(TestIsolation.SHARED, reason="t.py:3 makes a function", read_only=True)
    evidence = run(A, plan=plan, expected=["f::a"], canaries=Canaries(4, 4))
    assert integrity(evidence, TestIsolation.AUTO).reason == "t.py:3 makes a function"
    assert checks(evidence)[1]["canaries"] == (True, "4 of 4 failed as they must")


@pytest.mark.parametrize(
    ("evidence", "name", "said"),
    [
        (run(A, plan=PLAN, expected=["f::a", "f::b"]), "expected_tests", "f::b"),
        (run(A, plan=PLAN, expected=["f::a"], collected=2), "expected_tests", ""),
        (run(A, plan=replace(PLAN, read_only=False)), "read_only_tests", ""),
        (run(A, plan=PLAN, exit_code=None), "handshake", "SUCCEEDED"),
        (run(A, plan=PLAN, broken="nonsense"), "handshake", "nonsense"),
        (run(A, plan=PLAN, canaries=Canaries(4, 2, "PASSED")), "canaries", "PASSED"),
        (run(A, plan=PLAN, canaries=Canaries(4, 3)), "canaries", "3 of 4"),
        (run(A, plan=PLAN, tampering="pytest.raises was replaced"), "canaries", "pytest.raises"),
        (run(A, exit_code=None), "handshake", "SUCCEEDED"),
    ],
)
def test_a_check_that_does_not_hold_says_what_was_seen(evidence, name, said):
    held, detail = checks(evidence)[1][name]
    assert not held
    assert said in detail


def test_that_more_tests_may_be_there_is_said():
    plan = replace(PLAN, is_open="pytest_plugins in conftest.py chooses them")
    assert "conftest.py" in checks(run(A, plan=plan))[1]["expected_tests"][1]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (TestIsolation.AUTO, TestIsolation.SHARED),
        (TestIsolation.SHARED, TestIsolation.SHARED),
        (TestIsolation.SEPARATE, TestIsolation.SEPARATE),
    ],
)
def test_a_run_that_settled_nothing_claims_no_separation_that_nobody_asked_for(asked, told):
    assert checks(run(exit_code=None), asked)[0] is told
