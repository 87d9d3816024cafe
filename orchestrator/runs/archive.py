"""How an ended run's events are written down: JSON with the kind of each payload beside it, and read back from it."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, get_args

from pydantic import TypeAdapter

from orchestrator.runs.events import Payload, RunEvent

_KINDS: dict[str, TypeAdapter[Any]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(Payload)}


def dump_events(events: Iterable[RunEvent]) -> bytes:
    """Events as JSON."""
    rows = [
        (
            event.sequence,
            event.time.isoformat(),
            event.run_id,
            kind,
            _KINDS[kind].dump_python(event.payload, mode="json"),
        )
        for event in events
        if (kind := type(event.payload).__name__)
    ]
    return json.dumps(rows, separators=(",", ":")).encode()


def load_events(content: bytes) -> Sequence[RunEvent]:
    """Reads back what `dump_events` wrote."""
    return [
        RunEvent(sequence, datetime.fromisoformat(time), run_id, _KINDS[kind].validate_python(payload, strict=False))
        for sequence, time, run_id, kind, payload in json.loads(content)
    ]
