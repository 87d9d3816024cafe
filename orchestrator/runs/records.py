"""What is kept of a run beside its events and checkpoints: the record that every replica reads and changes.

A record is a snapshot of one row. Changes go through `RunRows`, each by compare-and-swap; nothing here is written back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from orchestrator.runs.states import TERMINAL, RunResult, RunState
from orchestrator.workflows import RunSpec


class OriginKind(StrEnum):
    """How a run comes from another."""

    FORK = "FORK"
    REPLAY = "REPLAY"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run comes from.

    Attributes:
        checkpoint_id: of the other run; empty: its beginning.
        live_from: of a replay, the node from whose first step on model and sandbox are real; empty: none.
    """

    kind: OriginKind
    run_id: str
    checkpoint_id: str = ""
    live_from: str = ""


@dataclass(frozen=True, slots=True)
class Breakpoints:
    """Nodes before and after which a run waits; "*" stands for all of them."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A question that a node asks; `value_json` is the question."""

    interrupt_id: str
    node: str
    value_json: str


@dataclass(frozen=True, slots=True)
class Wait:
    """What a run waits for; also the event that tells of it.

    Attributes:
        checkpoint_id: where it stands.
        next: nodes that come next.
        reason: "before NODE", "after NODE", "step", "edited", "fork", "edited fork" or "answers".
        interrupts: questions that must be answered first.
    """

    checkpoint_id: str
    next: tuple[str, ...]
    reason: str
    interrupts: tuple[Interrupt, ...] = ()


@dataclass(frozen=True, slots=True)
class Resume:
    """What the next stretch of work is to do.

    Attributes:
        checkpoint_id: where it stood when somebody let it go on.
        step: stop again after one step of the graph.
        answers: JSON by the id of its interrupt.
    """

    checkpoint_id: str = ""
    step: bool = False
    answers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run as the database has it.

    Attributes:
        digest: of the request, equal for equal ones.
        epoch: counts how often the run was claimed; what a claim writes carries its epoch.
        owner: replica at work on it; empty: none is.
        deadline: when its time is up; None while it waits for a person.
        time_left: what is left of its time while it waits for a person.
        cancel_reason: set once somebody has asked for its end.
        wait: set while it is WAITING.
        resume: what the next claim is to do; None: begin, or go on to the next breakpoint.
        last_sequence: of its newest event.
        recoveries: times it was taken up again after its replica had died.
    """

    run_id: str
    tenant: str
    request_id: str
    workflow: str
    graph_version: int
    digest: str
    priority: int
    state: RunState
    epoch: int
    owner: str
    create_time: datetime
    start_time: datetime | None
    end_time: datetime | None
    deadline: datetime | None
    time_left: timedelta | None
    cancel_reason: str | None
    breakpoints: Breakpoints
    wait: Wait | None
    resume: Resume | None
    result: RunResult | None
    last_sequence: int
    origin: Origin | None
    recoveries: int
    labels: Mapping[str, str]

    @property
    def has_ended(self) -> bool:
        """Whether it is in a terminal state."""
        return self.state in TERMINAL


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be made.

    Attributes:
        wait: what it waits for from the beginning; None: it is made QUEUED.
        resume: what its first claim is to do; None: begin.
    """

    run_id: str
    request_id: str
    spec: RunSpec
    digest: str
    graph_version: int
    create_time: datetime
    breakpoints: Breakpoints = Breakpoints()
    origin: Origin | None = None
    wait: Wait | None = None
    resume: Resume | None = None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs are listed, those of one tenant, newest first. `before` is the run_id after which the page begins."""

    tenant: str
    states: frozenset[RunState] = frozenset()
    workflow: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    limit: int = 50
