"""What a workflow tells while it runs. The run's event log numbers and keeps these; the workflow only says them."""

from dataclasses import dataclass
from datetime import timedelta

from orchestrator.models import Usage
from orchestrator.workflows.sandbox import Execution, TestReport
from orchestrator.workflows.state import Attempt


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """A node of the graph began; attempt zero: it works on none."""

    node: str
    attempt: int


@dataclass(frozen=True, slots=True)
class NodeFinished:
    """A node of the graph ended; `error` is empty where nothing went wrong."""

    node: str
    attempt: int
    duration: timedelta
    error: str = ""


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
