"""Candidates: first drafts made side by side, each in a graph of its own; the first that passes ends the others.

Which of them that is depends on the clock, so whoever is broken off writes to the tape what is left of it: a step that
is begun again, and a replay, take that instead of a race.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import replace
from typing import Any, TypeVar

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.runtime import Runtime

from orchestrator.errors import Diverged, StoreError
from orchestrator.models import Usage
from orchestrator.workflows.answers import ATTEMPT
from orchestrator.workflows.context import CodegenContext, Race, RaceLost
from orchestrator.workflows.graph_types import Graph
from orchestrator.workflows.routes import CANDIDATE
from orchestrator.workflows.state import Attempt, CodegenState, Plan, Verdict, unexecuted
from orchestrator.workflows.steps import Observed, new_step, publish
from orchestrator.workflows.tape import STEP, Codec, Effect, Request, Tape

T = TypeVar("T")
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
    try:
        result = await _alone(graph, state, replace(context, tape=_RacingTape(context.tape, context.race)))
    except (GraphBubbleUp, StoreError, Diverged):
        raise
    except RaceLost:
        reason = f"stopped: attempt {context.race.winner} passed first"
        return await _ended_early(plan, Verdict.STOPPED, reason, context)
    except Exception as error:
        logger.exception("a candidate failed", extra={"attempt": plan.number})
        return await _ended_early(plan, Verdict.ERROR, f"a fault of the service: {type(error).__name__}", context)
    if questions := result.get("__interrupt__"):  # as LangGraph gives them back from a graph that is not within another
        raise GraphInterrupt(questions)
    attempts: list[Attempt] = result.get("attempts", [])
    if any(attempt.verdict in PASSES for attempt in attempts):
        context.race.win(plan.number)
    return {"attempts": attempts, "usage": result.get("usage", Usage())}


async def _alone(graph: Graph, state: CodegenState, context: CodegenContext) -> dict[str, Any]:
    """What the graph comes to as one of its own: no checkpoint is waited for in it, and no stop at the next step."""
    alone = copy_context()
    alone.run(var_child_runnable_config.set, None)
    return await asyncio.create_task(graph.ainvoke(state, context=context), context=alone)


class _RacingTape:
    """The tape of a candidate: what it has is taken; what would be asked for live is given up once the race is lost.

    So a candidate that is begun again comes as far as it was, whoever has passed meanwhile.
    """

    def __init__(self, tape: Tape, race: Race) -> None:
        self._tape = tape
        self._race = race

    @property
    def is_replay(self) -> bool:
        """As the tape has it."""
        return self._tape.is_replay

    async def take(self, request: Request, live: Callable[[], Awaitable[T]], codec: Codec) -> T:
        """As the tape does. Raises RaceLost."""
        return await self._tape.take(request, lambda: self._race.run(live), codec)

    async def decided(self, kind: Effect, value: T | None, codec: Codec) -> T | None:
        """As the tape does."""
        return await self._tape.decided(kind, value, codec)


async def _ended_early(plan: Plan, verdict: Verdict, reason: str, context: CodegenContext) -> CodegenState:
    """What is left of a candidate, once it is written down."""
    attempt = context.progress.find(plan.number)
    if attempt is None and (draft := context.progress.drafts.get(plan.number)) is not None:
        attempt = unexecuted(draft, verdict, reason)
    attempt = attempt or Attempt(plan.number, plan.strategy, verdict, summary=reason)
    return _left(await context.tape.decided(Effect.RACE, attempt, ATTEMPT) or attempt, context)


def _left(attempt: Attempt, context: CodegenContext) -> CodegenState:
    counted = context.progress.find(attempt.number) is not None or attempt.number in context.progress.drafts
    publish({"attempts": [attempt]} if counted else {"attempts": [attempt], "usage": attempt.usage}, context)
    return {"attempts": [attempt], "usage": attempt.usage}
