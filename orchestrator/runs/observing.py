"""Who looks on while runs are carried out, such as a trace exporter; what a run means does not depend on it."""

from collections.abc import Callable
from typing import Protocol

from orchestrator.runs.events import Payload
from orchestrator.runs.records import RunRecord
from orchestrator.runs.states import RunResult


class Observer(Protocol):
    """Looks on. Its methods return at once and raise nothing."""

    def told(self, run_id: str, event: Payload) -> None:
        """A run at work told something."""

    def ended(self, record: RunRecord, result: RunResult) -> None:
        """A run has its result."""


class Nobody:
    """Looks at nothing."""

    def told(self, run_id: str, event: Payload) -> None:
        """Does nothing."""

    def ended(self, record: RunRecord, result: RunResult) -> None:
        """Does nothing."""


def both(run_id: str, record: Callable[[Payload], None], observer: Observer) -> Callable[[Payload], None]:
    """Tells the record first, and then the observer."""

    def tell(event: Payload) -> None:
        record(event)
        observer.told(run_id, event)

    return tell
