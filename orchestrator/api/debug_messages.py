"""Checkpoints, changes and divergences as the contract's messages."""

from collections.abc import Iterable

from codemend.orchestrator.v1 import debug_pb2 as pb
from codemend.orchestrator.v1 import runs_pb2

from orchestrator.api.sandbox_messages import text
from orchestrator.api.translation import attempt_message, timestamp
from orchestrator.errors import WrongState
from orchestrator.runs import Interrupt
from orchestrator.runs.traces import Divergence, FieldChange, Point, changes
from orchestrator.workflows import Attempt

STATE_BYTES = 2 * 1024 * 1024
_MOST_CHANGES = 100  # of one checkpoint in a list; GetCheckpoint has the whole state


def checkpoint_message(point: Point, parent: Point | None, attempt: Attempt | None) -> pb.Checkpoint:
    """A checkpoint in short, with what changed since its parent."""
    changed = changes(parent.state_json if parent is not None else "", point.state_json)
    return pb.Checkpoint(
        checkpoint_id=point.checkpoint_id,
        parent_checkpoint_id=point.parent_id,
        step=point.step,
        source=point.source,
        create_time=timestamp(point.create_time),
        next=point.next,
        changes=change_messages(changed[:_MOST_CHANGES]),
        attempt=attempt_message(attempt) if attempt is not None else None,
        on_path=point.on_path,
    )


def change_messages(found: Iterable[FieldChange]) -> list[pb.FieldChange]:
    """Changes of fields."""
    return [pb.FieldChange(field=one.field, before=text(one.before), after=text(one.after)) for one in found]


def interrupt_message(interrupt: Interrupt) -> runs_pb2.Interrupt:
    """An open question."""
    return runs_pb2.Interrupt(
        interrupt_id=interrupt.interrupt_id, node=interrupt.node, value_json=text(interrupt.value_json)
    )


def divergence_message(found: Divergence | None) -> pb.Divergence | None:
    """Where two runs part; None: nowhere."""
    if found is None:
        return None
    return pb.Divergence(step=found.step, node=found.node, kind=found.kind, detail=text(found.detail))


def state_text(state_json: str) -> str:
    """The state as a caller reads it. Raises WrongState where it is too large for a message."""
    if (size := len(state_json.encode())) > STATE_BYTES:
        raise WrongState(f"the state at this checkpoint has {size} bytes, and at most {STATE_BYTES} can be sent")
    return text(state_json)
