"""The `codegen` graph: generate -> execute -> decide -> repair | generate | finalize; candidates start side by side.

Nodes are plain functions of state and context, wrapped here so that each tells when it began and ended; routes are
pure and tell why.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import GraphBubbleUp
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.types import Send

from orchestrator.models import Usage
from orchestrator.workflows import routes
from orchestrator.workflows.asking import ask
from orchestrator.workflows.context import CodegenContext
from orchestrator.workflows.events import AttemptFinished, NodeFinished, NodeStarted, RouteDecision
from orchestrator.workflows.state import (
    Attempt,
    CodegenState,
    Conclusion,
    Outcome,
    Plan,
    Progress,
    Stop,
    Verdict,
    best,
)
from orchestrator.workflows.verifying import execute

NAME = "codegen"
VERSION = 1  # counted up when a change of nodes or state makes older checkpoints unreadable
_STEPS_PER_ATTEMPT = 3  # ask, execute, decide
_OTHER_STEPS = 5  # the fan-out, finalize, and room to spare

logger = logging.getLogger(__name__)

Node = Callable[[CodegenState, CodegenContext], Awaitable[CodegenState]]
Graph = CompiledStateGraph[CodegenState, CodegenContext, CodegenState, CodegenState]
_Builder = StateGraph[CodegenState, CodegenContext, CodegenState, CodegenState]


def build(checkpointer: BaseCheckpointSaver[Any] | None = None) -> Graph:
    """The graph, compiled. One serves any number of runs, each with a context of its own."""
    candidates = _candidate_graph()
    graph: _Builder = StateGraph(CodegenState, context_schema=CodegenContext)
    for name, node in (
        (routes.GENERATE, ask),
        (routes.REPAIR, ask),
        (routes.EXECUTE, execute),
        (routes.DECIDE, decide),
        (routes.FINALIZE, finalize),
    ):
        _add(graph, name, node)

    async def candidate(state: CodegenState, runtime: Runtime[CodegenContext]) -> CodegenState:
        return await run_candidate(candidates, state, runtime.context)

    graph.add_node(routes.CANDIDATE, candidate)
    graph.add_conditional_edges(START, _start, [routes.GENERATE, routes.CANDIDATE])
    after_model: dict[Hashable, str] = {name: name for name in (routes.EXECUTE, routes.DECIDE)}
    graph.add_conditional_edges(routes.GENERATE, _told(routes.GENERATE, routes.after_model), after_model)
    graph.add_conditional_edges(routes.REPAIR, _told(routes.REPAIR, routes.after_model), after_model)
    after_decide: dict[Hashable, str] = {name: name for name in (routes.GENERATE, routes.REPAIR, routes.FINALIZE)}
    graph.add_conditional_edges(routes.DECIDE, _told(routes.DECIDE, routes.after_decide), after_decide)
    graph.add_edge(routes.EXECUTE, routes.DECIDE)
    graph.add_edge(routes.CANDIDATE, routes.DECIDE)
    graph.add_edge(routes.FINALIZE, END)
    return graph.compile(checkpointer=checkpointer, name=NAME)


def _candidate_graph() -> Graph:
    """One candidate: the same nodes, once."""
    graph: _Builder = StateGraph(CodegenState, context_schema=CodegenContext)
    _add(graph, routes.GENERATE, ask)
    _add(graph, routes.EXECUTE, execute)
    graph.add_edge(START, routes.GENERATE)
    ways: dict[Hashable, str] = {routes.EXECUTE: routes.EXECUTE, routes.DECIDE: END}
    graph.add_conditional_edges(routes.GENERATE, _told(routes.GENERATE, routes.after_model), ways)
    graph.add_edge(routes.EXECUTE, END)
    return graph.compile(checkpointer=False, name=routes.CANDIDATE)


async def run(graph: Graph, context: CodegenContext, thread_id: str) -> Conclusion:
    """Carries a run out. When a cancellation gets out of here, the run's nodes have cleaned up."""
    state = await graph.ainvoke(
        {"plan": Plan()},
        {
            "configurable": {"thread_id": thread_id},
            "metadata": {"graph": NAME, "graph_version": VERSION},
            "recursion_limit": _STEPS_PER_ATTEMPT * context.options.max_attempts + _OTHER_STEPS,
        },
        context=context,
    )
    conclusion: Conclusion = state["conclusion"]
    return conclusion


def conclude(progress: Progress, stop: Stop) -> Conclusion:
    """The end of a run, with its best attempt, wherever the run was broken off."""
    delivered = best(progress.attempts)
    return Conclusion(stop.outcome, stop.reason, delivered.number if delivered is not None else 0)


async def decide(state: CodegenState, context: CodegenContext) -> CodegenState:
    """Chooses the base for corrections and the next step."""
    attempts = state.get("attempts", [])
    situation = routes.Situation(
        attempts=attempts,
        max_attempts=context.options.max_attempts,
        base=state.get("base", 0),
        stop=state.get("stop"),
        limit=context.limit_met(f"before attempt {len(attempts) + 1}", spends_tokens=True),
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


async def run_candidate(graph: Graph, state: CodegenState, context: CodegenContext) -> CodegenState:
    """Runs one candidate until it is done or another has passed. Its own failure never reaches the others."""
    number = state["plan"].number
    work = asyncio.ensure_future(graph.ainvoke(state, context=context))
    lost = asyncio.ensure_future(context.race.won.wait())
    try:
        await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
        finished = work.done()
    finally:
        work.cancel()
        lost.cancel()
        await asyncio.wait({work, lost})
    if not finished:
        return _unfinished(
            state["plan"], Verdict.STOPPED, f"stopped: attempt {context.race.winner} passed first", context
        )
    try:
        result = work.result()
    except GraphBubbleUp:
        raise
    except Exception as error:
        logger.exception("a candidate failed", extra={"attempt": number})
        return _unfinished(state["plan"], Verdict.ERROR, f"a fault of the service: {type(error).__name__}", context)
    attempts: list[Attempt] = result.get("attempts", [])
    if any(attempt.verdict in {Verdict.PASSED, Verdict.UNVERIFIED} for attempt in attempts):
        context.race.win(number)
    return {
        "attempts": attempts,
        "usage": result.get("usage", Usage()),
        "node_time": result.get("node_time", {}),
    }


def _unfinished(plan: Plan, verdict: Verdict, summary: str, context: CodegenContext) -> CodegenState:
    known = context.progress.find(plan.number)  # what it had got to when it was broken off
    attempt = known or Attempt(plan.number, plan.strategy, verdict, summary=summary)
    fragment: CodegenState = {"attempts": [attempt]}
    _publish(fragment, context)
    return fragment


def _publish(fragment: CodegenState, context: CodegenContext) -> None:
    for attempt in context.progress.apply(fragment):
        context.emit(AttemptFinished(attempt))


def _add(graph: _Builder, name: str, node: Node) -> None:
    """Adds a node that tells when it began and ended, and whose results count at once."""

    async def observed(state: CodegenState, runtime: Runtime[CodegenContext]) -> CodegenState:
        context, loop = runtime.context, asyncio.get_running_loop()
        number = state["plan"].number if name in {routes.GENERATE, routes.REPAIR, routes.EXECUTE} else 0
        context.emit(NodeStarted(name, number))
        started, fault = loop.time(), ""
        try:
            fragment = await node(state, context)
            fault = stop.reason if (stop := fragment.get("stop")) is not None else ""
        except BaseException as error:
            fault = "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__
            raise
        finally:
            elapsed = timedelta(seconds=loop.time() - started)
            context.progress.add_time(name, elapsed)
            context.emit(NodeFinished(name, number, elapsed, fault))
        _publish(fragment, context)
        return {**fragment, "node_time": {name: elapsed}}

    graph.add_node(name, observed)


def _told(
    source: str, route: Callable[[CodegenState], routes.Route]
) -> Callable[[CodegenState, Runtime[CodegenContext]], Awaitable[str]]:
    async def chosen(state: CodegenState, runtime: Runtime[CodegenContext]) -> str:
        way = route(state)
        runtime.context.emit(RouteDecision(source, way.target, way.reason))
        return way.target

    return chosen


async def _start(state: CodegenState, runtime: Runtime[CodegenContext]) -> str | list[Send]:
    context = runtime.context
    way = routes.after_start(context.options.candidates)
    context.emit(RouteDecision("start", way.target, way.reason))
    if way.target == routes.GENERATE:
        return way.target
    plans = [
        replace(state["plan"], number=number, warm=number > 1) for number in range(1, context.options.candidates + 1)
    ]
    return [Send(way.target, {"plan": plan}) for plan in plans]
