"""Failures from structured fields: fingerprints, one-line summaries, regressions, and what fits an event."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.workflows.failures import (
    error_count,
    fingerprint,
    for_event,
    name_some,
    normalise,
    one_line,
    regressions,
    summary,
)
from orchestrator.workflows.sandbox import (
    CollectionError,
    Comparison,
    Execution,
    ExecutionStatus,
    Failure,
    Output,
    ReportOutcome,
    TestCase,
    TestOutcome,
    TestReport,
)

RAN = Execution(ExecutionStatus.FAILED, exit_code=1)


def case(name, outcome=TestOutcome.FAILED, message="assert 1 == 2", kind="AssertionError", comparison=None):
    failure = Failure(kind, message, comparison=comparison) if outcome is TestOutcome.FAILED else None
    return TestCase(f"test_a.py::{name}", outcome, failure=failure)


def report(*tests, outcome=ReportOutcome.FAILED, **fields):
    counts = {}
    for test in tests:
        counts[test.outcome] = counts.get(test.outcome, 0) + 1
    return TestReport(outcome, tests=tests, counts=counts, **fields)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("<object at 0x7f3a>", "<object at 0x7fff>"),
        ("error on line 12", "error on line 99"),
        ("solution.py:3: in f", "solution.py:17: in f"),
        ("/tmp/abc/x.txt is missing", "/tmp/def/y.txt is missing"),
        ("took 0.123 s", "took 4.5 s"),
    ],
)
def test_what_differs_between_two_runs_of_the_same_code_does_not_count(one, other):
    first, second = (report(case("t", message=text)) for text in (one, other))
    assert fingerprint(first, RAN) == fingerprint(second, RAN)


@pytest.mark.parametrize(
    "other",
    [
        report(case("u")),
        report(case("t", kind="ValueError")),
        report(case("t", message="assert 1 == 3")),
        report(case("t"), case("u")),
        report(case("t", comparison=Comparison("==", "1", "2"))),
        report(outcome=ReportOutcome.TIMED_OUT),
    ],
)
def test_another_failure_has_another_fingerprint(other):
    assert fingerprint(report(case("t")), RAN) != fingerprint(other, RAN)


def test_the_order_of_tests_and_those_that_pass_do_not_count():
    first = report(case("t"), case("u"), case("v", TestOutcome.PASSED))
    assert fingerprint(first, RAN) == fingerprint(report(case("u"), case("t")), RAN)


def test_programs_are_told_apart_by_status_exit_code_and_last_line():
    def ran(stderr, code=1):
        return Execution(ExecutionStatus.FAILED, exit_code=code, stderr=Output(stderr))

    assert fingerprint(None, ran(b"a\nKeyError: 1\n")) == fingerprint(None, ran(b"b\nKeyError: 1\n"))
    assert fingerprint(None, ran(b"KeyError: 1")) != fingerprint(None, ran(b"KeyError: 2"))
    assert fingerprint(None, ran(b"")) != fingerprint(None, ran(b"", code=2))


@given(st.text())
def test_normalising_twice_changes_nothing(text):
    assert normalise(normalise(text)) == normalise(text)


@given(st.text(), st.integers(2, 50))
def test_one_line_is_one_line_of_the_length(text, limit):
    line = one_line(text, limit)
    assert len(line) <= limit
    assert len(line.splitlines()) <= 1


def test_the_summary_is_the_first_failing_assertion_and_the_number_of_others():
    failing = report(case("t", TestOutcome.PASSED), case("u", message="assert 3 == 4\n + where"), case("v"))
    assert summary(failing, RAN) == "test_a.py::u: assert 3 == 4 (and 1 more)"
    assert error_count(failing) == 2


def test_the_summary_of_an_exception_has_its_type():
    assert summary(report(case("t", message="boom", kind="ValueError")), RAN) == "test_a.py::t: ValueError: boom"


def test_the_summary_of_a_file_that_cannot_be_imported_is_the_import_error():
    text = "ImportError while importing test module\nTraceback:\nE   ImportError: cannot import name 'add'"
    error = CollectionError("test_a.py", Failure("CollectError", text, traceback=text))
    broken = TestReport(ReportOutcome.ERROR, collection_errors=(error,))
    assert summary(broken, RAN) == "test_a.py: ImportError: cannot import name 'add'"
    assert error_count(broken) == 1


def test_the_summary_of_a_limit_is_its_reason():
    timed_out = TestReport(ReportOutcome.TIMED_OUT, reason="the wall time limit of 10 s was met")
    assert summary(timed_out, RAN) == "the wall time limit of 10 s was met"


@pytest.mark.parametrize(
    ("execution", "expected"),
    [
        (
            Execution(ExecutionStatus.FAILED, exit_code=1, stderr=Output(b"x\nKeyError: 1\n")),
            "exit code 1: KeyError: 1",
        ),
        (Execution(ExecutionStatus.TIMED_OUT, reason="over 10 s"), "over 10 s"),
        (Execution(ExecutionStatus.SUCCEEDED, exit_code=0), "it ran to its end (exit code 0)"),
        (Execution(ExecutionStatus.FAILED, exit_code=3, stderr=Output(b"\xff\n")), "exit code 3: \\xff"),
    ],
)
def test_the_summary_of_a_program(execution, expected):
    assert summary(None, execution) == expected


def test_a_test_that_passed_and_now_fails_or_vanished_is_a_regression():
    before = report(*(case(name, TestOutcome.PASSED) for name in "abc"), case("d"))
    after = report(case("a", TestOutcome.PASSED), case("b"), case("d", TestOutcome.PASSED))
    assert regressions(before, after) == ("test_a.py::b", "test_a.py::c")


def test_a_test_that_a_cut_report_does_not_list_is_no_regression():
    before = report(case("a", TestOutcome.PASSED))
    assert regressions(before, report(case("b"), tests_left_out=1)) == ()


def test_many_names_are_shortened():
    assert name_some("abcde") == "a, b, c and 2 more"
    assert name_some("ab") == "a, b"


def test_an_event_holds_failing_tests_only_and_little_output():
    tests = [replace(case(f"t{number}"), stdout=b"x" * 8192) for number in range(40)]
    passed = case("p", TestOutcome.PASSED)
    loud = replace(RAN, stdout=Output(b"a" * 100_000, b"b" * 100_000, 7), stderr=Output(b"short"))
    execution, cut = for_event(loud, report(passed, *tests))
    assert len(cut.tests) == 16
    assert cut.tests_left_out == 25
    assert all(test.outcome is TestOutcome.FAILED and not test.stdout for test in cut.tests)
    kept = execution.stdout
    assert (len(kept.head), len(kept.tail)) == (1024, 1024)
    assert kept.dropped_bytes == 7 + 200_000 - 2048
    assert kept.tail == b"b" * 1024
    assert execution.stderr == Output(b"short")


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (ReportOutcome.TAMPERED, "the code reached into the test framework: the canaries passed"),
        (ReportOutcome.INCOMPLETE, "the tests did not come to their end: the canaries passed"),
    ],
)
def test_a_report_that_cannot_be_believed_is_summed_up_by_its_own_reason(outcome, words):
    told = report(case("a"), outcome=outcome, reason="the canaries passed")
    assert summary(told, RAN) == words


def test_two_reports_that_were_tampered_with_in_the_same_way_are_one_circle():
    one, same = (report(outcome=ReportOutcome.TAMPERED, reason=f"canaries at 0x{n} passed") for n in ("7f", "80"))
    other = report(outcome=ReportOutcome.TAMPERED, reason="the tests changed")
    assert fingerprint(one, RAN) == fingerprint(same, RAN)
    assert fingerprint(one, RAN) != fingerprint(other, RAN)


def test_a_forbidden_call_is_summed_up_and_told_apart_by_its_name():
    first, second = (Execution(ExecutionStatus.VIOLATION, f"made a forbidden system call: {n}") for n in ("bpf", "io"))
    assert summary(None, first) == "made a forbidden system call: bpf"
    assert fingerprint(None, first) != fingerprint(None, second)
