"""The `codegen` graph: generate -> execute -> decide -> repair | generate | finalize; candidates start side by side.

Nodes are plain functions of state and context. What comes from outside they take from the context's tape, so the state
depends on the input and the tape alone.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from orchestrator.workflows import routes
from orchestrator.workflows.asking import ask
from orchestrator.workflows.candidates import candidate_node
from orchestrator.workflows.context import CodegenContext
from orchestrator.workflows.events import AttemptFinished
from orchestrator.workflows.graph_types import Builder, Graph
from orchestrator.workflows.spec import RunOptions
from orchestrator.workflows.state import CodegenState, Conclusion, Outcome, Progress, Stop, best
from orchestrator.workflows.steps import observed, tell_route, told
from orchestrator.workflows.verifying import execute

NAME = "codegen"
VERSION = 2  # counted up when a change of nodes or state makes older checkpoints unreadable
_STEPS_PER_ATTEMPT = 3  # ask, execute, decide
_OTHER_STEPS = 5  # the fan-out, finalize, and room to spare
_BROKEN_OFF = {Outcome.CANCELLED: "cancelled", Outcome.BUDGET_EXHAUSTED: "the run's time was used up"}


def build(checkpointer: BaseCheckpointSaver[Any] | None = None) -> Graph:
    """The graph, compiled. One serves any number of runs, each with a context of its own."""
    graph: Builder = StateGraph(CodegenState, context_schema=CodegenContext)
    for name, node in ((routes.GENERATE, ask), (routes.REPAIR, ask), (routes.DECIDE, decide)):
        graph.add_node(name, observed(name, node, flushes=False))  # its route does
    for name, node in ((routes.EXECUTE, execute), (routes.FINALIZE, finalize)):
        graph.add_node(name, observed(name, node, flushes=True))
    graph.add_node(routes.CANDIDATE, candidate_node(_candidate_graph()))
    graph.add_conditional_edges(START, _start, [routes.GENERATE, routes.CANDIDATE])
    after_model: dict[Hashable, str] = {name: name for name in (routes.EXECUTE, routes.DECIDE)}
    for name in (routes.GENERATE, routes.REPAIR):
        graph.add_conditional_edges(name, told(name, routes.after_model, flushes=True), after_model)
    after_decide: dict[Hashable, str] = {name: name for name in (routes.GENERATE, routes.REPAIR, routes.FINALIZE)}
    graph.add_conditional_edges(routes.DECIDE, told(routes.DECIDE, routes.after_decide, flushes=True), after_decide)
    graph.add_edge(routes.EXECUTE, routes.DECIDE)
    graph.add_edge(routes.CANDIDATE, routes.DECIDE)
    graph.add_edge(routes.FINALIZE, END)
    return graph.compile(checkpointer=checkpointer, name=NAME)


def _candidate_graph() -> Graph:
    """One candidate: the same nodes, once. It has no checkpoints; the node around it flushes."""
    graph: Builder = StateGraph(CodegenState, context_schema=CodegenContext)
    graph.add_node(routes.GENERATE, observed(routes.GENERATE, ask, flushes=False))
    graph.add_node(routes.EXECUTE, observed(routes.EXECUTE, execute, flushes=False))
    graph.add_edge(START, routes.GENERATE)
    ways: dict[Hashable, str] = {routes.EXECUTE: routes.EXECUTE, routes.DECIDE: END}
    graph.add_conditional_edges(routes.GENERATE, told(routes.GENERATE, routes.after_model, flushes=False), ways)
    graph.add_edge(routes.EXECUTE, END)
    return graph.compile(checkpointer=False, name=routes.CANDIDATE)


def recursion_limit(options: RunOptions) -> int:
    """LangGraph's own limit of steps: above what the run's limit of attempts allows."""
    return _STEPS_PER_ATTEMPT * options.max_attempts + _OTHER_STEPS


def conclude(progress: Progress, stop: Stop) -> Conclusion:
    """The end of a run, with its best attempt, wherever the run was broken off."""
    progress.close(_BROKEN_OFF.get(stop.outcome, "broken off"))
    delivered = best(progress.attempts)
    return Conclusion(stop.outcome, stop.reason, delivered.number if delivered is not None else 0)


def break_off(context: CodegenContext, stop: Stop) -> Conclusion:
    """The same for a run that is at work here; tells of the attempts that had no verdict yet."""
    for attempt in context.progress.close(_BROKEN_OFF.get(stop.outcome, "broken off")):
        context.emit(AttemptFinished(attempt))
    return conclude(context.progress, stop)


async def decide(state: CodegenState, context: CodegenContext) -> CodegenState:
    """Chooses the base for corrections and the next step."""
    attempts = state.get("attempts", [])
    situation = routes.Situation(
        attempts=attempts,
        max_attempts=context.options.max_attempts,
        base=state.get("base", 0),
        stop=state.get("stop"),
        limit=await context.limit_met(f"before attempt {len(attempts) + 1}", spends_tokens=True),
    )
    base = routes.next_base(situation) if attempts else 0
    decision = routes.decide(replace(situation, base=base))
    fragment: CodegenState = {"base": base, "decision": decision}
    if decision.plan is not None:
        fragment["plan"] = decision.plan
    return fragment


async def finalize(state: CodegenState, context: CodegenContext) -> CodegenState:
    """Ends the run as decided."""
    stop = state["decision"].stop or Stop(Outcome.ERROR, "the run was ended without a reason")
    return {"conclusion": conclude(context.progress, stop)}


async def _start(state: CodegenState) -> str | list[Send]:
    candidates = state.get("candidates", 1)
    way = routes.after_start(candidates)
    await tell_route("start", way, flushes=True)
    if way.target == routes.GENERATE:
        return way.target
    plans = [replace(state["plan"], number=number, warm=number > 1) for number in range(1, candidates + 1)]
    return [Send(way.target, {"plan": plan}) for plan in plans]
