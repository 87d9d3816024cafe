"""Plays a run again, on a tape that answers for model and sandbox, with the edits that were made of it on its way."""

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.runtime import RunControl

from orchestrator.runs.traces.points import Point, own_path, read_points
from orchestrator.workflows import CodegenContext, Drained, Finished, Graph, Paused, Workflow, drive


async def replay(
    graph: Graph,
    workflow: Workflow,
    context: CodegenContext,
    run_id: str,
    *,
    start: Mapping[str, Any],
    original: Sequence[Point],
    as_nodes: Mapping[str, str],
    control: RunControl,
) -> Finished | Paused | Drained:
    """Drives a replay to its end; breakpoints of the original are passed by.

    Args:
        graph: the graph of today.
        workflow: its workflow.
        context: with a tape that answers from the original's.
        run_id: of the replay, whose thread may have come some way already.
        start: the graph's input.
        original: the points on the original's path, oldest first.
        as_nodes: in whose name each edit of the original was made, by the checkpoint that came of it.
        control: asks it to stop at the next step.

    Raises:
        Diverged: something else is asked for than the original asked for.
    """

    async def go(*, step: bool) -> Finished | Paused | Drained:
        return await drive(
            graph, context, run_id, start=start, before=(), after=(), step=step, answers={}, control=control
        )

    for index, point in enumerate(original):
        if point.source != "update":
            continue
        path = await _path(graph, workflow, run_id)
        while len(path) < index:
            end = await go(step=True)
            if not isinstance(end, Paused):
                return end
            path = await _path(graph, workflow, run_id)
        if len(path) == index:
            as_node = as_nodes.get(point.checkpoint_id) or last_node(original[:index])
            edit = _changed(original[index - 1].values, point.values)
            await graph.aupdate_state({"configurable": {"thread_id": run_id}}, edit, as_node=as_node)
    return await go(step=False)


def last_node(path: Sequence[Point]) -> str:
    """The node that ran last on the way to a path's end; what comes before all nodes is named "__start__"."""
    for before, point in zip(path[-2::-1], path[:0:-1], strict=False):
        if point.source == "loop" and before.next:
            return before.next[-1]
        if point.source == "input":
            break
    return "__start__"


async def _path(graph: Graph, workflow: Workflow, run_id: str) -> Sequence[Point]:
    points = await read_points(graph, workflow, run_id)
    return own_path(points)


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in after.items() if field not in before or before[field] != value}
