"""Drives a graph on its thread: from where it stands to its end, to a breakpoint, or to the next step."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import Command, StateSnapshot

from orchestrator.workflows.codegen import NAME, VERSION, recursion_limit
from orchestrator.workflows.context import CodegenContext
from orchestrator.workflows.graph_types import Graph
from orchestrator.workflows.plain import clean_text
from orchestrator.workflows.state import Conclusion

EVERY_NODE = "*"


@dataclass(frozen=True, slots=True)
class Question:
    """A question that a node asks; `value_json` is the question."""

    interrupt_id: str
    node: str
    value_json: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The graph came to its end."""

    conclusion: Conclusion


@dataclass(frozen=True, slots=True)
class Paused:
    """The graph stopped before its next step, for a person to go on with.

    Attributes:
        reason: "before NODE", "after NODE", "step", or "answers", where nodes ask questions.
    """

    checkpoint_id: str
    next: tuple[str, ...]
    reason: str
    interrupts: tuple[Question, ...] = ()


@dataclass(frozen=True, slots=True)
class Drained:
    """The graph stopped before its next step, as it was asked to by its control."""


async def drive(
    graph: Graph,
    context: CodegenContext,
    thread_id: str,
    *,
    start: Mapping[str, Any] | None = None,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    step: bool = False,
    answers: Mapping[str, str] | None = None,
    control: RunControl | None = None,
    passed: str | None = None,
) -> Finished | Paused | Drained:
    """Drives a graph. When a cancellation gets out of here, the nodes at work have cleaned up.

    Args:
        graph: compiled over a saver.
        context: what its nodes work with.
        thread_id: names its checkpoints.
        start: its input, where the thread has no checkpoint yet.
        before: nodes to stop before; "*": each.
        after: nodes to stop after; "*": each.
        step: stop after one step, whatever the breakpoints.
        answers: JSON by the id of its question; of questions that are answered by now, it is left out.
        control: asks it to stop at the next step.
        passed: checkpoint from which a person has let the run go on; empty: nobody has yet. A breakpoint at any other
            checkpoint where the thread stands was not told of, since what drove it died at that moment. None: whoever
            calls has told of the one where it stands.
    """
    config: Any = {
        "configurable": {"thread_id": thread_id},
        "metadata": {"graph": NAME, "graph_version": VERSION},
        "recursion_limit": recursion_limit(context.options),
    }
    state = await graph.aget_state(config)
    is_new = state.created_at is None
    if not is_new and _is_over(state):
        return _end(state, "")
    stops = ((), (EVERY_NODE,)) if step else (before, after)
    if passed is not None and not is_new and _id(state) != passed:
        untold = "step" if step and passed else await _reason(graph, state, before, after)
        if untold:
            return _end(state, untold)
    given: Any = dict(start or {}) if is_new else _resumed(state, answers or {})
    try:
        await graph.ainvoke(
            given,
            config,
            context=context,
            interrupt_before=_names(stops[0]),
            interrupt_after=_names(stops[1]),
            durability="sync",
            control=control,
        )
    except GraphDrained:
        return Drained()
    state = await graph.aget_state(config)
    return _end(state, "step" if step else await _reason(graph, state, before, after))


def _resumed(state: StateSnapshot, answers: Mapping[str, str]) -> Any:  # noqa: ANN401 - what LangGraph takes
    """What to go on with: the answers to questions that are still asked, or nothing."""
    asked = {interrupt.id for task in state.tasks for interrupt in task.interrupts}
    given = {name: json.loads(answer) for name, answer in answers.items() if name in asked}
    return Command(resume=given) if given else None


def _names(stops: Sequence[str]) -> Any:  # noqa: ANN401 - LangGraph's own literal
    return EVERY_NODE if EVERY_NODE in stops else list(stops)


def _id(state: StateSnapshot) -> str:
    return str(state.config.get("configurable", {}).get("checkpoint_id", ""))


def _is_over(state: StateSnapshot) -> bool:
    """Whether nothing comes next. A step that has ended, and whose checkpoint was not written any more, is a task."""
    return not state.tasks


def _end(state: StateSnapshot, reason: str) -> Finished | Paused:
    if _is_over(state):
        return Finished(state.values["conclusion"])
    questions = tuple(
        Question(interrupt.id, task.name, clean_text(json.dumps(interrupt.value, ensure_ascii=False, default=str)))
        for task in state.tasks
        for interrupt in task.interrupts
    )
    return Paused(_id(state), tuple(dict.fromkeys(state.next)), "answers" if questions else reason, questions)


async def _reason(graph: Graph, state: StateSnapshot, before: Sequence[str], after: Sequence[str]) -> str:
    """Which breakpoint a run stands at, empty where at none; LangGraph looks at those after a node first."""
    if after and state.parent_config is not None:
        parent = await graph.aget_state(state.parent_config)
        for node in parent.next:
            if node in after or (EVERY_NODE in after and not node.startswith("__")):
                return f"after {node}"
    for node in state.next:
        if node in before or (EVERY_NODE in before and not node.startswith("__")):
            return f"before {node}"
    return ""
