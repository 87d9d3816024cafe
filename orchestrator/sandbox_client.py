"""The client of the sandbox service: the workflow's jobs out, executions and reports back, RPC errors as domain errors.

The only module of the service that knows the sandbox's stubs. One channel serves the process; every call has a
deadline, and a cancelled call is cancelled at the sandbox, which kills its job.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import grpc
from codemend.rpc import open_channel
from codemend.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc, verdicts_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from orchestrator.errors import SandboxBusy, SandboxError, SandboxRejected, SandboxUnavailable
from orchestrator.workflows.sandbox import (
    NO_CALLER,
    Caller,
    Capabilities,
    CollectionError,
    Comparison,
    Execution,
    ExecutionStatus,
    Failure,
    File,
    Integrity,
    IntegrityCheck,
    Isolation,
    Limits,
    Output,
    ProgramJob,
    ReportOutcome,
    TestCase,
    TestIsolation,
    TestJob,
    TestOutcome,
    TestReport,
)

LONGEST_JOB = timedelta(minutes=10)  # for jobs that leave their wall time to the sandbox; its usual maximum
QUEUE_MARGIN = timedelta(minutes=2)  # for waiting in the sandbox's queue and for its cells to be made and removed
CAPABILITIES_TIME = timedelta(seconds=2)  # a sandbox that serves answers at once
TENANT_KEY = "x-codemend-tenant"

_TIMES = ("wall_time", "cpu_time")
_NUMBERS = ("memory_bytes", "processes", "open_files", "output_bytes", "file_bytes", "disk_bytes")

Response = TypeVar("Response")


class SandboxClient:
    """Implements the workflow's `Sandbox`. Make it inside the event loop and close it at the end."""

    def __init__(self, address: str, headers: Callable[[], Sequence[tuple[str, str]]] = tuple) -> None:
        """Connects at the first call; `headers` are asked for at each and go with it, such as a trace's."""
        self._address = address
        self._headers = headers
        self._channel = open_channel(address)
        self._stub = sandbox_pb2_grpc.SandboxServiceStub(self._channel)

    async def run_program(self, job: ProgramJob, *, deadline: timedelta, caller: Caller = NO_CALLER) -> Execution:
        """Runs a program. Raises as `Sandbox` says."""
        program = sandbox_pb2.Program(
            files=_files(job.files),
            entry=job.entry,
            args=job.args,
            environment=job.environment,
            limits=limits_message(job.limits),
        )
        request = sandbox_pb2.ExecuteRequest(program=program)
        request.idempotency_key = idempotency_key(caller, request)
        seconds, metadata = _call_time(job.limits, deadline), self._metadata(caller)
        response = await self._call(lambda: self._stub.Execute(request, timeout=seconds, metadata=metadata))
        return execution(response.result)

    async def run_tests(
        self, job: TestJob, *, deadline: timedelta, caller: Caller = NO_CALLER
    ) -> tuple[TestReport, Execution]:
        """Runs tests. Raises as `Sandbox` says."""
        request = sandbox_pb2.RunTestsRequest(
            files=_files(job.files),
            tests=_files(job.tests),
            environment=job.environment,
            limits=limits_message(job.limits),
        )
        request.idempotency_key = idempotency_key(caller, request)
        seconds, metadata = _call_time(job.limits, deadline), self._metadata(caller)
        response = await self._call(lambda: self._stub.RunTests(request, timeout=seconds, metadata=metadata))
        return report(response.report), execution(response.execution)

    async def capabilities(self) -> Capabilities:
        """What the sandbox offers. Raises SandboxError where it does not answer at once."""
        request, seconds = sandbox_pb2.GetCapabilitiesRequest(), CAPABILITIES_TIME.total_seconds()
        response = await self._call(lambda: self._stub.GetCapabilities(request, timeout=seconds))
        return Capabilities(tuple(response.environments), limits(response.maximum_limits))

    def _metadata(self, caller: Caller) -> list[tuple[str, str]]:
        return [*([(TENANT_KEY, caller.tenant)] if caller.tenant else []), *self._headers()]

    async def close(self) -> None:
        """Closes the channel; calls at work are cancelled."""
        await self._channel.close()

    async def _call(self, start: Callable[[], grpc.aio.UnaryUnaryCall[Any, Response]]) -> Response:
        call = start()
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise self._domain_error(error) from error
        finally:
            call.cancel()  # an abandoned call would go on; a finished one does not mind

    def _domain_error(self, error: grpc.aio.AioRpcError) -> SandboxError:
        text, retry_after = error.details() or error.code().name, _retry_after(error)
        match error.code():
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
                # A call that a stopping sandbox had not picked up yet ends as CANCELLED.
                return SandboxUnavailable(f"no answer from {self._address}: {text}", retry_after)
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return SandboxBusy(text, retry_after)
            case grpc.StatusCode.RESOURCE_EXHAUSTED if retry_after is not None:
                # Without RetryInfo it is a message over gRPC's limit, and would be so again.
                return SandboxBusy(text, retry_after)
            case code:
                return SandboxRejected(f"{code.name}: {text}")


def _retry_after(error: grpc.aio.AioRpcError) -> timedelta | None:
    """What the error's google.rpc.RetryInfo says; None without one."""
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # its details are not those of its code
        return None
    info = error_details_pb2.RetryInfo()
    for detail in status.details if status is not None else ():
        if detail.Unpack(info):
            delay: timedelta = info.retry_delay.ToTimedelta()
            return delay
    return None


def _call_time(limits: Limits, deadline: timedelta) -> float:
    """Seconds that a call may take."""
    job = limits.wall_time if limits.wall_time is not None else LONGEST_JOB
    return min(deadline, job + QUEUE_MARGIN).total_seconds()


def idempotency_key(caller: Caller, request: sandbox_pb2.ExecuteRequest | sandbox_pb2.RunTestsRequest) -> str:
    """Equal for the same request of the same step, and for no other; empty where the step has no name."""
    if not caller.step:
        return ""
    named = f"{caller.step}\0".encode() + request.SerializeToString(deterministic=True)
    return f"{caller.step[:64]}.{hashlib.sha256(named).hexdigest()[:32]}"


def _files(files: Iterable[File]) -> list[sandbox_pb2.File]:
    return [sandbox_pb2.File(path=file.path, content=file.content, executable=file.executable) for file in files]


def limits_message(limits: Limits) -> sandbox_pb2.Limits:
    """Limits for the wire; what is None stays unset."""
    message = sandbox_pb2.Limits()
    for name in _TIMES:
        if (time := getattr(limits, name)) is not None:
            getattr(message, name).CopyFrom(_duration(time))
    for name in _NUMBERS:
        if (number := getattr(limits, name)) is not None:
            setattr(message, name, number)
    return message


def limits(message: sandbox_pb2.Limits) -> Limits:
    """Limits from the wire; what is unset is None."""
    values: dict[str, Any] = {
        descriptor.name: value.ToTimedelta() if isinstance(value, Duration) else value
        for descriptor, value in message.ListFields()
        if descriptor.name in (*_TIMES, *_NUMBERS)
    }
    return Limits(**values)


def _duration(time: timedelta) -> Duration:
    message = Duration()
    message.FromTimedelta(time)
    return message


def execution(message: sandbox_pb2.ExecutionResult) -> Execution:
    """What a program did. Raises SandboxRejected where the status is none that this version knows."""
    return Execution(
        status=_known(ExecutionStatus, sandbox_pb2.ExecutionStatus.Name, message.status, "EXECUTION_STATUS_"),
        reason=message.reason,
        exit_code=message.exit_code if message.HasField("exit_code") else None,
        signal=message.signal if message.HasField("signal") else None,
        stdout=_output(message.stdout),
        stderr=_output(message.stderr),
        wall_time=message.wall_time.ToTimedelta(),
        cpu_time=message.cpu_time.ToTimedelta(),
        peak_memory_bytes=message.peak_memory_bytes,
        isolation=Isolation(message.isolation.cell, tuple(message.isolation.protections)),
        queue_time=message.queue_time.ToTimedelta(),
    )


def report(message: sandbox_pb2.TestReport) -> TestReport:
    """What the tests say. Raises SandboxRejected where an outcome is none that this version knows."""
    counts = {outcome: int(getattr(message.counts, _COUNTS[outcome])) for outcome in TestOutcome}
    return TestReport(
        outcome=_known(ReportOutcome, sandbox_pb2.ReportOutcome.Name, message.outcome, "REPORT_OUTCOME_"),
        reason=message.reason,
        tests=tuple(_test(test) for test in message.tests),
        counts={outcome: count for outcome, count in counts.items() if count},
        tests_left_out=message.tests_left_out,
        collection_errors=tuple(CollectionError(e.path, _failure(e.failure)) for e in message.collection_errors),
        framework=message.framework,
        duration=message.duration.ToTimedelta(),
        integrity=_integrity(message.integrity) if message.HasField("integrity") else None,
        coverage_missing_reason=message.coverage_missing_reason,
    )


_COUNTS = {
    TestOutcome.PASSED: "passed",
    TestOutcome.FAILED: "failed",
    TestOutcome.ERROR: "errors",
    TestOutcome.SKIPPED: "skipped",
    TestOutcome.XFAILED: "xfailed",
    TestOutcome.XPASSED: "xpassed",
    TestOutcome.UNFINISHED: "unfinished",
}


Known = TypeVar("Known", ExecutionStatus, ReportOutcome, TestIsolation, TestOutcome)


def _known(kind: type[Known], name_of: Callable[[Any], str], number: int, prefix: str) -> Known:
    """A value of the contract as ours; one that this version does not know is never taken for another."""
    try:
        return kind(name_of(number).removeprefix(prefix))
    except ValueError as error:
        raise SandboxRejected(f"the sandbox sent {prefix}({number}), which this version does not know") from error


def _integrity(message: verdicts_pb2.Integrity) -> Integrity:
    isolation = _known(TestIsolation, verdicts_pb2.TestIsolation.Name, message.isolation, "TEST_ISOLATION_")
    checks = tuple(IntegrityCheck(check.name, check.held, check.detail) for check in message.checks)
    return Integrity(isolation, message.reason, checks)


def _test(message: sandbox_pb2.TestCase) -> TestCase:
    return TestCase(
        node_id=message.node_id,
        outcome=_known(TestOutcome, sandbox_pb2.TestOutcome.Name, message.outcome, "TEST_OUTCOME_"),
        duration=message.duration.ToTimedelta(),
        failure=_failure(message.failure) if message.HasField("failure") else None,
        stdout=message.stdout,
        stderr=message.stderr,
    )


def _failure(message: sandbox_pb2.Failure) -> Failure:
    compared = message.comparison
    return Failure(
        type=message.type,
        message=message.message,
        location=message.location,
        traceback=message.traceback,
        comparison=Comparison(compared.operator, compared.left, compared.right)
        if message.HasField("comparison")
        else None,
    )


def _output(message: sandbox_pb2.Output) -> Output:
    return Output(message.head, message.tail, message.dropped_bytes)
