"""Calls of RunService and DebugService behind `codemend runs`, each with its deadline, and pages put together."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
from codemend.orchestrator.v1 import debug_pb2, runs_pb2

from orchestrator.cli import client, inputs, runs
from orchestrator.cli.client import RUN_SERVICE, DebugStub, RunsStub
from orchestrator.cli.errors import UsageFault
from orchestrator.cli.interrupts import run_to_exit

T = TypeVar("T")

SECONDS = client.CALL_TIMEOUT.total_seconds()
REPLAY_SECONDS = 600.0  # a replay of many steps is compared state by state
_PAGE = 200


def with_services(address: str, work: Callable[[RunsStub, DebugStub], Coroutine[Any, Any, int]]) -> int:
    """Does `work` with the services of the orchestrator at `address`; returns its exit code.

    Raises:
        CliError: there is no such address, or nothing answers there.
    """
    if not address:
        raise UsageFault("--address", "runs are kept by a running orchestrator; give its address")
    inputs.check_address("--address", address)

    async def connected() -> int:
        async with client.debug_stubs(address) as (runs_stub, debug_stub):
            return await work(runs_stub, debug_stub)

    return run_to_exit(connected())


async def asked(call: Callable[[], Awaitable[T]]) -> T:
    """What a call that may be repeated answers, transient refusals waited out. Raises CliError."""
    return await client.patiently(RUN_SERVICE, call)


async def once(call: Awaitable[T]) -> T:
    """What a call that must not be repeated answers. Raises CliError."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise client.explained(error, RUN_SERVICE) from error


async def newest_runs(stub: RunsStub, request: runs_pb2.ListRunsRequest, limit: int) -> AsyncIterator[runs_pb2.Run]:
    """Runs, the newest first, at most `limit`. Raises CliError."""
    left = limit
    while left:
        request.page_size = min(left, _PAGE)
        answer = await asked(lambda: stub.ListRuns(request, timeout=SECONDS))
        for run in answer.runs:
            yield run
        left -= len(answer.runs)
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token


async def events_so_far(stub: RunsStub, run: runs_pb2.Run, after: int = 0) -> AsyncIterator[runs_pb2.RunEvent]:
    """The events after a number that the run had when it was asked for; no others are waited for. Raises CliError."""
    if run.last_sequence <= after:
        return
    async with aclosing(runs.follow(stub, run.run_id, after)) as events:
        async for event in events:
            yield event
            if event.sequence >= run.last_sequence:
                return


async def checkpoints(stub: DebugStub, run_id: str, limit: int) -> AsyncIterator[debug_pb2.Checkpoint]:
    """Checkpoints, the newest first, at most `limit`. Raises CliError."""
    request, left = debug_pb2.ListCheckpointsRequest(run_id=run_id), limit
    while left:
        request.page_size = min(left, _PAGE)
        answer = await asked(lambda: stub.ListCheckpoints(request, timeout=SECONDS))
        for one in answer.checkpoints:
            yield one
        left -= len(answer.checkpoints)
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token


async def watch(
    stub: RunsStub, run: runs_pb2.Run, after: int, show: Callable[[runs_pb2.RunEvent], None], *, through_waits: bool
) -> runs_pb2.Run:
    """Shows the run's events after a number until it ends or, unless it is `through_waits`, waits. Raises CliError.

    Waits that are over by the time of `run` are shown like everything else.
    """
    if run.HasField("wait") and not through_waits:
        async for event in events_so_far(stub, run, after):
            show(event)
        return run
    async with aclosing(runs.follow(stub, run.run_id, after)) as events:
        async for event in events:
            show(event)
            if event.HasField("wait") and event.sequence > run.last_sequence and not through_waits:
                break
    return await runs.fetch_run(stub, run.run_id)
