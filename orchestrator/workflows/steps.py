"""What is done around each node and each route of the graph: steps get their names, and tell that they begin and end.

A step is known by LangGraph's id of its task, which is made of the checkpoint before it: begun again after a crash, it
has the same. What is told of a step that is over is kept once by that id; so what is told of one that was broken off,
and may be begun again, is told outside of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Protocol

from langgraph.runtime import Runtime, get_runtime

from orchestrator.workflows import routes
from orchestrator.workflows.context import CodegenContext, RaceLost
from orchestrator.workflows.events import AttemptFinished, NodeFinished, NodeStarted, RouteDecision
from orchestrator.workflows.state import CodegenState
from orchestrator.workflows.statejson import field_previews, field_sizes
from orchestrator.workflows.tape import STEP, Step

_WORKS_ON_ATTEMPT = frozenset({routes.GENERATE, routes.REPAIR, routes.EXECUTE})

Node = Callable[[CodegenState, CodegenContext], Awaitable[CodegenState]]


class Observed(Protocol):
    """A node as LangGraph calls it."""

    async def __call__(self, state: CodegenState, runtime: Runtime[CodegenContext]) -> CodegenState:
        """What the node returns."""
        ...


def new_step(name: str, number: int, runtime: Runtime[Any]) -> Step:
    """The step that begins. A candidate's own graph has no checkpoints, so its steps are named by the candidate's."""
    outer = STEP.get(None)
    if outer is not None:
        return Step(f"{outer.step_id}/{name}", f"{name}/{number}")
    return Step(runtime.execution_info.task_id if runtime.execution_info is not None else "", f"{name}/{number}")


def publish(fragment: CodegenState, context: CodegenContext) -> None:
    """Lets what a node returned count at once."""
    for attempt in context.progress.apply(fragment):
        context.emit(AttemptFinished(attempt))


def observed(name: str, node: Node, *, flushes: bool) -> Observed:
    """The node as one that tells when it begins and ends. `flushes`: no route comes after it that would do so."""

    async def step_of(state: CodegenState, runtime: Runtime[CodegenContext]) -> CodegenState:
        context, loop = runtime.context, asyncio.get_running_loop()
        number = state["plan"].number if name in _WORKS_ON_ATTEMPT else 0
        step = new_step(name, number or len(state.get("attempts", [])), runtime)

        def finished(fault: str, fragment: CodegenState) -> NodeFinished:
            elapsed = timedelta(seconds=loop.time() - started)
            sizes, previews = field_sizes(state), field_previews(fragment)
            return NodeFinished(name, number, elapsed, fault, step.step_id, sizes, previews, step.usage)

        started, over = loop.time(), STEP.set(step)
        context.emit(NodeStarted(name, number, step.step_id))
        try:
            fragment = await node(state, context)
        except BaseException as error:
            STEP.reset(over)  # it may be begun again: this must not stand in the place of its real end
            given_up = isinstance(error, asyncio.CancelledError | RaceLost)
            fault = "cancelled" if given_up else type(error).__name__
            context.emit(finished(fault, {}))
            raise
        stop = fragment.get("stop")
        context.emit(finished(stop.reason if stop is not None else "", fragment))
        publish(fragment, context)
        STEP.reset(over)
        if flushes:
            await context.flush()
        return fragment

    return step_of


def told(
    source: str, route: Callable[[CodegenState], routes.Route], *, flushes: bool
) -> Callable[[CodegenState], Awaitable[str]]:
    """The route as one that tells why it was taken."""

    async def chosen(state: CodegenState) -> str:
        way = route(state)
        await tell_route(source, way, flushes=flushes)
        return way.target

    return chosen


async def tell_route(source: str, way: routes.Route, *, flushes: bool) -> None:
    """Tells of a route within the step that it ends. Where the state is edited in a node's name, there is no step."""
    runtime: Runtime[CodegenContext] | None = get_runtime(CodegenContext)
    if runtime is None:
        return
    over = STEP.set(new_step(source, 0, runtime))
    runtime.context.emit(RouteDecision(source, way.target, way.reason))
    STEP.reset(over)
    if flushes:
        await runtime.context.flush()
