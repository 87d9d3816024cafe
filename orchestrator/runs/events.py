"""What a run tells: numbered events, and how their payloads are written down and read back.

How they are gathered is `recorder`'s business, where they lie the store's, and who watches them `watching`'s.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, get_args

from pydantic import TypeAdapter

from orchestrator.runs.records import Wait
from orchestrator.runs.states import RunState
from orchestrator.workflows import Outcome, WorkflowEvent


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The run's state changed; `outcome` is set at its end."""

    state: RunState
    reason: str = ""
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class StateEdited:
    """Somebody changed the state of the graph: a checkpoint was made of another one, in the name of a node."""

    parent_checkpoint_id: str
    checkpoint_id: str
    as_node: str
    fields: tuple[str, ...]


Payload = WorkflowEvent | StateChanged | StateEdited | Wait

_KINDS: dict[str, TypeAdapter[Any]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(Payload)}


@dataclass(frozen=True, slots=True)
class NewEvent:
    """Something that happened, before it has a number.

    Attributes:
        key: the same where the same thing is told again after a crash, so that it is kept once; empty: kept each time.
    """

    time: datetime
    payload: Payload
    key: str = ""


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened in a run."""

    sequence: int
    time: datetime
    run_id: str
    payload: Payload


def dump_payload(payload: Payload) -> tuple[str, str]:
    """The payload's kind, and the payload as JSON."""
    kind = type(payload).__name__
    return kind, _KINDS[kind].dump_json(payload).decode()


def load_payload(kind: str, content: str) -> Payload:
    """Reads back what `dump_payload` wrote."""
    payload: Payload = _KINDS[kind].validate_json(content)
    return payload
