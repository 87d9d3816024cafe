from datetime import timedelta

import pytest
from codemend.sandbox.v1 import sandbox_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from sandbox_service.domain import (
    DEFAULT_LIMITS,
    MIB,
    CollectionError,
    Comparison,
    Failure,
    File,
    FileCoverage,
    Integrity,
    IntegrityCheck,
    Isolation,
    Output,
    ReportOutcome,
    Result,
    Status,
    TestCase,
    TestIsolation,
    TestOutcome,
    TestReport,
)
from sandbox_service.replies import limits_to, report_to, result_to, update_to
from sandbox_service.session_jobs import WorkspaceUpdate

KIB = 1024
ISOLATION = Isolation("process", ("rlimits",))


def result(**fields):
    return Result(**{"status": Status.FAILED, "isolation": ISOLATION, **fields})


def case(number, outcome=TestOutcome.PASSED, size=0):
    failure = Failure("AssertionError", "m" * size, "a.py:1", "t" * size) if size else None
    return TestCase(f"test_a.py::test_{number}", outcome, failure=failure, stdout=b"o" * size)


@pytest.mark.parametrize("status", Status)
def test_every_status_has_its_value_in_the_contract(status):
    assert pb.ExecutionStatus.Name(result_to(result(status=status)).status) == f"EXECUTION_STATUS_{status}"


@pytest.mark.parametrize("outcome", ReportOutcome)
def test_every_report_outcome_has_its_value_in_the_contract(outcome):
    assert pb.ReportOutcome.Name(report_to(TestReport(outcome)).outcome) == f"REPORT_OUTCOME_{outcome}"


@pytest.mark.parametrize("outcome", TestOutcome)
def test_every_test_outcome_has_its_value_and_its_count_in_the_contract(outcome):
    report = report_to(TestReport(ReportOutcome.FAILED, tests=(case(1, outcome),), counts={outcome: 3}))
    assert pb.TestOutcome.Name(report.tests[0].outcome) == f"TEST_OUTCOME_{outcome}"
    assert report.counts.total == 3
    assert sum(value for descriptor, value in report.counts.ListFields() if descriptor.name != "total") == 3


def test_an_execution_keeps_every_field():
    message = result_to(
        result(
            reason="why",
            exit_code=0,
            stdout=Output(b"\xff\x00", b"", 0),
            wall_time=timedelta(seconds=1.5),
            cpu_time=timedelta(seconds=1),
            peak_memory_bytes=7,
            files=(File("b", b"2"), File("a", b"1", executable=True)),
            files_left_out=("c",),
            queue_time=timedelta(milliseconds=3),
        )
    )
    assert message.HasField("exit_code")
    assert not message.HasField("signal")
    assert message.stdout.head == b"\xff\x00"
    assert (message.wall_time.seconds, message.wall_time.nanos) == (1, 500_000_000)
    assert [(file.path, file.content, file.executable) for file in message.files] == [
        ("a", b"1", True),
        ("b", b"2", False),
    ]
    assert list(message.files_left_out) == ["c"]
    assert message.queue_time.nanos == 3_000_000
    assert (message.isolation.cell, list(message.isolation.protections)) == ("process", ["rlimits"])


@given(st.integers(0, 700 * KIB), st.integers(0, 700 * KIB), st.integers(0, 10**12), st.booleans())
def test_output_over_its_cap_keeps_head_and_tail_and_counts_what_lies_between(head, tail, dropped, is_whole):
    output = Output(b"h" * head, b"" if is_whole else b"t" * tail, 0 if is_whole else dropped)
    message = result_to(result(stdout=output)).stdout
    assert len(message.head) + len(message.tail) <= 512 * KIB
    total = len(output.head) + len(output.tail) + output.dropped_bytes
    assert len(message.head) + len(message.tail) + message.dropped_bytes == total
    assert output.head.startswith(message.head)
    assert (output.head + output.tail).endswith(message.tail)


def test_files_over_their_caps_are_left_out_by_name():
    files = tuple(File(f"f{number:03}", b"") for number in range(300))
    message = result_to(result(files=files))
    assert len(message.files) == 256
    assert list(message.files_left_out) == [f"f{number:03}" for number in range(256, 300)]
    message = result_to(result(files=(File("a", b"x" * MIB), File("b", b"small"))))
    assert [file.path for file in message.files] == ["b"]
    assert list(message.files_left_out) == ["a"]


def test_text_that_a_proto_string_refuses_is_escaped():
    report = TestReport(
        ReportOutcome.FAILED,
        reason="\udcff",
        tests=(TestCase("\ud800::t", TestOutcome.FAILED, failure=Failure("E", "\udcfe", "", "")),),
        collection_errors=(CollectionError("\udcfd", Failure(message="\udcfc")),),
    )
    message = report_to(report)
    assert message.reason == "\\udcff"
    assert message.tests[0].failure.message == "\\udcfe"
    assert message.collection_errors[0].path == "\\udcfd"
    assert result_to(result(reason="\ud800", files_left_out=("\udcff",))).files_left_out[0] == "\\udcff"


def test_long_details_are_cut_with_a_mark_and_inside_no_character():
    failure = Failure("E", "ü" * 5000, "", "x" * 20_000, Comparison("==", "l" * 2000, "r" * 2000))
    message = report_to(
        TestReport(
            ReportOutcome.FAILED, tests=(TestCase("t", TestOutcome.FAILED, failure=failure, stdout=b"ab" * 8192),)
        )
    ).tests[0]
    assert len(message.failure.message.encode()) <= 4 * KIB
    assert set(message.failure.message) == {"ü", "…"}
    assert len(message.failure.traceback.encode()) == 16 * KIB
    assert message.failure.comparison.left.endswith("…")
    assert message.stdout == b"ab" * 4096


def test_a_report_that_fits_keeps_all_in_order():
    tests = tuple(case(n, TestOutcome.FAILED if n % 2 else TestOutcome.PASSED, 100) for n in range(20))
    message = report_to(TestReport(ReportOutcome.FAILED, tests=tests))
    assert [entry.node_id for entry in message.tests] == [entry.node_id for entry in tests]
    assert all(entry.failure.message for entry in message.tests)
    assert message.tests_left_out == 0


def test_failed_tests_keep_their_details_before_others_do():
    tests = tuple(case(n, TestOutcome.FAILED if n >= 1000 else TestOutcome.PASSED, 4000) for n in range(1050))
    message = report_to(TestReport(ReportOutcome.FAILED, tests=tests))
    assert len(message.tests) == 1050
    assert all(entry.failure.message for entry in message.tests[1000:])
    assert not all(entry.failure.message for entry in message.tests[:1000])
    assert sum(entry.ByteSize() for entry in message.tests) <= MIB


def test_entries_are_left_out_last_and_counted_with_those_left_out_before():
    tests = tuple(case(n, TestOutcome.FAILED if n == 49_999 else TestOutcome.PASSED) for n in range(50_000))
    message = report_to(TestReport(ReportOutcome.FAILED, tests=tests, tests_left_out=7))
    assert message.tests[-1].node_id == "test_a.py::test_49999"
    assert message.tests_left_out == 50_007 - len(message.tests)
    assert sum(entry.ByteSize() for entry in message.tests) <= MIB


def test_with_everything_at_its_worst_a_reply_fits_into_a_message():
    huge = "\U0001f600" * 20_000
    failure = Failure(huge, huge, huge, huge, Comparison(huge, huge, huge))
    output = Output(b"h" * MIB, b"t" * MIB, 10**15)
    execution = result(
        reason=huge,
        stdout=output,
        stderr=output,
        files=tuple(File(f"{n:04}" + "é" * 510, b"x" * 3500) for n in range(600)),
        files_left_out=tuple("l" * 5000 for _ in range(600)),
    )
    report = TestReport(
        ReportOutcome.ERROR,
        huge,
        (TestCase(huge, TestOutcome.FAILED, failure=failure, stdout=b"x" * MIB, stderr=b"y" * MIB),) * 2000,
        collection_errors=tuple(CollectionError(huge, failure) for _ in range(500)),
        framework=huge,
        integrity=Integrity(TestIsolation.SHARED, huge, (IntegrityCheck(huge[:30], held=False, detail=huge),) * 4),
        coverage=(FileCoverage(huge, 10**6, tuple(range(10**6)), 10**6, 10**6, ((10**6, 10**6),) * 9999, 9999),) * 600,
    )
    reply = pb.RunTestsResponse(report=report_to(report), execution=result_to(execution))
    reply.execution.workspace.CopyFrom(
        update_to(WorkspaceUpdate(kept=False, reason=huge, left_out=(b"\xff" * 300,) * 600))
    )
    assert sum(len(file.content) + len(file.path.encode()) for file in reply.execution.files) <= MIB
    assert 3.8 * MIB < reply.ByteSize() < 3.9 * MIB
    assert reply.report.collection_errors[0].failure.traceback


def test_limits_come_with_every_field_set():
    message = limits_to(DEFAULT_LIMITS)
    assert {descriptor.name for descriptor, _ in message.ListFields()} == {
        descriptor.name for descriptor in pb.Limits.DESCRIPTOR.fields
    }
    assert message.wall_time.ToTimedelta() == DEFAULT_LIMITS.wall_time
