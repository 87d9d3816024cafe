"""The servicer of DebugService: reads a request, asks the debugging parts, writes the reply."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
from codemend.orchestrator.v1 import debug_pb2 as pb
from codemend.orchestrator.v1 import debug_pb2_grpc as pb_grpc
from codemend.orchestrator.v1 import runs_pb2

from orchestrator.api.checks import Checker, check_offered
from orchestrator.api.debug_messages import (
    change_messages,
    checkpoint_message,
    divergence_message,
    interrupt_message,
    state_text,
)
from orchestrator.api.overrides import laid_over
from orchestrator.api.sandbox_messages import files as file_messages
from orchestrator.api.translation import run_message
from orchestrator.api.validation import MAXIMUM_PAGE, MAXIMUM_REQUEST_ID, USUAL_PAGE, read_labels, read_nodes
from orchestrator.runs import Breakpoints, Resume, RunRecord
from orchestrator.runs.assembly import RunParts
from orchestrator.runs.debug import Edit, Editor, Fork, Forker, Looker
from orchestrator.workflows import RunOptions, RunSpec
from orchestrator.workflows.sandbox import Capabilities

Context = grpc.aio.ServicerContext[Any, Any]

MAXIMUM_EDIT_BYTES = 1024 * 1024
MAXIMUM_ANSWER_BYTES = 64 * 1024
MAXIMUM_ANSWERS = 64


class DebugServicer(pb_grpc.DebugServiceServicer):
    """The contract's DebugService over the parts that serve runs.

    Args:
        parts: what serves runs.
        offered: tells what the sandbox offers; None where that is not known.
    """

    def __init__(self, parts: RunParts, offered: Callable[[], Awaitable[Capabilities | None]]) -> None:
        self._parts = parts
        self._offered = offered
        self._looker = Looker(parts)
        self._editor = Editor(parts)
        self._forker = Forker(parts, self._editor)

    async def ListCheckpoints(  # noqa: N802 - the contract's name
        self,
        request: pb.ListCheckpointsRequest,
        context: Context,  # noqa: ARG002 - it answers at once
    ) -> pb.ListCheckpointsResponse:
        """A run's checkpoints, newest first, with what changed at each."""
        check = _required(run_id=request.run_id)
        size = check.number("page_size", request.page_size, least=0, most=MAXIMUM_PAGE) or USUAL_PAGE
        check.id("page_token", request.page_token, required=False)
        check.raise_if_any()
        record = await self._parts.manager.get(request.run_id)
        points = await self._looker.points(request.run_id)
        known = {point.checkpoint_id: point for point in points}
        token = request.page_token
        wanted = [point for point in reversed(points) if not token or point.checkpoint_id < token]
        page = wanted[:size]
        messages = [
            checkpoint_message(point, known.get(point.parent_id), self._looker.attempt(record, point)) for point in page
        ]
        return pb.ListCheckpointsResponse(
            checkpoints=messages, next_page_token=page[-1].checkpoint_id if len(wanted) > size else ""
        )

    async def GetCheckpoint(  # noqa: N802
        self,
        request: pb.GetCheckpointRequest,
        context: Context,  # noqa: ARG002
    ) -> pb.GetCheckpointResponse:
        """The state at one checkpoint."""
        check = _required(run_id=request.run_id)
        check.id("checkpoint_id", request.checkpoint_id, required=False)
        check.raise_if_any()
        record = await self._parts.manager.get(request.run_id)
        point, points = await self._looker.point(request.run_id, request.checkpoint_id)
        parent = next((other for other in points if other.checkpoint_id == point.parent_id), None)
        return pb.GetCheckpointResponse(
            checkpoint=checkpoint_message(point, parent, self._looker.attempt(record, point)),
            state_json=state_text(point.state_json),
            files=file_messages(await self._looker.files(record, point)),
            interrupts=[interrupt_message(interrupt) for interrupt in point.interrupts],
        )

    async def UpdateState(  # noqa: N802
        self,
        request: pb.UpdateStateRequest,
        context: Context,  # noqa: ARG002
    ) -> pb.UpdateStateResponse:
        """Changes the state of a waiting run."""
        check = _required(run_id=request.run_id, checkpoint_id=request.checkpoint_id)
        edit = _edit("edit", request.edit, check)
        check.raise_if_any()
        record = await self._editor.update(request.run_id, request.checkpoint_id, edit)
        return pb.UpdateStateResponse(run=await self._message(record))

    async def ResumeRun(  # noqa: N802
        self,
        request: pb.ResumeRunRequest,
        context: Context,  # noqa: ARG002
    ) -> pb.ResumeRunResponse:
        """Goes on with a waiting run."""
        check = _required(run_id=request.run_id)
        check.id("checkpoint_id", request.checkpoint_id, required=False)
        if len(request.answers) > MAXIMUM_ANSWERS:
            check.add("answers", f"must be at most {MAXIMUM_ANSWERS}, not {len(request.answers)}")
        for interrupt_id, answer in sorted(request.answers.items()):
            check.id(f"answers[{interrupt_id[:80]}]", interrupt_id, required=False)
            check.json(f"answers[{interrupt_id[:80]}]", answer, size_bytes=MAXIMUM_ANSWER_BYTES)
        if request.mode not in pb.ResumeMode.values():
            check.add("mode", f"{request.mode} is no mode")
        breakpoints = None
        if request.HasField("breakpoints"):
            breakpoints = Breakpoints(
                read_nodes("breakpoints.before", request.breakpoints.before, check),
                read_nodes("breakpoints.after", request.breakpoints.after, check),
            )
        check.raise_if_any()
        resume = Resume(step=request.mode == pb.RESUME_MODE_STEP, answers=dict(request.answers))
        record = await self._editor.resume(request.run_id, request.checkpoint_id, resume, breakpoints)
        return pb.ResumeRunResponse(run=await self._message(record))

    async def ForkRun(  # noqa: N802
        self,
        request: pb.ForkRunRequest,
        context: Context,  # noqa: ARG002
    ) -> pb.ForkRunResponse:
        """Makes a run that shares another's past."""
        check = _required(run_id=request.run_id)
        check.id("checkpoint_id", request.checkpoint_id, required=False)
        check.text("request_id", request.request_id, characters=MAXIMUM_REQUEST_ID)
        edit = _edit("edit", request.edit, check) if request.HasField("edit") else None
        labels = read_labels("labels", request.labels, check)
        check.raise_if_any()
        spec = await self._parts.runs.spec(request.run_id)
        options = laid_over(spec.options, "options", request.options, check)
        check.raise_if_any()
        spec = replace(spec, options=options, labels=labels or spec.labels)
        fork = Fork(request.run_id, spec, request.checkpoint_id, edit, wait=request.wait)
        made = await self._forker.made(request.request_id, fork)  # whatever the sandbox offers by now
        if made is None:
            await self._check_offered(spec)
            made = await self._forker.fork(request.request_id, fork)
        return pb.ForkRunResponse(run=await self._message(made))

    async def ReplayRun(  # noqa: N802
        self,
        request: pb.ReplayRunRequest,
        context: Context,  # noqa: ARG002
    ) -> pb.ReplayRunResponse:
        """Plays a run again from its tape."""
        check = _required(run_id=request.run_id)
        check.id("live_from", request.live_from, required=False)
        check.raise_if_any()
        options: RunOptions | None = None
        if request.HasField("options"):
            spec = await self._parts.runs.spec(request.run_id)
            options = laid_over(spec.options, "options", request.options, check)
            check.raise_if_any()
            if request.live_from:
                await self._check_offered(replace(spec, options=options))
        record, equal, divergence = await self._looker.replay(request.run_id, request.live_from, options)
        return pb.ReplayRunResponse(
            run=await self._message(record), equal_steps=equal, divergence=divergence_message(divergence)
        )

    async def CompareRuns(  # noqa: N802
        self,
        request: pb.CompareRunsRequest,
        context: Context,  # noqa: ARG002
    ) -> pb.CompareRunsResponse:
        """Two runs side by side."""
        _required(run_id=request.run_id, other_run_id=request.other_run_id).raise_if_any()
        found = await self._looker.compare(request.run_id, request.other_run_id)
        return pb.CompareRunsResponse(
            run=await self._message(found.one, whole=False),
            other=await self._message(found.two, whole=False),
            common_steps=found.common_steps,
            divergence=divergence_message(found.divergence),
            result_changes=change_messages(found.result_changes),
            files_diff=found.files_diff,
        )

    async def _check_offered(self, spec: RunSpec) -> None:
        if (offered := await self._offered()) is not None:
            check_offered(spec, offered, "options")

    async def _message(self, record: RunRecord, *, whole: bool = True) -> runs_pb2.Run:
        return await run_message(record, self._parts.artifacts, whole=whole)


def _required(**ids: str) -> Checker:
    check = Checker()
    for name, value in ids.items():
        check.id(name, value)
    return check


def _edit(at: str, message: pb.StateEdit, check: Checker) -> Edit:
    check.id(f"{at}.as_node", message.as_node, required=False)
    if message.values_json:
        check.json(f"{at}.values_json", message.values_json, size_bytes=MAXIMUM_EDIT_BYTES)
    return Edit(message.values_json, check.files(f"{at}.files", message.files), message.as_node)
