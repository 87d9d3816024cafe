"""Where a run stands, and what is left of it once it has ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from orchestrator.models import Usage
from orchestrator.workflows import Attempt, Outcome


class RunState(StrEnum):
    """Where a run stands: QUEUED and RUNNING, WAITING in between for a person, then one of the others for good."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


TERMINAL = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED})
ACTIVE = frozenset(RunState) - TERMINAL


@dataclass(frozen=True, slots=True)
class RunResult:
    """The end of a run. What is large lies in the artifact store under the hashes here; an empty hash: there is none.

    Attributes:
        delivered_attempt: number of the attempt delivered; zero: none has code.
        files_hash: its files; the same name under which they were executed.
        report_hash: its test report.
        execution_hash: its execution.
        diff_hash: unified diff from the files given to the files delivered.
    """

    outcome: Outcome
    reason: str
    delivered_attempt: int = 0
    files_hash: str = ""
    report_hash: str = ""
    execution_hash: str = ""
    diff_hash: str = ""
    attempts: tuple[Attempt, ...] = ()
    usage: Usage = field(default_factory=Usage)
    node_time: Mapping[str, timedelta] = field(default_factory=dict)

    @property
    def state(self) -> RunState:
        """The state that a run with this result ends in."""
        if self.outcome is Outcome.CANCELLED:
            return RunState.CANCELLED
        return RunState.SUCCEEDED if self.outcome in {Outcome.PASSED, Outcome.UNVERIFIED} else RunState.FAILED
