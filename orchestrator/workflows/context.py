"""What a `codegen` node works with: the task, the limits, and the parts it may call, by LangGraph's runtime context."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, TypeVar

from orchestrator.errors import OutOfTime
from orchestrator.models import CallOptions, Message, ModelSpec, Reply
from orchestrator.workflows.answers import LIMIT
from orchestrator.workflows.artifacts import Artifacts
from orchestrator.workflows.events import WorkflowEvent
from orchestrator.workflows.sandbox import Sandbox
from orchestrator.workflows.spec import CODER, CodegenTask, RunOptions
from orchestrator.workflows.state import Outcome, Progress, Stop
from orchestrator.workflows.tape import Effect, Tape, Untaped

T = TypeVar("T")


class Models(Protocol):
    """The part of the model gateway that a workflow uses."""

    async def complete(
        self,
        role: str,
        messages: Sequence[Message],
        *,
        options: CallOptions = ...,
        on_delta: Callable[[str], None] | None = None,
    ) -> Reply:
        """One reply of the role's model. Raises ModelError."""
        ...

    def spec(self, role: str) -> ModelSpec:
        """How the role's model is called."""
        ...


class RaceLost(Exception):  # noqa: N818 - no fault
    """Another candidate has passed."""


class Race:
    """Candidates that run side by side: the first that passes ends the others."""

    def __init__(self) -> None:
        self.winner = 0  # number of the attempt that passed; zero: none yet
        self.won = asyncio.Event()

    def win(self, number: int) -> None:
        """The first call decides."""
        if not self.won.is_set():
            self.winner = number
            self.won.set()

    async def run(self, live: Callable[[], Awaitable[T]]) -> T:
        """What it comes to, unless the race is won by then: then it is given up. Raises RaceLost."""
        if self.won.is_set():
            raise RaceLost
        work, won = asyncio.ensure_future(live()), asyncio.create_task(self.won.wait())
        try:
            await asyncio.wait({work, won}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise RaceLost
        finally:
            work.cancel()
            won.cancel()
            await asyncio.wait({work, won})


async def _keeps_nothing() -> None:
    """For a run whose events nobody writes down."""


@dataclass(frozen=True, slots=True)
class CodegenContext:
    """Everything a node needs beside the state.

    Attributes:
        deadline: when the run's time is up, by the event loop's clock, in seconds.
        sandbox_patience: how long an unreachable sandbox is tried again.
        emit: takes events; never blocks.
        emit_tokens: takes pieces of a reply; None: nobody wants them.
        progress: the run so far, shared by all nodes of the run.
        run_id: names the run's steps to the sandbox; empty: nothing does.
        tenant: who takes turns with other tenants at the sandbox; may be empty.
        tape: where whatever comes from outside is taken from.
        prompts: text in the place of prompt files, by their name.
        flush: returns when all that was emitted is written down; called before a step is over.
    """

    task: CodegenTask
    options: RunOptions
    models: Models
    sandbox: Sandbox
    artifacts: Artifacts
    deadline: float
    emit: Callable[[WorkflowEvent], None]
    emit_tokens: Callable[[int, str], None] | None = None
    sandbox_patience: timedelta = timedelta(seconds=60)
    progress: Progress = field(default_factory=Progress)
    race: Race = field(default_factory=Race)
    run_id: str = ""
    tenant: str = ""
    tape: Tape = field(default_factory=Untaped)
    prompts: Mapping[str, str] = field(default_factory=dict)
    flush: Callable[[], Awaitable[None]] = _keeps_nothing

    def remaining(self) -> float:
        """Seconds left to the run; never negative."""
        return max(0.0, self.deadline - asyncio.get_running_loop().time())

    def overrides(self) -> CallOptions:
        """What the run's options say of its model."""
        return self.options.models.get(CODER, CallOptions())

    def out_of_time(self, doing: str) -> Stop:
        """The run's time is up; `doing` says during what."""
        seconds = self.options.timeout.total_seconds()
        return Stop(Outcome.BUDGET_EXHAUSTED, f"the run's time of {seconds:g} s was used up {doing}")

    async def within_time(self, live: Callable[[], Awaitable[T]], doing: str) -> T:
        """The live answer, if it comes before the run's time is up. Raises OutOfTime."""
        try:
            async with asyncio.timeout(self.remaining()) as limit:
                return await live()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise OutOfTime(self.out_of_time(doing).reason) from error

    async def limit_met(self, doing: str, *, spends_tokens: bool) -> Stop | None:
        """Checks the limits of time and tokens; called before each model call and each execution."""
        met = None
        budget, used = self.options.token_budget, self.progress.tokens
        if self.remaining() <= 0:
            met = self.out_of_time(doing)
        elif spends_tokens and budget and used >= budget:
            met = Stop(Outcome.BUDGET_EXHAUSTED, f"the token budget of {budget} was used up ({used} tokens) {doing}")
        return await self.tape.decided(Effect.LIMIT, met, LIMIT)
