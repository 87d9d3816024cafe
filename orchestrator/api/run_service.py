"""The servicer of RunService: reads a request, asks the manager, writes the reply.

Errors leave the handlers as domain errors; the interceptor of `codemend.rpc` turns them into statuses by the table.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import grpc
from codemend.orchestrator.v1 import runs_pb2 as pb
from codemend.orchestrator.v1 import runs_pb2_grpc as pb_grpc

from orchestrator.api.checks import check_offered
from orchestrator.api.translation import event_message, run_message
from orchestrator.api.validation import TENANT_KEY, Defaults, read_cancel, read_list, read_run_id, read_spec, read_watch
from orchestrator.errors import OrchestratorError, RunNotFound
from orchestrator.runs import NewRun, RunManager, RunRecord, new_run
from orchestrator.workflows import Artifacts
from orchestrator.workflows.sandbox import Capabilities

Context = grpc.aio.ServicerContext[Any, Any]

HEARTBEAT = timedelta(seconds=15)
ABANDON_WAITS = tuple(timedelta(seconds=seconds) for seconds in (1, 2, 4, 8, 16, 32))
"""Between the tries to end a run whose caller has left: a restart of the database is outlasted."""

logger = logging.getLogger(__name__)


class RunServicer(pb_grpc.RunServiceServicer):
    """The contract's RunService over one manager."""

    def __init__(
        self,
        manager: RunManager,
        artifacts: Artifacts,
        defaults: Defaults,
        offered: Callable[[], Awaitable[Capabilities | None]],
        *,
        heartbeat: timedelta = HEARTBEAT,
    ) -> None:
        """Makes the servicer; `offered` tells what the sandbox offers, None where that is not known."""
        self._manager = manager
        self._artifacts = artifacts
        self._defaults = defaults
        self._offered = offered
        self._heartbeat = heartbeat
        self._abandoned: set[asyncio.Task[None]] = set()

    async def CreateRun(  # noqa: N802 - the contract's name
        self,
        request: pb.CreateRunRequest,
        context: Context,
    ) -> pb.CreateRunResponse:
        """Starts a run, or finds it by its request_id."""
        spec = read_spec(request, self._defaults, tenant_of(context))
        run = await self._make(new_run(spec, request.request_id))
        return pb.CreateRunResponse(run=await self._message(run))

    async def GetRun(  # noqa: N802 - the contract's name
        self,
        request: pb.GetRunRequest,
        context: Context,  # noqa: ARG002 - it answers at once
    ) -> pb.GetRunResponse:
        """The run as it stands."""
        return pb.GetRunResponse(run=await self._message(await self._manager.get(read_run_id(request.run_id))))

    async def ListRuns(  # noqa: N802 - the contract's name
        self,
        request: pb.ListRunsRequest,
        context: Context,
    ) -> pb.ListRunsResponse:
        """Runs of the caller's tenant, newest first."""
        wanted = read_list(request, tenant_of(context))
        records = await self._manager.list(wanted)
        token = records[-1].run_id if len(records) == wanted.limit else ""
        messages = [await run_message(record, self._artifacts, whole=False) for record in records]
        return pb.ListRunsResponse(runs=messages, next_page_token=token)

    async def WatchRun(  # noqa: N802 - the contract's name
        self,
        request: pb.WatchRunRequest,
        context: Context,  # noqa: ARG002 - leaving the stream cancels this generator
    ) -> AsyncIterator[pb.WatchRunResponse]:
        """The run's events after a sequence number, and heartbeats, until it has ended."""
        run_id, after = read_watch(request)
        events = self._manager.watch(run_id, after, heartbeat=self._heartbeat)
        async with aclosing(events):
            async for event in events:
                yield pb.WatchRunResponse(event=event_message(event) if event is not None else None)

    async def CancelRun(  # noqa: N802 - the contract's name
        self,
        request: pb.CancelRunRequest,
        context: Context,  # noqa: ARG002 - the cancellation outlives the call
    ) -> pb.CancelRunResponse:
        """Ends a run."""
        run = await self._manager.cancel(*read_cancel(request))
        return pb.CancelRunResponse(run=await self._message(run))

    async def Generate(  # noqa: N802 - the contract's name
        self,
        request: pb.GenerateRequest,
        context: Context,
    ) -> pb.GenerateResponse:
        """Makes a run and waits for its end; without a request_id, the run ends with the call."""
        spec = read_spec(request, self._defaults, tenant_of(context))
        new = new_run(spec, request.request_id)
        try:
            run = await self._make(new)
            ended = await self._manager.wait_until(run.run_id)
        except asyncio.CancelledError:
            if not request.request_id:
                self._abandon(new.run_id)
            raise
        return pb.GenerateResponse(run=await self._message(ended))

    def _abandon(self, run_id: str) -> None:
        """Ends a run whose caller has left; the call's own task is cancelled and cannot."""
        task = asyncio.create_task(self._end_abandoned(run_id), name=f"abandon {run_id}")
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)

    async def _end_abandoned(self, run_id: str) -> None:
        """Asks for its end until the database has heard of it; then the sweeps see to it."""
        for wait in ABANDON_WAITS:
            try:
                await self._manager.request_cancel(run_id, "its Generate call was cancelled or ran out of time")
            except RunNotFound:  # the caller left before it was made
                return
            except OrchestratorError:
                logger.warning("an abandoned run could not be ended", exc_info=True, extra={"run": run_id})
                await asyncio.sleep(wait.total_seconds())
            else:
                return
        logger.error("an abandoned run is left to its own time", extra={"run": run_id})

    async def _make(self, new: NewRun) -> RunRecord:
        """The run that is asked for. One that was made before is found whatever the sandbox offers by now."""
        made = await self._manager.has_made(new.spec.tenant, new.request_id)
        if not made and (offered := await self._offered()) is not None:
            check_offered(new.spec, offered)
        return await self._manager.make(new)

    async def _message(self, run: RunRecord) -> pb.Run:
        return await run_message(run, self._artifacts)


def tenant_of(context: Context) -> str:
    """The tenant that the call names; what is no name at all is left to the checks."""
    named = [value for key, value in context.invocation_metadata() or () if key == TENANT_KEY]
    tenant = named[0] if named else ""
    return tenant if isinstance(tenant, str) else tenant.decode("utf-8", "backslashreplace")
