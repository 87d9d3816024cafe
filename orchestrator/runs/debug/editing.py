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

from orchestrator.errors import InvalidRun, StaleCheckpoint, WrongState
from orchestrator.runs.assembly import RunParts
from orchestrator.runs.engine import workflow_of
from orchestrator.runs.events import StateEdited
from orchestrator.runs.records import Breakpoints, Resume, RunRecord, Wait
from orchestrator.runs.states import RunState
from orchestrator.runs.store import happened
from orchestrator.runs.traces import Point, last_node, path_to, read_points
from orchestrator.workflows import Workflow, load_files, overlay, save_files
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
        record, point = await self._waiting(run_id, checkpoint_id)
        if point.interrupts:
            raise WrongState(
                f"{run_id} waits for answers, which an edit would throw away: give them with ResumeRun first"
            )
        workflow = workflow_of(record)
        fragment = await self.fragment(workflow, point, edit)
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
        record, point = await self._waiting(run_id, checkpoint_id)
        open_questions = {interrupt.interrupt_id for interrupt in point.interrupts}
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

    async def fragment(self, workflow: Workflow, point: Point, edit: Edit) -> Mapping[str, Any]:
        """The edit as what a node would return. Raises InvalidRun, or WrongState where no draft waits."""
        fragment = dict(workflow.read_edit(edit.values_json, point.values)) if edit.values_json else {}
        if edit.files:
            below = workflow.draft_hash({**point.values, **fragment})
            if not below:
                raise WrongState("no draft waits for its execution at this checkpoint, so no file of it can be changed")
            files = overlay(await load_files(self._parts.artifacts, below), edit.files)
            name = await save_files(self._parts.artifacts, files)
            fragment.update(workflow.with_draft({**point.values, **fragment}, name))
        if not fragment:
            raise InvalidRun(("edit", "must change something: give values_json or files"))
        return fragment

    async def write(
        self, workflow: str, run_id: str, point: Point, fragment: Mapping[str, Any], as_node: str
    ) -> tuple[Point, str]:
        """Makes the new checkpoint; gives it back with the node in whose name it was made. Raises InvalidRun."""
        graph = self._parts.engine.graphs[workflow]
        place = {"thread_id": run_id, "checkpoint_ns": "", "checkpoint_id": point.checkpoint_id}
        config: RunnableConfig = {"configurable": place}
        points = await self._points(workflow, run_id)
        as_node = as_node or last_node(path_to(points, point.checkpoint_id))
        try:
            await graph.aupdate_state(config, dict(fragment), as_node=as_node)
        except InvalidUpdateError as error:
            nodes = ", ".join(self._parts.engine.workflows[workflow].nodes)
            raise InvalidRun(("edit.as_node", f"{str(error).splitlines()[0]}; the nodes are {nodes}")) from error
        return (await self._points(workflow, run_id))[-1], as_node

    async def _points(self, workflow: str, run_id: str) -> Sequence[Point]:
        engine = self._parts.engine
        return await read_points(engine.graphs[workflow], engine.workflows[workflow], run_id)

    async def _waiting(self, run_id: str, checkpoint_id: str) -> tuple[RunRecord, Point]:
        """A run that waits, and the point at which it does. An edit whose answer got lost counts as made."""
        record = await self._parts.manager.get(run_id)
        if record.state is not RunState.WAITING or record.wait is None:
            raise WrongState(f"{run_id} is {record.state}, and only a WAITING run can be changed or resumed")
        workflow_of(record)
        points = await self._points(record.workflow, run_id)
        if not points:
            raise WrongState(f"{run_id} has no checkpoint yet")
        if checkpoint_id and points[-1].checkpoint_id != checkpoint_id:
            raise StaleCheckpoint(run_id, checkpoint_id, points[-1].checkpoint_id)
        return record, points[-1]


def _named(ids: Iterable[str]) -> str:
    return ", ".join(json.dumps(one) for one in sorted(ids)) or "none"
