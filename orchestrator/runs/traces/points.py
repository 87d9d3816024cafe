"""The checkpoints of a run as points on its way: what each holds, what comes next, and what changed since the last.

Read through LangGraph's public history; a branch that an edit left behind is there too, off the path.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from langgraph.types import StateSnapshot

from orchestrator.runs.records import Interrupt
from orchestrator.workflows import Graph, Workflow

PREVIEW_CHARS = 200


@dataclass(frozen=True, slots=True)
class Point:
    """One checkpoint.

    Attributes:
        step: -1 for the input, then 0, 1, 2, …
        source: "input", "loop", "update" or "fork".
        next: nodes that come next.
        step_ids: of the steps that come next, as tapes and events have them.
        state_json: the state as canonical JSON.
        on_path: whether the newest checkpoint comes of it.
    """

    checkpoint_id: str
    parent_id: str
    step: int
    source: str
    create_time: datetime
    next: tuple[str, ...]
    step_ids: tuple[str, ...]
    state_json: str
    interrupts: tuple[Interrupt, ...]
    values: Mapping[str, Any]
    on_path: bool = False


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field that changed, with the beginnings of both values as JSON; empty: there was none."""

    field: str
    before: str
    after: str


async def read_points(graph: Graph, workflow: Workflow, run_id: str) -> Sequence[Point]:
    """All checkpoints of a run, oldest first; empty where it has none yet."""
    history = graph.aget_state_history({"configurable": {"thread_id": run_id}})
    points = [_point(snapshot, workflow) async for snapshot in history]
    points.sort(key=lambda point: point.checkpoint_id)
    parents = {point.checkpoint_id: point.parent_id for point in points}
    path: set[str] = set()
    head = points[-1].checkpoint_id if points else ""
    while head and head not in path:
        path.add(head)
        head = parents.get(head, "")
    return [replace(point, on_path=point.checkpoint_id in path) for point in points]


def path_to(points: Sequence[Point], checkpoint_id: str) -> Sequence[Point]:
    """The points from the beginning to a checkpoint; empty where it is not among them."""
    known = {point.checkpoint_id: point for point in points}
    path: list[Point] = []
    while (point := known.get(checkpoint_id)) is not None:
        path.append(point)
        checkpoint_id = point.parent_id
    return path[::-1]


def own_path(points: Sequence[Point]) -> Sequence[Point]:
    """The points from the beginning to where the run stands."""
    return path_to(points, points[-1].checkpoint_id) if points else ()


def changes(before: str, after: str) -> Sequence[FieldChange]:
    """What differs between two states or other values as JSON, field by field, in order of name."""
    old, new = _flat(json.loads(before or "{}")), _flat(json.loads(after or "{}"))
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return [FieldChange(name, old.get(name, "")[:PREVIEW_CHARS], new.get(name, "")[:PREVIEW_CHARS]) for name in names]


def _flat(value: Any, name: str = "") -> dict[str, str]:  # noqa: ANN401 - any JSON value
    """A JSON value as its scalars, each under the names that lead to it, joined by dots."""
    if isinstance(value, dict) and (value or not name):
        parts = ((f"{name}.{key}" if name else key, inner) for key, inner in value.items())
    elif isinstance(value, list) and value:
        parts = ((f"{name}.{index}", inner) for index, inner in enumerate(value))
    else:
        return {name: json.dumps(value, ensure_ascii=False)}
    return {key: text for part, inner in parts for key, text in _flat(inner, part).items()}


def _point(snapshot: StateSnapshot, workflow: Workflow) -> Point:
    metadata = snapshot.metadata or {}
    parent = snapshot.parent_config or {}
    interrupts = tuple(
        Interrupt(interrupt.id, task.name, json.dumps(interrupt.value, ensure_ascii=False, default=str))
        for task in snapshot.tasks
        for interrupt in task.interrupts
    )
    return Point(
        checkpoint_id=snapshot.config["configurable"]["checkpoint_id"],
        parent_id=parent.get("configurable", {}).get("checkpoint_id", ""),
        step=int(metadata.get("step", -1)),
        source=str(metadata.get("source", "")),
        create_time=datetime.fromisoformat(snapshot.created_at or "1970-01-01T00:00:00+00:00"),
        next=tuple(dict.fromkeys(snapshot.next)),
        step_ids=tuple(task.id for task in snapshot.tasks),
        state_json=workflow.state_json(snapshot.values),
        interrupts=interrupts,
        values=snapshot.values,
    )
