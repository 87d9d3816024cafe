"""Executions and test reports as the contract's messages. Texts lose what a proto string cannot hold, never more."""

from collections.abc import Iterable
from datetime import timedelta

from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import verdicts_pb2
from google.protobuf.duration_pb2 import Duration

from orchestrator.workflows.sandbox import (
    Execution,
    ExecutionStatus,
    Failure,
    File,
    Integrity,
    Output,
    ReportOutcome,
    TestCase,
    TestOutcome,
    TestReport,
)

EXECUTION_STATUS = {status: pb.ExecutionStatus.Value(f"EXECUTION_STATUS_{status.value}") for status in ExecutionStatus}
REPORT_OUTCOME = {outcome: pb.ReportOutcome.Value(f"REPORT_OUTCOME_{outcome.value}") for outcome in ReportOutcome}
_TEST_OUTCOME = {outcome: pb.TestOutcome.Value(f"TEST_OUTCOME_{outcome.value}") for outcome in TestOutcome}


def text(value: str) -> str:
    """The text without lone surrogates, which no proto string takes."""
    return value.encode("utf-8", "backslashreplace").decode()


def duration(time: timedelta) -> Duration:
    """A time for the wire."""
    message = Duration()
    message.FromTimedelta(time)
    return message


def files(values: Iterable[File]) -> list[pb.File]:
    """Files."""
    return [pb.File(path=text(file.path), content=file.content, executable=file.executable) for file in values]


def execution(value: Execution) -> pb.ExecutionResult:
    """What a program did, without its files."""
    return pb.ExecutionResult(
        status=EXECUTION_STATUS[value.status],
        reason=text(value.reason),
        exit_code=value.exit_code,
        signal=value.signal,
        stdout=_output(value.stdout),
        stderr=_output(value.stderr),
        wall_time=duration(value.wall_time),
        cpu_time=duration(value.cpu_time),
        peak_memory_bytes=value.peak_memory_bytes,
        isolation=pb.Isolation(cell=value.isolation.cell, protections=value.isolation.protections),
        queue_time=duration(value.queue_time),
    )


def report(value: TestReport) -> pb.TestReport:
    """What the tests say."""
    return pb.TestReport(
        outcome=REPORT_OUTCOME[value.outcome],
        reason=text(value.reason),
        tests=[_test(test) for test in value.tests],
        counts=_counts(value),
        tests_left_out=value.tests_left_out,
        collection_errors=[
            pb.CollectionError(path=text(error.path), failure=_failure(error.failure))
            for error in value.collection_errors
        ],
        framework=text(value.framework),
        duration=duration(value.duration),
        integrity=_integrity(value.integrity) if value.integrity is not None else None,
        coverage_missing_reason=text(value.coverage_missing_reason),
    )


def _integrity(value: Integrity) -> verdicts_pb2.Integrity:
    return verdicts_pb2.Integrity(
        isolation=verdicts_pb2.TestIsolation.Value(f"TEST_ISOLATION_{value.isolation.value}"),
        reason=text(value.reason),
        checks=[
            verdicts_pb2.IntegrityCheck(name=text(check.name), held=check.held, detail=text(check.detail))
            for check in value.checks
        ],
    )


def _counts(value: TestReport) -> pb.TestCounts:
    count = value.counts.get
    return pb.TestCounts(
        total=value.total,
        passed=count(TestOutcome.PASSED, 0),
        failed=count(TestOutcome.FAILED, 0),
        errors=count(TestOutcome.ERROR, 0),
        skipped=count(TestOutcome.SKIPPED, 0),
        xfailed=count(TestOutcome.XFAILED, 0),
        xpassed=count(TestOutcome.XPASSED, 0),
        unfinished=count(TestOutcome.UNFINISHED, 0),
    )


def _test(value: TestCase) -> pb.TestCase:
    return pb.TestCase(
        node_id=text(value.node_id),
        outcome=_TEST_OUTCOME[value.outcome],
        duration=duration(value.duration),
        failure=_failure(value.failure) if value.failure is not None else None,
        stdout=value.stdout,
        stderr=value.stderr,
    )


def _failure(value: Failure) -> pb.Failure:
    compared = value.comparison
    return pb.Failure(
        type=text(value.type),
        message=text(value.message),
        location=text(value.location),
        traceback=text(value.traceback),
        comparison=pb.Comparison(operator=text(compared.operator), left=text(compared.left), right=text(compared.right))
        if compared is not None
        else None,
    )


def _output(value: Output) -> pb.Output:
    return pb.Output(head=value.head, tail=value.tail, dropped_bytes=value.dropped_bytes)
