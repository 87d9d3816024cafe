"""What the rest of the service knows of a workflow: its name and nodes, how its state begins, is read and changed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import StateSnapshot

from orchestrator.workflows import codegen, routes
from orchestrator.workflows.editrules import NamedArtifact, named_artifacts
from orchestrator.workflows.edits import read_edit
from orchestrator.workflows.editways import check_way
from orchestrator.workflows.graph_types import Graph
from orchestrator.workflows.spec import RunSpec
from orchestrator.workflows.state import CodegenState, Draft, Plan, Progress
from orchestrator.workflows.statejson import read_state, state_json
from orchestrator.workflows.templates import prompt_names


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow.

    Attributes:
        version: of its graph; a run goes on only with the version that it began with.
        nodes: names of its nodes, where a run can be stopped.
        prompts: names of its prompt files.
        build: makes the graph over a saver.
        start: the graph's input for a request.
        state_json: a state as canonical JSON.
        read_state: the state back; raises pydantic.ValidationError.
        read_edit: an edit as JSON, onto a state, as what a node would return; raises InvalidRun.
        edit_artifacts: the artifacts that an edit of a state names anew.
        check_way: whether the graph can go on from an edit of a state, made in a node's name; raises InvalidRun.
        progress: the run so far, of a state and what steps returned that ended after it.
        code_hash: files of the draft that waits for its execution, or of the newest attempt; empty: no code yet.
        draft_hash: files of the draft that waits for its execution; empty: none waits.
        with_draft: what a node would return that gives the waiting draft other files.
        attempts_due: attempts that a state has, or that the nodes which come next make, whatever limit there is.
    """

    name: str
    version: int
    nodes: tuple[str, ...]
    prompts: tuple[str, ...]
    build: Callable[[BaseCheckpointSaver[Any] | None], Graph]
    start: Callable[[RunSpec], CodegenState]
    state_json: Callable[[Mapping[str, Any]], str]
    read_state: Callable[[str], dict[str, Any]]
    read_edit: Callable[[str, Mapping[str, Any]], CodegenState]
    edit_artifacts: Callable[[Mapping[str, Any], CodegenState], Sequence[NamedArtifact]]
    check_way: Callable[[Mapping[str, Any], CodegenState, str], None]
    progress: Callable[[Mapping[str, Any], Iterable[Mapping[str, Any]]], Progress]
    code_hash: Callable[[Mapping[str, Any]], str]
    draft_hash: Callable[[Mapping[str, Any]], str]
    with_draft: Callable[[Mapping[str, Any], str], CodegenState]
    attempts_due: Callable[[Mapping[str, Any], Sequence[str]], int]


async def progress_so_far(workflow: Workflow, graph: Graph, thread_id: str) -> Progress:
    """The run so far, as its newest checkpoint and the steps that ended after it have it."""
    # Of the history, since the current state as LangGraph gives it may have the ended steps' results in its values.
    history = graph.aget_state_history({"configurable": {"thread_id": thread_id}}, limit=1)
    newest: list[StateSnapshot] = [snapshot async for snapshot in history]
    if not newest:
        return Progress()
    results = [task.result for task in newest[0].tasks if isinstance(task.result, Mapping)]
    return workflow.progress(newest[0].values, results)


def _start(spec: RunSpec) -> CodegenState:
    return {"plan": Plan(), "candidates": spec.options.candidates}


def _progress(values: Mapping[str, Any], results: Iterable[Mapping[str, Any]]) -> Progress:
    progress = Progress()
    for fragment in (values, *results):
        progress.apply(CodegenState(**fragment))  # type: ignore[typeddict-item]
    return progress


def _draft_hash(values: Mapping[str, Any]) -> str:
    draft = values.get("draft")
    return draft.code_hash if isinstance(draft, Draft) else ""


def _code_hash(values: Mapping[str, Any]) -> str:
    attempts = [attempt.code_hash for attempt in values.get("attempts", []) if attempt.code_hash]
    return _draft_hash(values) or (attempts[-1] if attempts else "")


def _with_draft(values: Mapping[str, Any], name: str) -> CodegenState:
    draft: Draft = values["draft"]
    return {"draft": replace(draft, code_hash=name)}


def _attempts_due(values: Mapping[str, Any], following: Sequence[str]) -> int:
    numbers = [attempt.number for attempt in values.get("attempts", [])]
    if isinstance(draft := values.get("draft"), Draft):
        numbers.append(draft.number)
    if {routes.GENERATE, routes.REPAIR} & set(following):
        numbers.append(values["plan"].number)
    if routes.CANDIDATE in following:
        numbers.append(values["candidates"])
    return max(numbers, default=0)


CODEGEN_WORKFLOW = Workflow(
    name=codegen.NAME,
    version=codegen.VERSION,
    nodes=(routes.GENERATE, routes.CANDIDATE, routes.EXECUTE, routes.DECIDE, routes.REPAIR, routes.FINALIZE),
    prompts=prompt_names(),
    build=codegen.build,
    start=_start,
    state_json=state_json,
    read_state=read_state,
    read_edit=read_edit,
    edit_artifacts=named_artifacts,
    check_way=check_way,
    progress=_progress,
    code_hash=_code_hash,
    draft_hash=_draft_hash,
    with_draft=_with_draft,
    attempts_due=_attempts_due,
)

WORKFLOWS: Mapping[str, Workflow] = {CODEGEN_WORKFLOW.name: CODEGEN_WORKFLOW}
