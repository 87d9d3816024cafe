"""What evidence means: every status of an execution, every outcome of a test run; unknown is never a success."""

import itertools
import signal
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_service.cells.verdict import Evidence, Kill, ReportEvidence, ending, outcome
from sandbox_service.domain import DEFAULT_LIMITS, ReportOutcome, Status, TestCase, TestOutcome

LIMITS = replace(DEFAULT_LIMITS, wall_time=timedelta(seconds=2), cpu_time=timedelta(seconds=1.5))


def exited(code):
    return code << 8


ENDINGS = [
    (Evidence(exited(0)), Status.SUCCEEDED, 0, None, ""),
    (Evidence(exited(1)), Status.FAILED, 1, None, "exit code 1"),
    (Evidence(exited(255)), Status.FAILED, 255, None, "exit code 255"),
    (Evidence(signal.SIGKILL), Status.SIGNALED, None, 9, "SIGKILL"),
    (Evidence(signal.SIGSEGV | 0x80), Status.SIGNALED, None, 11, "SIGSEGV"),  # with the bit of a core file
    (Evidence(50), Status.SIGNALED, None, 50, "50"),
    (Evidence(signal.SIGKILL, kill=Kill.WALL_TIME), Status.TIMED_OUT, None, 9, "2 s of wall time"),
    (Evidence(None, kill=Kill.WALL_TIME), Status.TIMED_OUT, None, 9, "2 s of wall time"),
    (Evidence(exited(0), kill=Kill.WALL_TIME), Status.TIMED_OUT, None, 9, "2 s of wall time"),
    (Evidence(9, kill=Kill.CPU_TIME), Status.CPU_LIMIT, None, 9, "1.5 s of processor time"),
    (Evidence(9, kill=Kill.OUTPUT), Status.OUTPUT_LIMIT, None, 9, str(LIMITS.output_bytes)),
    (Evidence(9, kill=Kill.WALL_TIME, process_limit_hits=3), Status.TIMED_OUT, None, 9, "64 processes"),
    (Evidence(signal.SIGXCPU), Status.CPU_LIMIT, None, int(signal.SIGXCPU), "1.5 s"),
    (Evidence(signal.SIGXFSZ), Status.DISK_LIMIT, None, int(signal.SIGXFSZ), str(LIMITS.file_bytes)),
    (Evidence(exited(1), file_limit_met=True), Status.DISK_LIMIT, 1, None, str(LIMITS.file_bytes)),
    (Evidence(exited(1), disk_full=True), Status.DISK_LIMIT, 1, None, str(LIMITS.disk_bytes)),
    (Evidence(9, out_of_memory_kills=1), Status.MEMORY_LIMIT, None, 9, str(LIMITS.memory_bytes)),
    (Evidence(exited(1), out_of_memory_kills=1), Status.MEMORY_LIMIT, 1, None, str(LIMITS.memory_bytes)),
    (Evidence(exited(1), memory_error=True), Status.MEMORY_LIMIT, 1, None, str(LIMITS.memory_bytes)),
    (Evidence(None, out_of_memory_kills=1), Status.MEMORY_LIMIT, None, None, str(LIMITS.memory_bytes)),
    (Evidence(exited(1), process_limit_hits=1), Status.PROCESS_LIMIT, 1, None, "64 processes"),
    (Evidence(exited(1), process_limit_hits=1, disk_full=True), Status.DISK_LIMIT, 1, None, "disk"),
    (Evidence(9, process_limit_hits=1, out_of_memory_kills=1), Status.MEMORY_LIMIT, None, 9, "memory"),
    # a program that met a limit, went on and ended well has succeeded
    (Evidence(exited(0),
              out_of_memory_kills=1, process_limit_hits=1, disk_full=True, file_limit_met=True, memory_error=True),
     Status.SUCCEEDED, 0, None, ""),
]  # fmt: skip


@pytest.mark.parametrize(("evidence", "status", "code", "number", "said"), ENDINGS)
def test_an_ending_is_what_its_evidence_says(evidence, status, code, number, said):
    found = ending(evidence, LIMITS)
    assert (found.status, found.exit_code, found.signal) == (status, code, number)
    assert said in found.reason
    assert bool(found.reason) == (status is not Status.SUCCEEDED)


def test_every_status_that_a_job_can_end_in_has_a_case():
    assert {status for _evidence, status, *_rest in ENDINGS} == set(Status) - {Status.CANCELLED}


def test_without_evidence_there_is_no_ending():
    assert ending(Evidence(None), LIMITS) is None


evidences = st.builds(
    Evidence,
    wait_status=st.none() | st.integers(0, 0xFFFF),
    kill=st.none() | st.sampled_from(Kill),
    out_of_memory_kills=st.integers(0, 3),
    process_limit_hits=st.integers(0, 3),
    disk_full=st.booleans(),
    file_limit_met=st.booleans(),
    memory_error=st.booleans(),
)


@given(evidences)
def test_only_a_program_that_ended_by_itself_with_zero_has_succeeded(evidence):
    found = ending(evidence, LIMITS)
    succeeded = found is not None and found.status is Status.SUCCEEDED
    assert succeeded == (evidence.kill is None and evidence.wait_status == 0)


@given(evidences)
def test_an_ending_has_an_exit_code_or_a_signal_never_both_and_a_reason(evidence):
    found = ending(evidence, LIMITS)
    if found is not None:
        assert found.exit_code is None or found.signal is None
        assert found.status is Status.SUCCEEDED or found.reason


def case(kind, *, by_tests=True, name="t"):
    return TestCase(name, kind, by_tests=by_tests)


def run(*tests, status=Status.SUCCEEDED, exit_code=0, collected=None, errors=0, broken=""):
    count = len(tests) if collected is None else collected
    return ReportEvidence(status, exit_code, count, tests, errors, broken)


P, F, E = case(TestOutcome.PASSED), case(TestOutcome.FAILED), case(TestOutcome.ERROR)
S, XF, XP, U = (case(getattr(TestOutcome, name)) for name in ("SKIPPED", "XFAILED", "XPASSED", "UNFINISHED"))
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
    (run(P, collected=2), ReportOutcome.ERROR, "2 tests were collected and 1 reported"),
    (run(P, P, collected=1), ReportOutcome.ERROR, "1 tests were collected and 2 reported"),
    (run(P, collected=0), ReportOutcome.ERROR, "0 tests were collected"),
    (run(P, exit_code=1), ReportOutcome.ERROR, "exit code 1"),
    (run(P, exit_code=3), ReportOutcome.ERROR, "exit code 3"),
    (run(P, exit_code=5), ReportOutcome.ERROR, "exit code 5"),
    (run(P, errors=1, exit_code=2), ReportOutcome.ERROR, "1 test file(s) could not be collected"),
    (run(P, exit_code=None), ReportOutcome.ERROR, "SUCCEEDED"),
    (run(P, exit_code=None, status=Status.FAILED), ReportOutcome.ERROR, "FAILED"),
    (run(P, exit_code=None, status=Status.SIGNALED), ReportOutcome.ERROR, "SIGNALED"),
    *[(run(P, exit_code=None, status=status), ReportOutcome.LIMIT_EXCEEDED, str(status)) for status in (
        Status.CPU_LIMIT, Status.MEMORY_LIMIT, Status.OUTPUT_LIMIT, Status.DISK_LIMIT, Status.PROCESS_LIMIT)],
    (run(P, status=Status.TIMED_OUT, exit_code=None), ReportOutcome.TIMED_OUT, "wall time"),
    (run(P, status=Status.TIMED_OUT), ReportOutcome.TIMED_OUT, "wall time"),
    (run(P, broken="ValueError: x"), ReportOutcome.ERROR, "broke off: ValueError: x"),
    (run(P, broken="x", status=Status.TIMED_OUT), ReportOutcome.ERROR, "broke off"),
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
        good = good and status is not Status.TIMED_OUT
        assert (outcome(given_evidence)[0] is ReportOutcome.PASSED) == good, given_evidence
