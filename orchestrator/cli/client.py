"""Channels to the two services, and what their errors mean to the person at the terminal.

Transient refusals (UNAVAILABLE, and RESOURCE_EXHAUSTED that says when to come back) are waited out within a bound;
every other status becomes one sentence that names the service, the code, and the fields that it complains about.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypeAlias, TypeVar

import grpc
from codemend.orchestrator.v1 import debug_pb2_grpc, regression_pb2_grpc, runs_pb2_grpc
from codemend.rpc import open_channel
from codemend.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from orchestrator.cli.errors import CliError, ServiceFault, UsageFault
from orchestrator.cli.inputs import SourceFile

T = TypeVar("T")
# Types of the stubs on an asyncio channel; they exist for type checkers only.
RunsStub: TypeAlias = "runs_pb2_grpc.RunServiceAsyncStub"
DebugStub: TypeAlias = "debug_pb2_grpc.DebugServiceAsyncStub"
RegressionStub: TypeAlias = "regression_pb2_grpc.RegressionServiceAsyncStub"
SandboxStub: TypeAlias = "sandbox_pb2_grpc.SandboxServiceAsyncStub"

CALL_TIMEOUT = timedelta(seconds=30)  # of calls that only ask or set off
_CONNECT_TIMEOUT = timedelta(seconds=5)
PATIENCE = timedelta(seconds=30)  # how long an UNAVAILABLE service is waited for
QUEUE_PATIENCE = timedelta(minutes=10)  # how long a full queue is waited for
_FIRST_DELAY = 0.1  # seconds
_LONGEST_DELAY = 5.0  # seconds
RUN_SERVICE = "the orchestrator"
SANDBOX_SERVICE = "the sandbox service"


@asynccontextmanager
async def runs_stub(address: str) -> AsyncIterator[RunsStub]:
    """The orchestrator's RunService at `address`.

    Raises:
        ServiceFault: nothing answers there.
    """
    async with open_channel(address) as channel:
        await _connected(channel, RUN_SERVICE, address)
        yield runs_pb2_grpc.RunServiceStub(channel)


@asynccontextmanager
async def debug_stubs(address: str) -> AsyncIterator[tuple[RunsStub, DebugStub]]:
    """The orchestrator's RunService and DebugService at `address`, over one channel.

    Raises:
        ServiceFault: nothing answers there.
    """
    async with open_channel(address) as channel:
        await _connected(channel, RUN_SERVICE, address)
        yield runs_pb2_grpc.RunServiceStub(channel), debug_pb2_grpc.DebugServiceStub(channel)


@asynccontextmanager
async def regression_stub(address: str) -> AsyncIterator[RegressionStub]:
    """The orchestrator's RegressionService at `address`.

    Raises:
        ServiceFault: nothing answers there.
    """
    async with open_channel(address) as channel:
        await _connected(channel, RUN_SERVICE, address)
        yield regression_pb2_grpc.RegressionServiceStub(channel)


@asynccontextmanager
async def sandbox_stub(address: str) -> AsyncIterator[SandboxStub]:
    """The SandboxService at `address`.

    Raises:
        ServiceFault: nothing answers there.
    """
    async with open_channel(address) as channel:
        await _connected(channel, SANDBOX_SERVICE, address)
        yield sandbox_pb2_grpc.SandboxServiceStub(channel)


async def _connected(channel: grpc.aio.Channel, service: str, address: str) -> None:
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT.total_seconds()):
            await channel.channel_ready()
    except TimeoutError:
        seconds = _CONNECT_TIMEOUT.total_seconds()
        raise ServiceFault(f"cannot reach {service} at {address} within {seconds:.0f} s; does it run?") from None


def as_messages(files: list[SourceFile]) -> list[sandbox_pb2.File]:
    """Files as the contract has them."""
    return [sandbox_pb2.File(path=file.path, content=file.content, executable=file.executable) for file in files]


async def patiently(service: str, call: Callable[[], Awaitable[T]]) -> T:
    """Makes a call that may be repeated, waiting out transient refusals.

    Args:
        service: what the errors name, such as "the orchestrator".
        call: makes the call; it carries a deadline of its own.

    Raises:
        UsageFault: the service says that a field is wrong.
        ServiceFault: every other error, a transient one only after its time was up.
    """
    started = time.monotonic()
    attempt = 0
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            delay = transient_delay(error, attempt)
            if delay is None or time.monotonic() - started + delay > bound_of(error).total_seconds():
                raise explained(error, service) from error
        attempt += 1
        await asyncio.sleep(delay)


def transient_delay(error: grpc.aio.AioRpcError, attempt: int) -> float | None:
    """Seconds to wait before the same call is worth another try; None when it is not."""
    backoff: float = min(_FIRST_DELAY * 2**attempt, _LONGEST_DELAY) * random.uniform(0.5, 1)  # noqa: S311 - jitter
    said = _retry_delay(error)
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        return max(backoff, said or 0.0)
    if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and said is not None:
        return max(backoff, said)
    return None


def bound_of(error: grpc.aio.AioRpcError) -> timedelta:
    """How long this transient refusal is waited out."""
    return PATIENCE if error.code() == grpc.StatusCode.UNAVAILABLE else QUEUE_PATIENCE


def incomplete(service: str) -> ServiceFault:
    """What a stream is that ended well without its last message."""
    return ServiceFault(f"{service} ended its stream without a result")


def explained(error: grpc.aio.AioRpcError, service: str) -> CliError:
    """The error as a sentence: which service, which code, which fields."""
    code, message = error.code(), error.details() or "no message"
    fields = [f"{violation.field}: {violation.description}" for violation in _violations(error)]
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        return UsageFault("", f"{service} refuses the request: {'; '.join(fields) or message}")
    if code == grpc.StatusCode.UNAVAILABLE:
        return ServiceFault(f"{service} is not available: {message}")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServiceFault(f"{service} did not answer in time: {message}")
    return ServiceFault(f"{service} answered {code.name}: {message}")


def _detail(error: grpc.aio.AioRpcError, kind: type[T]) -> T | None:
    status = rpc_status.from_call(error)
    for packed in status.details if status is not None else ():
        message = kind()
        if packed.Unpack(message):
            return message
    return None


def _violations(error: grpc.aio.AioRpcError) -> list[error_details_pb2.BadRequest.FieldViolation]:
    request = _detail(error, error_details_pb2.BadRequest)
    return list(request.field_violations) if request is not None else []


def _retry_delay(error: grpc.aio.AioRpcError) -> float | None:
    info = _detail(error, error_details_pb2.RetryInfo)
    return info.retry_delay.ToTimedelta().total_seconds() if info is not None else None
