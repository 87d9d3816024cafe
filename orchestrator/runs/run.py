"""One run as the service knows it: what it was made from, where it stands, its events, and its end."""

import asyncio
import hashlib
import secrets
from datetime import UTC, datetime

from orchestrator.runs.events import EventLog, Recorder, StateChanged
from orchestrator.runs.states import TERMINAL, RunResult, RunState
from orchestrator.workflows import Progress, RunSpec, encode


def new_run_id(now: datetime) -> str:
    """An id that begins with its time, so that ids sort by age and tell it."""
    return f"run_{int(now.timestamp() * 1000):012x}{secrets.token_hex(8)}"


def created_at(run_id: str) -> datetime | None:
    """The time in a run's id; None where it is no such id."""
    digits = run_id.removeprefix("run_")[:12]
    try:
        return datetime.fromtimestamp(int(digits, 16) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def digest(spec: RunSpec) -> str:
    """Equal for equal requests."""
    return hashlib.sha256(encode(RunSpec, spec)).hexdigest()


class Run:
    """A run. Its state only ever moves forward: a terminal state is never overwritten."""

    def __init__(self, spec: RunSpec, request_id: str, deadline: float) -> None:
        """Makes a run that waits.

        Args:
            spec: what it is made from; forgotten at its end.
            request_id: the caller's; may be empty.
            deadline: when its time is up, by the event loop's clock, in seconds.
        """
        self.create_time = datetime.now(UTC)
        self.start_time: datetime | None = None
        self.end_time: datetime | None = None
        self.run_id = new_run_id(self.create_time)
        self.request_id = request_id
        self.workflow = spec.workflow
        self.labels = dict(spec.labels)
        self.digest = digest(spec)
        self.deadline = deadline
        self.spec: RunSpec | None = spec
        self.state = RunState.QUEUED
        self.result: RunResult | None = None
        self.cancel_reason: str | None = None
        self.progress = Progress()
        self.log = EventLog(self.run_id)
        self.recorder = Recorder(self.log)
        self.ended = asyncio.Event()
        self.recorder.emit(StateChanged(RunState.QUEUED))

    @property
    def has_ended(self) -> bool:
        """Whether it is in a terminal state."""
        return self.state in TERMINAL

    def start(self) -> None:
        """It leaves the queue."""
        if self.state is RunState.QUEUED:
            self.state = RunState.RUNNING
            self.start_time = datetime.now(UTC)
            self.recorder.emit(StateChanged(RunState.RUNNING))

    def finish(self, result: RunResult) -> bool:
        """It ends with this result; False where it has ended before, and nothing changes."""
        if self.has_ended:
            return False
        self.result = result
        self.state = result.state
        self.end_time = datetime.now(UTC)
        self.recorder.emit(StateChanged(self.state, result.reason, result.outcome))
        self.log.close()
        self.spec = None
        self.ended.set()
        return True
