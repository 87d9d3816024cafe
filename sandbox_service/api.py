"""The servicer: reads a request, hands the job to the scheduler, writes the reply; and the table of errors for callers.

Errors leave the handlers as domain errors. The interceptor of `codemend.rpc` turns them into statuses by that table.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import grpc
from codemend.rpc import ErrorRule, ErrorTable, bad_request, retry_info
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sandbox_pb2_grpc as pb_grpc

from sandbox_service import errors
from sandbox_service.cells import CellKind
from sandbox_service.domain import JobOutcome
from sandbox_service.replies import limits_to, protection_to, report_to, result_to
from sandbox_service.scheduler import Scheduler
from sandbox_service.streaming import OutputBuffer, Unsent
from sandbox_service.translation import program_from, test_run_from
from sandbox_service.validation import Rules

Context = grpc.aio.ServicerContext[Any, Any]

STDOUT = 1
LONGEST_DEADLINE_SECONDS = 365 * 24 * 3600.0  # of a caller that in truth waits for ever; no job lives as long

ERRORS = ErrorTable(
    {
        errors.InvalidJob: ErrorRule(
            grpc.StatusCode.INVALID_ARGUMENT, "INVALID_JOB", lambda error: bad_request(error.violations)
        ),
        errors.QueueFull: ErrorRule(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", lambda error: retry_info(error.retry_after)
        ),
        errors.DeadlineTooShort: ErrorRule(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_TOO_SHORT"),
        errors.ServiceDraining: ErrorRule(
            grpc.StatusCode.UNAVAILABLE, "SERVICE_DRAINING", lambda error: retry_info(error.retry_after)
        ),
        errors.CellFailure: ErrorRule(grpc.StatusCode.INTERNAL, "CELL_FAILURE"),
        errors.CellUnavailable: ErrorRule(
            grpc.StatusCode.UNAVAILABLE, "CELL_UNAVAILABLE", lambda error: retry_info(error.retry_after)
        ),
        errors.ReaderTooSlow: ErrorRule(grpc.StatusCode.RESOURCE_EXHAUSTED, "READER_TOO_SLOW"),
    }
)


class SandboxServicer(pb_grpc.SandboxServiceServicer):
    """The contract's SandboxService over one scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        cells: CellKind,
        rules: Rules,
        *,
        concurrency: int,
        queue_size: int,
        version: str,
    ) -> None:
        self._scheduler = scheduler
        self._cells = cells
        self._rules = rules
        self._concurrency = concurrency
        self._queue_size = queue_size
        self._version = version
        self._unsent = Unsent()

    async def Execute(  # noqa: N802 - the contract's name
        self, request: pb.ExecuteRequest, context: Context
    ) -> pb.ExecuteResponse:
        """Runs one program."""
        program = program_from(request, self._rules)
        outcome = await self._scheduler.submit(program, deadline=_deadline(context))
        return pb.ExecuteResponse(result=result_to(outcome.result))

    async def ExecuteStream(  # noqa: N802 - the contract's name
        self, request: pb.ExecuteStreamRequest, context: Context
    ) -> AsyncIterator[pb.ExecuteStreamResponse]:
        """Runs one program and sends its output as it appears."""
        program = program_from(request, self._rules)
        buffer = OutputBuffer(self._unsent)
        job = asyncio.create_task(self._scheduler.submit(program, deadline=_deadline(context), sink=buffer.push))
        buffer.on_overflow(job.cancel)
        job.add_done_callback(lambda _: buffer.close())
        try:
            async with aclosing(buffer.chunks()) as chunks:
                async for stream, data in chunks:
                    if stream == STDOUT:
                        yield pb.ExecuteStreamResponse(stdout_chunk=data)
                    else:
                        yield pb.ExecuteStreamResponse(stderr_chunk=data)
            outcome = await job
            yield pb.ExecuteStreamResponse(result=result_to(outcome.result))
        finally:
            await _ended(job)

    async def RunTests(  # noqa: N802 - the contract's name
        self, request: pb.RunTestsRequest, context: Context
    ) -> pb.RunTestsResponse:
        """Runs tests."""
        run = test_run_from(request, self._rules)
        outcome = await self._scheduler.submit(run, deadline=_deadline(context))
        if outcome.report is None:
            raise errors.CellFailure("the cell gave no report for a test run")
        return pb.RunTestsResponse(report=report_to(outcome.report), execution=result_to(outcome.result))

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
        )


def _deadline(context: Context) -> timedelta | None:
    """The time that the caller will still wait; None where it set no deadline."""
    remaining: float | None = context.time_remaining()
    return None if remaining is None else timedelta(seconds=min(max(remaining, 0.0), LONGEST_DEADLINE_SECONDS))


async def _ended(job: asyncio.Task[JobOutcome]) -> None:
    """Kills the job where it still runs, and waits until it is gone."""
    job.cancel()
    await asyncio.wait({job})
    if not job.cancelled():
        job.exception()  # read, or the loop would report it: its caller has gone or has it already
