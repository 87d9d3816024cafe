"""What is known of a run so far, gathered from its events: a plain state that any view can draw.

Nothing is drawn here, and nothing is waited for.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from codemend.orchestrator.v1 import runs_pb2

from orchestrator.cli import wording

_STREAM_KEPT = 16 * 1024  # characters of the reply being streamed; a view shows its last lines


@dataclass(slots=True)
class Progress:
    """State of one run as its events tell it.

    Attributes:
        state: "queued", "running", …
        node: the node at work; empty between nodes.
        attempt: number of the attempt that the newest event is about.
        stream: end of the reply being streamed, by attempt.
        failures: lines that say what failed in each attempt, by its number.
        attempts: the attempts that have their verdict, in order of their verdicts.
        decided: the newest event is the decision that followed a verdict; the graph's other ways say little.
    """

    state: str = "queued"
    node: str = ""
    attempt: int = 0
    stream: dict[int, str] = field(default_factory=dict)
    failures: dict[int, list[str]] = field(default_factory=dict)
    attempts: list[runs_pb2.Attempt] = field(default_factory=list)
    decided: bool = False
    _undecided: bool = False

    def apply(self, event: runs_pb2.RunEvent) -> None:
        """Takes up one event."""
        match event.WhichOneof("payload"):
            case "state_changed":
                self.state = runs_pb2.RunState.Name(event.state_changed.state).removeprefix("RUN_STATE_").lower()
            case "node_started":
                self.node = event.node_started.node
                self.attempt = event.node_started.attempt or self.attempt
            case "node_finished":
                self.node = ""
            case "model_tokens":
                number = event.model_tokens.attempt
                self.attempt = number or self.attempt
                self.stream[number] = (self.stream.get(number, "") + event.model_tokens.text)[-_STREAM_KEPT:]
            case "execution_finished":
                self.failures[event.execution_finished.attempt] = list(_what_failed(event.execution_finished))
            case "attempt":
                self.attempts.append(event.attempt)
                self.stream.pop(event.attempt.number, None)
                self._undecided = True
            case "route":
                self.decided, self._undecided = self._undecided, False


def _what_failed(finished: runs_pb2.ExecutionFinished) -> Iterable[str]:
    lines = list(wording.failures(finished.report))
    if lines:
        return lines
    if finished.execution.exit_code or finished.execution.reason:
        return [*filter(None, [finished.execution.reason]), *wording.output_tail(finished.execution.stderr)]
    return []
