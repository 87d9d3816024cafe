"""What a workflow tells while it runs. The run's event log numbers and keeps these; the workflow only says them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from orchestrator.models import Usage
from orchestrator.workflows.sandbox import Execution, TestReport
from orchestrator.workflows.state import Attempt


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """A node of the graph began; attempt zero: it works on none. `step_id` is the same when it is begun again."""

    node: str
    attempt: int
    step_id: str = ""


@dataclass(frozen=True, slots=True)
class NodeFinished:
    """A node of the graph ended; `error` is empty where nothing went wrong.

    Attributes:
        input_bytes: size of each field of the state that it was given, as JSON.
        output_previews: each field that it returned, with the beginning of its value as JSON.
        usage: what its model calls used.
    """

    node: str
    attempt: int
    duration: timedelta
    error: str = ""
    step_id: str = ""
    input_bytes: Mapping[str, int] = field(default_factory=dict)
    output_previews: Mapping[str, str] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class ModelTokens:
    """More of a model's reply."""

    attempt: int
    text: str


@dataclass(frozen=True, slots=True)
class ModelReplied:
    """A model's reply is complete; `fault` says why no code was taken from it."""

    attempt: int
    model: str
    finish_reason: str
    usage: Usage
    duration: timedelta
    fault: str = ""


@dataclass(frozen=True, slots=True)
class ExecutionFinished:
    """A program or a test run ended in the sandbox; cut to what fits an event."""

    attempt: int
    execution: Execution
    report: TestReport | None = None


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """An attempt has its verdict."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """The graph took a way, and why."""

    source: str
    target: str
    reason: str


WorkflowEvent = (
    NodeStarted | NodeFinished | ModelTokens | ModelReplied | ExecutionFinished | AttemptFinished | RouteDecision
)
