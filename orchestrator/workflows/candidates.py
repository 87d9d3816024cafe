"""Candidates: first drafts made side by side, each in a graph of its own; the first that passes ends the others.

Which of them that is depends on the clock, so whoever is broken off writes to the tape what is left of it: a step that
is begun again, and a replay, take that instead of a race.
"""

import asyncio
import logging
from contextvars import copy_context

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.runtime import Runtime

from orchestrator.errors import Diverged, StoreError
from orchestrator.models import ModelError, Reply, Usage
from orchestrator.workflows.answers import ATTEMPT, MODEL
from orchestrator.workflows.context import CodegenContext
from orchestrator.workflows.graph_types import Graph
from orchestrator.workflows.routes import CANDIDATE, GENERATE
from orchestrator.workflows.state import Attempt, CodegenState, Plan, Verdict, unexecuted
from orchestrator.workflows.steps import Observed, inner_step, new_step, publish
from orchestrator.workflows.tape import STEP, Effect, Request

PASSES = frozenset({Verdict.PASSED, Verdict.UNVERIFIED})

logger = logging.getLogger(__name__)


def candidate_node(graph: Graph) -> Observed:
    """The node that runs one candidate, by the graph of a single one."""

    async def candidate(state: CodegenState, runtime: Runtime[CodegenContext]) -> CodegenState:
        over = STEP.set(new_step(CANDIDATE, state["plan"].number, runtime))
        try:
            fragment = await _run(graph, state, runtime.context)
        finally:
            STEP.reset(over)
        await runtime.context.flush()
        return fragment

    return candidate


async def _run(graph: Graph, state: CodegenState, context: CodegenContext) -> CodegenState:
    """Runs one candidate until it is done or another has passed. Its own failure never reaches the others."""
    plan = state["plan"]
    known: Attempt | None = await context.tape.decided(Effect.RACE, None, ATTEMPT)
    if known is not None:
        return _left(known, context)
    for attempt in context.progress.attempts:  # of candidates that were done before this one is begun again
        if attempt.verdict in PASSES:
            context.race.win(attempt.number)
    alone = copy_context()  # a graph of its own: no checkpoint is waited for in it, and no stop at the next step
    alone.run(var_child_runnable_config.set, None)
    work = asyncio.create_task(graph.ainvoke(state, context=context), context=alone)
    lost = asyncio.create_task(_lost(context))
    try:
        await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
        finished = work.done()
    finally:
        work.cancel()
        lost.cancel()
        await asyncio.wait({work, lost})
    if not finished:
        return await _ended_early(
            plan, Verdict.STOPPED, f"stopped: attempt {context.race.winner} passed first", context
        )
    try:
        result = work.result()
    except (GraphBubbleUp, StoreError, Diverged):
        raise
    except Exception as error:
        logger.exception("a candidate failed", extra={"attempt": plan.number})
        return await _ended_early(plan, Verdict.ERROR, f"a fault of the service: {type(error).__name__}", context)
    if questions := result.get("__interrupt__"):  # as LangGraph gives them back from a graph that is not within another
        raise GraphInterrupt(questions)
    attempts: list[Attempt] = result.get("attempts", [])
    if any(attempt.verdict in PASSES for attempt in attempts):
        context.race.win(plan.number)
    return {"attempts": attempts, "usage": result.get("usage", Usage())}


async def _lost(context: CodegenContext) -> None:
    """Returns when another candidate has passed; in a replay there is no race."""
    if context.tape.is_replay:
        await asyncio.get_running_loop().create_future()
    await context.race.won.wait()


async def _ended_early(plan: Plan, verdict: Verdict, reason: str, context: CodegenContext) -> CodegenState:
    """What is left of a candidate, once it is written down."""
    attempt = context.progress.find(plan.number)
    if attempt is None and (draft := context.progress.drafts.get(plan.number)) is not None:
        attempt = unexecuted(draft, verdict, reason)
    attempt = attempt or Attempt(
        plan.number, plan.strategy, verdict, summary=reason, usage=await _spent_before(plan, context)
    )
    return _left(await context.tape.decided(Effect.RACE, attempt, ATTEMPT) or attempt, context)


async def _spent_before(plan: Plan, context: CodegenContext) -> Usage:
    """What a candidate's model call took that was answered before a crash, where it has not come to it again."""
    if context.tape.is_replay:  # whose own decision says it
        return Usage()
    over = STEP.set(inner_step(STEP.get(), GENERATE, plan.number))
    try:
        reply: Reply = await context.tape.take(Request(Effect.MODEL, None), _nobody, MODEL)
    except _NotAnsweredError:
        return Usage()
    except ModelError as error:
        return error.usage
    finally:
        STEP.reset(over)
    return reply.usage


class _NotAnsweredError(Exception):
    """The tape has no such answer."""


async def _nobody() -> Reply:
    raise _NotAnsweredError


def _left(attempt: Attempt, context: CodegenContext) -> CodegenState:
    counted = context.progress.find(attempt.number) is not None or attempt.number in context.progress.drafts
    publish({"attempts": [attempt]} if counted else {"attempts": [attempt], "usage": attempt.usage}, context)
    return {"attempts": [attempt], "usage": attempt.usage}
