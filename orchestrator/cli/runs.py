"""One run from a client's side: created once however often it is asked for, followed to its end, cancelled when left.

Shared by `run`, `runs` and `eval`; what is shown of it is theirs.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from typing import TypeAlias

import grpc
from codemend.orchestrator.v1 import runs_pb2

from orchestrator.cli import client
from orchestrator.cli.errors import ServiceFault

# A quiet run sends a heartbeat every 15 s: after this long the stream is dead, not quiet.
_SILENCE = timedelta(seconds=60)
_SILENT_STREAMS = 2  # so many are taken up again before the service is given up
_CANCEL_TIMEOUT = timedelta(seconds=5)
_LONGEST_RUN = timedelta(hours=25)  # the service bounds a run far below; this only keeps a wait from being endless
_DEFAULT_RUN_TIME = timedelta(minutes=10)  # the service's own default
_MARGIN = timedelta(seconds=60)  # beyond a run's own time limit: queue, set-up, delivery

Stub: TypeAlias = client.RunsStub


async def create_run(stub: Stub, spec: runs_pb2.RunSpec) -> runs_pb2.Run:
    """Creates the run; a repeated call after a lost answer finds the same run.

    Raises:
        CliError: the orchestrator refuses it or cannot be reached.
    """
    request = runs_pb2.CreateRunRequest(request_id=f"cli-{uuid.uuid4()}", spec=spec)
    try:
        answer = await client.patiently(
            client.RUN_SERVICE, lambda: stub.CreateRun(request, timeout=client.CALL_TIMEOUT.total_seconds())
        )
    except asyncio.CancelledError:
        await asyncio.shield(_abandon(stub, request))
        raise
    return answer.run


async def _abandon(stub: Stub, request: runs_pb2.CreateRunRequest) -> None:
    """Cancels a run whose creation may have reached the service though its answer did not reach us."""
    with suppress(grpc.aio.AioRpcError):
        answer = await stub.CreateRun(request, timeout=_CANCEL_TIMEOUT.total_seconds())
        await cancel_run(stub, answer.run.run_id, "the client left")


async def follow(stub: Stub, run_id: str, after: int = 0) -> AsyncGenerator[runs_pb2.RunEvent]:
    """Every event of the run, each once and in order, to its last; a broken stream is taken up where it broke.

    Args:
        stub: of the service that has the run.
        run_id: whose events.
        after: number of an event; only later ones are given.

    Raises:
        CliError: the orchestrator stays away, or no longer knows the run.
    """
    last = after
    failures = 0
    broken_since = time.monotonic()
    delay: float | None
    while True:
        call = stub.WatchRun(
            runs_pb2.WatchRunRequest(run_id=run_id, after_sequence=last), timeout=_LONGEST_RUN.total_seconds()
        )
        try:
            while True:
                async with asyncio.timeout(_SILENCE.total_seconds()):
                    message = await call.read()
                if not isinstance(message, runs_pb2.WatchRunResponse):  # the end of the stream
                    return
                failures, broken_since = 0, time.monotonic()
                if message.HasField("event") and message.event.sequence > last:
                    last = message.event.sequence
                    yield message.event
        except TimeoutError:
            delay = 0.0
            if failures == _SILENT_STREAMS:
                raise ServiceFault(f"{client.RUN_SERVICE} sent nothing for {_SILENCE.total_seconds():.0f} s") from None
        except grpc.aio.AioRpcError as error:
            delay = client.transient_delay(error, failures)
            if delay is None or time.monotonic() - broken_since > client.PATIENCE.total_seconds():
                raise client.explained(error, client.RUN_SERVICE) from error
        finally:
            call.cancel()  # a stream that is merely dropped would live on at the server
        failures += 1
        await asyncio.sleep(delay)


async def fetch_run(stub: Stub, run_id: str) -> runs_pb2.Run:
    """The run as it stands.

    Raises:
        CliError: the orchestrator does not know it or cannot be reached.
    """
    request = runs_pb2.GetRunRequest(run_id=run_id)
    answer = await client.patiently(
        client.RUN_SERVICE, lambda: stub.GetRun(request, timeout=client.CALL_TIMEOUT.total_seconds())
    )
    return answer.run


async def cancel_run(stub: Stub, run_id: str, reason: str) -> None:
    """Cancels the run, and waits a few seconds at most for the answer; a service that is gone has no run to cancel."""
    request = runs_pb2.CancelRunRequest(run_id=run_id, reason=reason)
    with suppress(grpc.aio.AioRpcError):
        await stub.CancelRun(request, timeout=_CANCEL_TIMEOUT.total_seconds())


@asynccontextmanager
async def started_run(stub: Stub, spec: runs_pb2.RunSpec) -> AsyncIterator[runs_pb2.Run]:
    """A run that is cancelled when its block is left by an error or a cancellation.

    Raises:
        CliError: the orchestrator refuses it or cannot be reached.
    """
    run = await create_run(stub, spec)
    try:
        yield run
    except BaseException:
        await asyncio.shield(cancel_run(stub, run.run_id, "the client left"))
        raise


async def run_to_end(stub: Stub, spec: runs_pb2.RunSpec) -> runs_pb2.Run:
    """Creates a run and waits for its end without showing anything; a caller that leaves takes the run with it.

    Raises:
        CliError: the orchestrator refuses or loses it, or the run outlives its own time limit.
    """
    limit = ((spec.options.timeout.ToTimedelta() or _DEFAULT_RUN_TIME) + _MARGIN).total_seconds()
    async with started_run(stub, spec) as run:
        try:
            async with asyncio.timeout(limit), aclosing(follow(stub, run.run_id)) as events:
                async for _ in events:
                    pass
        except TimeoutError:
            raise ServiceFault(f"run {run.run_id} did not end within {limit:.0f} s") from None
        return await fetch_run(stub, run.run_id)
