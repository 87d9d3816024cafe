"""Where two runs part: step by step their states, and what each step asked from outside."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.runs.store import TapeEntry
from orchestrator.runs.tapediff import difference
from orchestrator.runs.traces.points import Point, changes

DETAIL_CHARS = 16 * 1024
OF_ITS_TIME = frozenset({"duration", "spent", "report_hash", "execution_hash"})
"""Fields of a state that differ whenever something was done anew: times, and hashes of what has times in it."""
_SHOWN_CHANGES = 20


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step at which two runs differ.

    Attributes:
        step: of the graph.
        node: that took it.
        kind: "prompt", "parameters", "sandbox job", "graph", "state" or "tape" (it ended too early).
        detail: a unified diff, or a sentence.
    """

    step: int
    node: str
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class Trace:
    """What a run did: the points on its path, oldest first, and its tape."""

    points: Sequence[Point]
    tape: Sequence[TapeEntry]


def compare(original: Trace, other: Trace, *, done_anew: bool = False) -> tuple[int, Divergence | None]:
    """How many steps are the same from the beginning on, and where the two part; None: nowhere.

    Args:
        original: one of them.
        other: the other one.
        done_anew: times do not count, since the other did it all itself; else states are the same to the byte.
    """
    if done_anew:
        original, other = _timeless(original), _timeless(other)
    equal = 0
    asked, also_asked = _by_step(original), _by_step(other)
    for index, (one, two) in enumerate(zip(original.points, other.points, strict=False)):
        if one.source == "input" and two.source == "input" and one.next == two.next:
            equal += one.state_json == two.state_json
            continue
        before = original.points[index - 1].next if index else ()
        node = ", ".join(before) or "start"
        if index and before != other.points[index - 1].next:
            ways = f"it goes on with {before}, not with {other.points[index - 1].next}"
            return equal, Divergence(one.step, node, "graph", ways)
        for step_id, also in zip(_ids(original, index), _ids(other, index), strict=False):
            if (found := _asked(asked.get(step_id, ()), also_asked.get(also, ()))) is not None:
                return equal, Divergence(one.step, node, *found)
        if one.state_json != two.state_json:
            return equal, Divergence(one.step, node, "state", _state_detail(one.state_json, two.state_json))
        equal += 1
    longer, shorter = (original, other) if len(original.points) > len(other.points) else (other, original)
    if len(longer.points) == len(shorter.points):
        return equal, None
    return equal, _beyond(original, other, len(shorter.points))


def _timeless(trace: Trace) -> Trace:
    def without_times(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in pairs if name not in OF_ITS_TIME}

    points = [
        replace(point, state_json=json.dumps(json.loads(point.state_json, object_pairs_hook=without_times)))
        for point in trace.points
    ]
    return Trace(points, trace.tape)


def _beyond(original: Trace, other: Trace, index: int) -> Divergence:
    """One of the two ended, or broke off, where the other went on."""
    longer = original if len(original.points) > len(other.points) else other
    node = ", ".join(longer.points[index - 1].next) or "start"
    step = longer.points[index].step
    asked, also_asked = _by_step(original), _by_step(other)
    for step_id, also in zip(_ids(original, index), _ids(other, index), strict=False):
        if (found := _asked(asked.get(step_id, ()), also_asked.get(also, ()))) is not None:
            return Divergence(step, node, *found)
    which = "the original" if longer is original else "the other"
    return Divergence(step, node, "graph", f"only {which} goes on with {node}")


def _ids(trace: Trace, index: int) -> Sequence[str]:
    """Ids of the steps that led to a point."""
    return trace.points[index - 1].step_ids if 0 < index <= len(trace.points) else ()


def _by_step(trace: Trace) -> Mapping[str, Sequence[TapeEntry]]:
    """Entries by the id of the graph's step, that of nested steps included."""
    found: dict[str, list[TapeEntry]] = {}
    for entry in trace.tape:
        found.setdefault(entry.step_id.partition("/")[0], []).append(entry)
    return found


def _asked(one: Sequence[TapeEntry], two: Sequence[TapeEntry]) -> tuple[str, str] | None:
    known = {entry.name: entry for entry in two}
    for entry in one:
        other = known.get(entry.name)
        if other is not None and other.request_digest != entry.request_digest:
            return difference(entry.kind, json.loads(entry.request), json.loads(other.request))
    return None


def _state_detail(before: str, after: str) -> str:
    found = changes(before, after)
    lines = [f"{change.field}: {change.before or '(none)'} -> {change.after or '(none)'}" for change in found]
    if len(lines) > _SHOWN_CHANGES:
        lines = [*lines[:_SHOWN_CHANGES], f"and {len(lines) - _SHOWN_CHANGES} more"]
    return "\n".join(lines)[:DETAIL_CHARS]
