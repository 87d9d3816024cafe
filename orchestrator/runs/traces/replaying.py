"""Plays a run again, on a tape that answers for model and sandbox, with the edits that were made of it on its way."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.runtime import RunControl

from orchestrator.runs.events import StateEdited
from orchestrator.runs.store import EventRows
from orchestrator.runs.traces.points import Point, own_path, read_points
from orchestrator.workflows import (
    EVERY_NODE,
    CodegenContext,
    Drained,
    Finished,
    Graph,
    Paused,
    Workflow,
    drive,
    progress_so_far,
)


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

    async def go(*, before: Sequence[str] = (), step: bool = False) -> Finished | Paused | Drained:
        return await drive(
            graph, context, run_id, start=start, before=before, after=(), step=step, answers={}, control=control
        )

    path = own_path(await read_points(graph, workflow, run_id))
    first, done = (path[0].step if path else -1), len(path)
    for index, point in enumerate(original):
        if point.source != "update":
            continue
        while done < index:
            end = await (go(step=True) if done else go(before=(EVERY_NODE,)))  # the first stop is before the first node
            if not isinstance(end, Paused):
                return end
            done = await _newest_step(graph, run_id) - first + 1
        if done == index:
            as_node = as_nodes.get(point.checkpoint_id) or last_node(original[:index])
            edit = _changed(original[index - 1].values, point.values)
            await graph.aupdate_state({"configurable": {"thread_id": run_id}}, edit, as_node=as_node)
            context.progress.become(await progress_so_far(workflow, graph, run_id))
            done += 1
        await asyncio.sleep(0)  # none of all this waits for anything where the checkpoints are in memory
    return await go()


async def _newest_step(graph: Graph, run_id: str) -> int:
    state = await graph.aget_state({"configurable": {"thread_id": run_id}})
    return int((state.metadata or {}).get("step", -1))


async def edited_as(events: EventRows, run_id: str) -> dict[str, str]:
    """In whose name each edit of a run was made, by the checkpoint that came of it."""
    edits = [event.payload for event in await events.of_kind(run_id, StateEdited.__name__)]
    return {edit.checkpoint_id: edit.as_node for edit in edits if isinstance(edit, StateEdited)}


def last_node(path: Sequence[Point]) -> str:
    """The node that ran last on the way to a path's end; what comes before all nodes is named "__start__"."""
    for before, point in zip(path[-2::-1], path[:0:-1], strict=False):
        if point.source == "loop" and before.next:
            return before.next[-1]
        if point.source == "input":
            break
    return "__start__"


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in after.items() if field not in before or before[field] != value}
