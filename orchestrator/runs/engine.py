"""Between a run's record and its graph: what a stretch of work needs is read from the database, and its result made.

One engine serves all runs of the process, with one compiled graph a workflow over one saver.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.runtime import RunControl

from orchestrator.errors import Diverged, GraphChanged, StoreError
from orchestrator.runs.observing import Observer, both
from orchestrator.runs.outcome import result_of
from orchestrator.runs.recorder import Recorder
from orchestrator.runs.records import Origin, OriginKind, Resume, RunRecord
from orchestrator.runs.redaction import Redactor
from orchestrator.runs.states import RunResult
from orchestrator.runs.store import Claim, EventRows, RunRows, TapeRows
from orchestrator.runs.tape import LiveTape, ReplayTape
from orchestrator.runs.taped_models import TapedModels
from orchestrator.runs.traces import (
    Point,
    copy_checkpoints,
    edited_as,
    fork_behind,
    own_path,
    path_to,
    read_points,
    replay,
)
from orchestrator.workflows import (
    WORKFLOWS,
    Artifacts,
    CodegenContext,
    Conclusion,
    Drained,
    Finished,
    Graph,
    Models,
    NodeFinished,
    Outcome,
    Paused,
    Progress,
    RunSpec,
    Stop,
    Tape,
    Workflow,
    break_off,
    conclude,
    drive,
    progress_so_far,
)
from orchestrator.workflows.sandbox import Sandbox

logger = logging.getLogger(__name__)

LONGEST_TIME = timedelta(days=3650)  # a run without a deadline: one that waits


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a stretch of work works with."""

    run_id: str
    workflow: Workflow
    spec: RunSpec
    context: CodegenContext

    @property
    def progress(self) -> Progress:
        """The run so far."""
        return self.context.progress


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What runs are carried out with."""

    models: Models
    sandbox: Sandbox
    artifacts: Artifacts
    runs: RunRows
    events: EventRows
    tapes: TapeRows
    saver: BaseCheckpointSaver[Any]
    sandbox_patience: timedelta
    redact: Redactor
    observer: Observer


class Engine:
    """The engine of all workflows."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self.observer = parts.observer
        self.redact = parts.redact
        self.workflows: Mapping[str, Workflow] = WORKFLOWS
        self.graphs: Mapping[str, Graph] = {name: workflow.build(parts.saver) for name, workflow in WORKFLOWS.items()}

    async def prepare(self, record: RunRecord, claim: Claim, recorder: Recorder) -> Prepared:
        """Reads what is needed to go on with a run.

        Raises:
            GraphChanged: it was begun with another version of its graph.
            StoreUnavailable: the database does not answer.
        """
        workflow = workflow_of(record)
        spec = await self._parts.runs.spec(record.run_id)
        shared = await self._shared(record)
        await self._copy_shared_past(record, shared)
        tape = await self._tape(record, claim, shared)
        left = (record.deadline - datetime.now(UTC)) if record.deadline is not None else LONGEST_TIME
        context = self._context(
            record,
            spec,
            tape=tape,
            recorder=recorder,
            time_left=left,
            progress=await self.progress(record),
        )
        return Prepared(record.run_id, workflow, spec, context)

    async def _tape(self, record: RunRecord, claim: Claim, shared: Sequence[Point]) -> Tape:
        """The run's own tape; for a replay, one that answers from its original's."""
        tapes, origin = self._parts.tapes, record.origin
        known = await tapes.read(record.run_id) if record.epoch > 1 or origin is not None else ()
        live = LiveTape(tapes, claim, known, redact=self._parts.redact)
        if origin is None or origin.kind is not OriginKind.REPLAY:
            return live
        past = {step_id for point in shared[:-1] for step_id in point.step_ids}
        entries = [entry for entry in await tapes.read(origin.run_id) if entry.step_id.partition("/")[0] not in past]
        return ReplayTape(entries, live_from=origin.live_from, live=live)

    def _context(
        self,
        record: RunRecord,
        spec: RunSpec,
        *,
        tape: Tape,
        recorder: Recorder,
        time_left: timedelta,
        progress: Progress,
    ) -> CodegenContext:
        """What the nodes of a run work with."""
        return CodegenContext(
            task=spec.task,
            options=spec.options,
            models=TapedModels(self._parts.models, tape) if isinstance(tape, ReplayTape) else self._parts.models,
            sandbox=self._parts.sandbox,
            artifacts=self._parts.artifacts,
            deadline=asyncio.get_running_loop().time() + time_left.total_seconds(),
            emit=both(record.run_id, recorder.emit, self.observer),
            emit_tokens=None if spec.options.omit_tokens else recorder.emit_tokens,
            flush=recorder.flush,
            sandbox_patience=self._parts.sandbox_patience,
            progress=progress,
            run_id=record.run_id,
            tenant=spec.tenant,
            tape=tape,
            prompts=spec.options.prompts,
        )

    async def drive(self, record: RunRecord, prepared: Prepared, control: RunControl) -> Finished | Paused | Drained:
        """Drives the graph from where it stands to its end, the next breakpoint, or the next step once drained."""
        graph, resume, origin = self.graphs[record.workflow], record.resume or Resume(), record.origin
        start = prepared.workflow.start(prepared.spec)
        if origin is not None and origin.kind is OriginKind.REPLAY:
            return await self._replay(record, origin, prepared, control)
        return await drive(
            graph,
            prepared.context,
            record.run_id,
            start=start,
            before=record.breakpoints.before,
            after=record.breakpoints.after,
            step=resume.step,
            answers=resume.answers,
            control=control,
            passed=resume.checkpoint_id,
        )

    async def _replay(
        self, record: RunRecord, origin: Origin, prepared: Prepared, control: RunControl
    ) -> Finished | Paused | Drained:
        graph, workflow = self.graphs[record.workflow], prepared.workflow
        points = await read_points(graph, workflow, origin.run_id)
        path = own_path(points)
        try:
            return await replay(
                graph,
                workflow,
                prepared.context,
                record.run_id,
                start=workflow.start(prepared.spec),
                original=path,
                as_nodes=await edited_as(self._parts.events, origin.run_id),
                control=control,
            )
        except Diverged as error:
            stop = await self._broken_off_there(record, origin, path)
            reason = f"the replay differs from {origin.run_id}: {str(error).splitlines()[0]}"
            return Finished(break_off(prepared.context, stop or Stop(Outcome.ERROR, reason)))

    async def _broken_off_there(self, record: RunRecord, origin: Origin, path: Sequence[Point]) -> Stop | None:
        """How the original ended, where it was broken off, and the replay is as far."""
        ended = (await self._parts.runs.get(origin.run_id)).result
        if ended is None or origin.live_from or not path or not path[-1].next:
            return None
        own = own_path(await read_points(self.graphs[record.workflow], workflow_of(record), record.run_id))
        return Stop(ended.outcome, ended.reason) if len(own) == len(path) else None

    async def _copy_shared_past(self, record: RunRecord, shared: Sequence[Point]) -> None:
        """A fork's replay begins where the fork did: what came before was asked for with other options."""
        origin = record.origin
        if origin is None or origin.kind is not OriginKind.REPLAY or record.epoch > 1:
            return
        path = [point.checkpoint_id for point in shared]
        await copy_checkpoints(self._parts.saver, origin.run_id, record.run_id, path)

    async def _shared(self, record: RunRecord) -> Sequence[Point]:
        """The points of a replay's original up to where it, or what it is a replay of, branched off; none: nowhere."""
        origin = record.origin
        if origin is None or origin.kind is not OriginKind.REPLAY:
            return ()
        forked = await fork_behind(self._parts.runs, origin)
        if forked is None:
            return ()
        points = await read_points(self.graphs[record.workflow], workflow_of(record), origin.run_id)
        return path_to(points, forked.checkpoint_id)

    async def progress(self, record: RunRecord) -> Progress:
        """The run so far, as its newest checkpoint and the steps that ended after it have it."""
        return await progress_so_far(workflow_of(record), self.graphs[record.workflow], record.run_id)

    async def result(self, prepared: Prepared, conclusion: Conclusion) -> RunResult:
        """The result, with the best attempt's files read back under the hash that was executed."""
        return await self._result(prepared.run_id, prepared.progress, prepared.spec, conclusion)

    async def early_result(self, record: RunRecord, stop: Stop) -> RunResult:
        """The result of a run that nobody works on, and that is ended as it stands; where that is lost, without it."""
        try:
            progress = await self.progress(record)
            spec = await self._parts.runs.spec(record.run_id)
            return await self._result(record.run_id, progress, spec, conclude(progress, stop))
        except GraphChanged:  # its checkpoints cannot be read here
            return RunResult(stop.outcome, stop.reason)
        except StoreError:
            raise
        except Exception:
            logger.exception("what a run had come to is lost", extra={"run": record.run_id})
            return RunResult(stop.outcome, f"{stop.reason}; what it had come to cannot be read any more")

    async def _result(self, run_id: str, progress: Progress, spec: RunSpec, conclusion: Conclusion) -> RunResult:
        times: dict[str, timedelta] = {}
        for event in await self._parts.events.of_kind(run_id, NodeFinished.__name__):
            if isinstance(event.payload, NodeFinished):
                times[event.payload.node] = times.get(event.payload.node, timedelta()) + event.payload.duration
        return await result_of(conclusion, progress, spec.task.files, self._parts.artifacts, times)


def workflow_of(record: RunRecord) -> Workflow:
    """The run's workflow. Raises GraphChanged where this service has another version of it, or none."""
    workflow = WORKFLOWS.get(record.workflow)
    if workflow is None or workflow.version != record.graph_version:
        has = f"version {workflow.version}" if workflow is not None else "no such workflow"
        made = f"{record.run_id} was begun with version {record.graph_version} of {record.workflow!r}"
        raise GraphChanged(f"{made}; this service has {has}")
    return workflow
