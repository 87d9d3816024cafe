"""Plays a case against the graph and the prompts of today, in this process in milliseconds, and tells what differs."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.runtime import RunControl
from pydantic import ValidationError

from orchestrator.errors import Diverged
from orchestrator.runs.cases.body import CaseBody, RecordedStep
from orchestrator.runs.cases.offline import MemoryArtifacts, NoModels, NoSandbox
from orchestrator.runs.checkpoints import serializer
from orchestrator.runs.tape import ReplayTape
from orchestrator.runs.taped_models import TapedModels
from orchestrator.runs.traces import Divergence, Point, Trace, compare, own_path, read_points, replay
from orchestrator.workflows import (
    WORKFLOWS,
    CodegenContext,
    Finished,
    Graph,
    Outcome,
    Progress,
    RunSpec,
    Workflow,
    WorkflowEvent,
    canonical,
)

LONGEST_PLAY = timedelta(seconds=60)  # a case takes milliseconds; one that was made up must not hold a suite
_THREAD = "case"


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a case.

    Attributes:
        outcome: None where the way did not come to its end.
        path: the way through the graph, node by node.
        files_hash: of the files delivered; empty: none.
        equal_steps: steps from the beginning that are as recorded, byte for byte.
        divergence: the first step that is not; None: all are.
    """

    outcome: Outcome | None
    path: tuple[str, ...]
    files_hash: str
    equal_steps: int
    divergence: Divergence | None


async def play(body: CaseBody, spec: RunSpec) -> Played:
    """Plays a case.

    Args:
        body: the case.
        spec: its request, perhaps with other options.
    """
    workflow = WORKFLOWS.get(spec.workflow)
    if workflow is None:
        return _never_begun(body, f"there is no workflow {spec.workflow[:80]!r} any more")
    graph = workflow.build(InMemorySaver(serde=serializer()))
    original = _points(body, workflow)
    if isinstance(original, Divergence):
        return Played(None, (), "", 0, original)
    context = _context(body, spec, workflow, original)
    end, met = await _drive(body, graph, workflow, context, start=workflow.start(spec), original=original)
    points = await read_points(graph, workflow, _THREAD)
    path = own_path(points)
    known = original if met is None else original[: len(path)]
    equal, divergence = compare(Trace(known, ()), Trace(path, ()))
    if divergence is None and met is not None:
        divergence = _placed(met, original, path)
    conclusion = end.conclusion if end is not None else None
    delivered = context.progress.find(conclusion.delivered) if conclusion is not None else None
    return Played(
        outcome=conclusion.outcome if conclusion is not None else None,
        path=way(path),
        files_hash=delivered.code_hash if delivered is not None else "",
        equal_steps=equal,
        divergence=divergence,
    )


def way(points: Sequence[Point]) -> tuple[str, ...]:
    """The nodes that were run on the way through these points, in order; nodes side by side count as one."""
    taken = pairwise(points)
    return tuple(node for before, after in taken if after.source == "loop" for node in before.next if node[:2] != "__")


async def _drive(
    body: CaseBody,
    graph: Graph,
    workflow: Workflow,
    context: CodegenContext,
    *,
    start: Mapping[str, Any],
    original: Sequence[Point],
) -> tuple[Finished | None, Exception | None]:
    """How it ended, or what it met before its end."""
    first = body.path[0]
    try:
        async with asyncio.timeout(LONGEST_PLAY.total_seconds()):
            if first.as_node:
                place: Any = {"configurable": {"thread_id": _THREAD}}
                await graph.aupdate_state(place, dict(original[0].values), as_node=first.as_node)
            end = await replay(
                graph,
                workflow,
                context,
                _THREAD,
                start=start,
                original=original,
                as_nodes={_id(index): step.as_node for index, step in enumerate(body.path) if step.as_node},
                control=RunControl(),
            )
    except TimeoutError:
        return None, TimeoutError(f"it did not end within {LONGEST_PLAY.total_seconds():g} s")
    except Exception as error:  # noqa: BLE001 - whatever a case or a changed graph does, the suite goes on
        return None, error
    return (end, None) if isinstance(end, Finished) else (None, RuntimeError("it stopped before its end"))


def _context(body: CaseBody, spec: RunSpec, workflow: Workflow, original: Sequence[Point]) -> CodegenContext:
    """What the nodes work with; of a case that begins half way, with the progress that was made by then."""
    begun = body.path[0].as_node
    tape = ReplayTape([answer.entry() for answer in body.tape])
    return CodegenContext(
        task=spec.task,
        options=spec.options,
        models=TapedModels(NoModels(body.model), tape),
        sandbox=NoSandbox(),
        artifacts=MemoryArtifacts(body.artifacts),
        deadline=asyncio.get_running_loop().time() + LONGEST_PLAY.total_seconds(),
        emit=_ignore,
        progress=workflow.progress(original[0].values, ()) if begun else Progress(),
        tape=tape,
        prompts=spec.options.prompts,
    )


def _ignore(event: WorkflowEvent) -> None:
    """Nobody watches a case."""


def _points(body: CaseBody, workflow: Workflow) -> Sequence[Point] | Divergence:
    """The recorded way, or what of it cannot be read with today's records."""
    points: list[Point] = []
    for index, step in enumerate(body.path):
        text = canonical(step.state)
        changed_next = index + 1 < len(body.path) and body.path[index + 1].source == "update"
        values: Mapping[str, Any] = {}
        if step.as_node or step.source == "update" or changed_next:
            try:
                values = workflow.read_state(text)
            except ValidationError as error:
                return Divergence(step.step, _name(step.next), "state", f"the recorded state does not fit: {error}")
        points.append(_point(index, step, text, values))
    return points


def _point(index: int, step: RecordedStep, text: str, values: Mapping[str, Any]) -> Point:
    return Point(
        checkpoint_id=_id(index),
        parent_id=_id(index - 1) if index else "",
        step=step.step,
        source=step.source,
        create_time=datetime.fromtimestamp(0, UTC),
        next=step.next,
        step_ids=(),
        state_json=text,
        interrupts=(),
        values=values,
    )


def _placed(met: Exception, original: Sequence[Point], path: Sequence[Point]) -> Divergence:
    """What broke a replay off, at the step that it was in."""
    at = min(len(path), len(original) - 1)
    step = original[at].step
    if isinstance(met, Diverged):
        return Divergence(step, met.name.partition("/")[0], met.kind, met.detail)
    node = _name(path[-1].next if path else ())
    said = str(met).splitlines()[0][:500] if str(met) else ""
    return Divergence(step, node, "graph", f"it broke off with {type(met).__name__}: {said}")


def _never_begun(body: CaseBody, why: str) -> Played:
    return Played(None, (), "", 0, Divergence(body.path[0].step, "start", "graph", why))


def _name(nodes: Sequence[str]) -> str:
    return ", ".join(nodes) or "start"


def _id(index: int) -> str:
    """An id that sorts as the points do."""
    return f"{index:08d}"
