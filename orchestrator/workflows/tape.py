"""The tape of a run: everything that came from outside the graph, in the order in which it was taken.

A node asks the tape for a model's reply or a sandbox's result instead of asking for it directly. A live tape makes the
call and writes down what came of it before the node sees it; when the step is begun again after a crash, and when a
run is replayed, the same request is answered from what was written.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from orchestrator.models import Usage

T = TypeVar("T")


class Effect(StrEnum):
    """Kinds of what a tape holds."""

    MODEL = "model"
    SANDBOX = "sandbox"
    LIMIT = "limit"  # a limit of time or tokens was met: the clock is outside the graph, too
    RACE = "race"  # of what several candidates did at one time, this came first


@dataclass(slots=True)
class Step:
    """A step of the graph at work.

    Attributes:
        step_id: the same when the step is begun again from its checkpoint, and of no other step of the run.
        name: what it is within the run, as "generate/1", whatever its id.
        elapsed: time of all that it took from the tape, as the tape has it: the same in every replay.
        usage: of its model calls.
    """

    step_id: str
    name: str
    elapsed: timedelta = timedelta()
    usage: Usage = field(default_factory=Usage)


STEP: ContextVar[Step] = ContextVar("codemend_step")
"""The step that the running code belongs to; set around each node."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for.

    Attributes:
        kind: of what.
        content: what decides the answer, as plain JSON values: prompt and parameters, or the job's hashes and limits.
        made_with: what the content was made with, as plain JSON values: written down with it, and not compared.
    """

    kind: Effect
    content: Any
    made_with: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Codec:
    """How an answer is written down and read back.

    Attributes:
        dump: an answer as plain JSON values.
        load: the answer back from them.
        errors: errors that are answers, too: what they say is written down, and they are raised again.
        dump_error: such an error as plain JSON values.
        load_error: the error back from them.
    """

    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]
    errors: tuple[type[Exception], ...] = ()
    dump_error: Callable[[Exception], Any] = str
    load_error: Callable[[Any], Exception] = RuntimeError


class Tape(Protocol):
    """Where nodes get what comes from outside."""

    @property
    def is_replay(self) -> bool:
        """Whether answers come from another run's tape, so that nothing depends on who is first."""
        ...

    async def take(self, request: Request, live: Callable[[], Awaitable[T]], codec: Codec) -> T:
        """The answer, from the tape or live. What is taken counts in the current step's `elapsed`.

        Raises:
            Diverged: a replay is asked for something else than its original was, or for more.
            Fenced: the run was taken over; nothing was written.
            Exception: one of the codec's errors, and whatever else `live` raises, which is not written down.
        """
        ...

    async def decided(self, kind: Effect, value: T | None, codec: Codec) -> T | None:
        """What a clock or a race has decided in the current step: what the tape has of it, else `value`.

        A value is written down before it is given back; None, for nothing decided, is not. In a replay the tape alone
        counts.

        Raises:
            Fenced: the run was taken over; nothing was written.
        """
        ...


class Untaped:
    """A tape that keeps nothing: every answer is live."""

    is_replay = False

    async def take(self, request: Request, live: Callable[[], Awaitable[T]], codec: Codec) -> T:  # noqa: ARG002
        """The live answer, as it would be if it had been written down."""
        started = time.monotonic()
        try:
            answer = await live()
        except codec.errors as error:
            STEP.get().elapsed += since(started)
            raise codec.load_error(codec.dump_error(error)) from error
        STEP.get().elapsed += since(started)
        taken: T = codec.load(codec.dump(answer))
        return taken

    async def decided(self, kind: Effect, value: T | None, codec: Codec) -> T | None:  # noqa: ARG002
        """The value."""
        return value


def since(started: float) -> timedelta:
    """Time since `started`, by the monotonic clock, in whole microseconds."""
    return timedelta(seconds=time.monotonic() - started)
