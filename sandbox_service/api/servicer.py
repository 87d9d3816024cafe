"""The servicer: reads a request, hands the job to the scheduler, writes the reply.

Errors leave the handlers as domain errors; `table.py` says what callers see of them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial

from codemend.sandbox.v1 import sandbox_pb2 as pb
from google.protobuf.message import Message

from sandbox_service import errors
from sandbox_service.api.jobs import Done, JobRunner
from sandbox_service.api.once import Context, KeyedCalls, Time, deadline_of
from sandbox_service.api.sessions import SessionCalls, SessionRules
from sandbox_service.api.streams import StreamLimits, StreamPlaces
from sandbox_service.cells import CellKind
from sandbox_service.domain import Lease
from sandbox_service.idempotency import IdempotencyKeys
from sandbox_service.replies import duration_to, limits_to, protection_to, report_to
from sandbox_service.scheduler import Scheduler
from sandbox_service.sessions import SessionStore
from sandbox_service.streaming import OutputBuffer, Unsent
from sandbox_service.tenants import tenant_of
from sandbox_service.translation import program_from, test_run_from
from sandbox_service.validation import Rules

STDOUT = 1


class SandboxServicer(SessionCalls):
    """The contract's SandboxService over one scheduler and one store of sessions."""

    def __init__(
        self,
        scheduler: Scheduler,
        cells: CellKind,
        rules: Rules,
        keys: IdempotencyKeys[Message],
        *,
        sessions: SessionStore,
        session_rules: SessionRules,
        stream_limits: StreamLimits,
        concurrency: int,
        queue_size: int,
        version: str,
    ) -> None:
        calls = KeyedCalls(keys)
        super().__init__(sessions, session_rules, calls, StreamPlaces(stream_limits))
        self._jobs = JobRunner(scheduler, rules, sessions)
        self._cells = cells
        self._rules = rules
        self._session_rules = session_rules
        self._stream_limits = stream_limits
        self._calls = calls
        self._concurrency = concurrency
        self._queue_size = queue_size
        self._version = version
        self._unsent = Unsent()

    async def Execute(  # noqa: N802 - the contract's name
        self, request: pb.ExecuteRequest, context: Context
    ) -> pb.ExecuteResponse:
        """Runs one program."""
        lease = Lease(tenant_of(context), request.session)

        async def run(time: Time) -> pb.ExecuteResponse:
            done = await self._jobs.run(partial(program_from, request), lease, time, prefix="program.")
            return pb.ExecuteResponse(result=done.result())

        return await self._calls.once("Execute", request, context, run)

    async def ExecuteStream(  # noqa: N802 - the contract's name
        self, request: pb.ExecuteStreamRequest, context: Context
    ) -> AsyncIterator[pb.ExecuteStreamResponse]:
        """Runs one program and sends its output as it appears."""
        lease, time = Lease(tenant_of(context), request.session), Time(deadline_of(context))
        self._streams.take(lease.tenant, context)
        buffer = OutputBuffer(self._unsent)
        read = partial(program_from, request)
        job = asyncio.create_task(self._jobs.run(read, lease, time, prefix="program.", sink=buffer.push))
        buffer.on_overflow(job.cancel)
        job.add_done_callback(lambda _: buffer.close())
        try:
            async with aclosing(buffer.chunks()) as chunks:
                async for stream, data in chunks:
                    if stream == STDOUT:
                        yield pb.ExecuteStreamResponse(stdout_chunk=data)
                    else:
                        yield pb.ExecuteStreamResponse(stderr_chunk=data)
            yield pb.ExecuteStreamResponse(result=(await job).result())
        finally:
            await _ended(job)

    async def RunTests(  # noqa: N802 - the contract's name
        self, request: pb.RunTestsRequest, context: Context
    ) -> pb.RunTestsResponse:
        """Runs tests."""
        lease = Lease(tenant_of(context), request.session)

        async def run(time: Time) -> pb.RunTestsResponse:
            done = await self._jobs.run(partial(test_run_from, request), lease, time)
            if done.outcome.report is None:
                raise errors.CellFailure("the cell gave no report for a test run")
            return pb.RunTestsResponse(
                report=report_to(done.outcome.report, covers=request.coverage), execution=done.result()
            )

        return await self._calls.once("RunTests", request, context, run)

    async def GetCapabilities(  # noqa: N802 - the contract's name
        self,
        request: pb.GetCapabilitiesRequest,  # noqa: ARG002 - it is empty
        context: Context,  # noqa: ARG002 - it answers at once
    ) -> pb.GetCapabilitiesResponse:
        """Says what this server offers."""
        return pb.GetCapabilitiesResponse(
            version=self._version,
            cells=[self._cells.name],
            languages=sorted(self._rules.languages),
            environments=sorted(self._rules.environments),
            default_limits=limits_to(self._rules.defaults),
            maximum_limits=limits_to(self._rules.maximums),
            protections=[protection_to(protection) for protection in self._cells.protections()],
            concurrency=self._concurrency,
            queue_size=self._queue_size,
            language_versions=self._cells.language_versions(),
            maximum_sessions=self._session_rules.capacity.sessions,
            maximum_session_ttl=duration_to(self._session_rules.maximums.ttl),
            maximum_streams_per_tenant=self._stream_limits.per_tenant,
        )


async def _ended(job: asyncio.Task[Done]) -> None:
    """Kills the job where it still runs, and waits until it is gone."""
    job.cancel()
    await asyncio.wait({job})
    if not job.cancelled():
        job.exception()  # read, or the loop would report it: its caller has gone or has it already
