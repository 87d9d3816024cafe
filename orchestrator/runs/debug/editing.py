"""Changes a waiting run, and goes on with it: each against the checkpoint that the caller has seen.

Two callers who change one run at a time are told apart by the run's epoch: the first takes a new one before it touches
the graph's state, so the other is refused and leaves nothing behind.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import InvalidUpdateError

from orchestrator.errors import ArtifactMissing, InvalidRun, StaleCheckpoint, WrongState
from orchestrator.runs.assembly import RunParts
from orchestrator.runs.engine import workflow_of
from orchestrator.runs.events import StateEdited
from orchestrator.runs.records import Breakpoints, Interrupt, Resume, RunRecord, Wait
from orchestrator.runs.states import RunState
from orchestrator.runs.store import happened
from orchestrator.runs.traces import Point, last_node, own_path, path_to, read_points
from orchestrator.workflows import (
    CodegenState,
    NamedArtifact,
    Workflow,
    edit_fault,
    load,
    load_files,
    overlay,
    save_files,
)
from orchestrator.workflows.sandbox import File


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a graph's state.

    Attributes:
        values_json: new values as a JSON object, merged onto the records that are there; empty: none.
        files: laid over those of the draft that waits for its execution.
        as_node: in whose name; empty: the node that ran last.
    """

    values_json: str = ""
    files: tuple[File, ...] = ()
    as_node: str = ""


class Editor:
    """Edits and resumes runs."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts

    async def update(self, run_id: str, checkpoint_id: str, edit: Edit) -> RunRecord:
        """Changes the state of a WAITING run, and lets it wait at the checkpoint that comes of it.

        Raises:
            WrongState: it does not wait, or waits for answers.
            StaleCheckpoint: it stands at another checkpoint, or somebody else changes it at the same time.
            InvalidRun: the edit does not fit the state.
        """
        record, path = await self._waiting(run_id, checkpoint_id)
        point = path[-1]
        if _open(record):
            raise WrongState(
                f"{run_id} waits for answers, which an edit would throw away: give them with ResumeRun first"
            )
        workflow = workflow_of(record)
        fragment = await self.fragment(workflow, path[-1], edit, path)
        held = await self._parts.runs.hold(record)
        if held is None:
            raise StaleCheckpoint(run_id, checkpoint_id, "one that somebody else makes at this moment")
        try:
            made, as_node = await self.write(record.workflow, run_id, point, fragment, edit.as_node)
        except BaseException:
            await self._parts.runs.release(held)
            raise
        wait = Wait(made.checkpoint_id, made.next, "edited")
        told = StateEdited(point.checkpoint_id, made.checkpoint_id, as_node, tuple(sorted(fragment)))
        edited = await self._parts.manager.edited(held, wait, happened(told))
        if edited is None:
            raise StaleCheckpoint(run_id, checkpoint_id, "one that somebody else made")
        return edited

    async def resume(
        self, run_id: str, checkpoint_id: str, resume: Resume, breakpoints: Breakpoints | None
    ) -> RunRecord:
        """Queues a WAITING run again.

        Raises:
            WrongState: it does not wait, an answer names no open question, or one is missing.
            StaleCheckpoint: it stands at another checkpoint, or somebody else has resumed it at the same time.
        """
        record, path = await self._waiting(run_id, checkpoint_id)
        point = path[-1]
        open_questions = {interrupt.interrupt_id for interrupt in _open(record)}
        if unknown := sorted(resume.answers.keys() - open_questions):
            raise WrongState(f"{run_id} has no open question {unknown[0]!r}; open are: {_named(open_questions)}")
        if missing := sorted(open_questions - resume.answers.keys()):
            raise WrongState(f"{run_id} waits for answers to {_named(missing)}")
        resume = replace(resume, checkpoint_id=point.checkpoint_id)
        resumed = await self._parts.manager.resume(record, resume, breakpoints)
        if resumed is None:
            now = await self._parts.manager.get(run_id)
            raise WrongState(f"{run_id} is {now.state} by now: somebody else has gone on with it")
        return resumed

    async def fragment(self, workflow: Workflow, point: Point, edit: Edit, path: Sequence[Point]) -> Mapping[str, Any]:
        """The edit as what a node would return, checked for where the graph goes from there.

        Args:
            workflow: the run's.
            point: where the state is edited.
            edit: the change.
            path: the points up to there; they tell which node ran last.

        Raises:
            InvalidRun: the edit does not fit the state, or names what is not kept.
            WrongState: files are given and no draft waits for them.
        """
        if point.source == "input":
            raise InvalidRun(("edit", "nothing can be changed at this checkpoint: the state begins with the next one"))
        fragment = workflow.read_edit(edit.values_json, point.values) if edit.values_json else CodegenState()
        for named in workflow.edit_artifacts(point.values, fragment):
            await self._check_kept(named)
        if edit.files:
            fragment.update(await self._refiled(workflow, {**point.values, **fragment}, edit.files))
        if not fragment:
            raise InvalidRun(("edit", "must change something: give values_json or files"))
        workflow.check_way(point.values, fragment, edit.as_node or last_node(path))
        return fragment

    async def _refiled(self, workflow: Workflow, values: Mapping[str, Any], files: Sequence[File]) -> CodegenState:
        """The draft with files laid over its own."""
        below_hash = workflow.draft_hash(values)
        if not below_hash:
            raise WrongState("no draft waits for its execution at this checkpoint, so no file of it can be changed")
        below = await load_files(self._parts.artifacts, below_hash)
        whole = overlay(below, files)
        if fault := edit_fault(below, whole):
            raise InvalidRun(("edit.files", fault))
        return workflow.with_draft(values, await save_files(self._parts.artifacts, whole))

    async def _check_kept(self, named: NamedArtifact) -> None:
        try:
            await load(self._parts.artifacts, named.kind, named.name)
        except ArtifactMissing as error:
            limit = f"must be the SHA-256, 64 hex digits, of {named.what} that is kept, not {named.name[:80]!r}"
            raise InvalidRun((named.field, limit)) from error

    async def write(
        self, workflow: str, run_id: str, point: Point, fragment: Mapping[str, Any], as_node: str
    ) -> tuple[Point, str]:
        """Makes the new checkpoint; gives it back with the node in whose name it was made. Raises InvalidRun."""
        graph, known = self._parts.engine.graphs[workflow], self._parts.engine.workflows[workflow]
        place = {"thread_id": run_id, "checkpoint_ns": "", "checkpoint_id": point.checkpoint_id}
        config: RunnableConfig = {"configurable": place}
        points = await self._points(workflow, run_id)
        as_node = as_node or last_node(path_to(points, point.checkpoint_id))
        try:
            await graph.aupdate_state(config, dict(fragment), as_node=as_node)
        except (InvalidUpdateError, LookupError) as error:  # the latter from a route that misses something
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InvalidRun(("edit.as_node", f"{text}; the nodes are {', '.join(known.nodes)}")) from error
        return (await self._points(workflow, run_id))[-1], as_node

    async def _points(self, workflow: str, run_id: str) -> Sequence[Point]:
        engine = self._parts.engine
        return await read_points(engine.graphs[workflow], engine.workflows[workflow], run_id)

    async def _waiting(self, run_id: str, checkpoint_id: str) -> tuple[RunRecord, Sequence[Point]]:
        """A run that waits, and the way to where it does. An edit whose answer got lost counts as made."""
        record = await self._parts.manager.get(run_id)
        if record.state is not RunState.WAITING or record.wait is None:
            raise WrongState(f"{run_id} is {record.state}, and only a WAITING run can be changed or resumed")
        workflow_of(record)
        points = await self._points(record.workflow, run_id)
        if not points:
            raise WrongState(f"{run_id} has no checkpoint yet")
        if checkpoint_id and points[-1].checkpoint_id != checkpoint_id:
            raise StaleCheckpoint(run_id, checkpoint_id, points[-1].checkpoint_id)
        return record, own_path(points)


def _open(record: RunRecord) -> Sequence[Interrupt]:
    """The questions that are still open: a checkpoint also has those that were answered in its step."""
    return record.wait.interrupts if record.wait is not None else ()


def _named(ids: Iterable[str]) -> str:
    return ", ".join(json.dumps(one) for one in sorted(ids)) or "none"
