"""A state as canonical JSON: what is shown of it, what is compared of it, and what an edit of it is made of."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, cast, get_type_hints

from pydantic import ValidationError

from orchestrator.errors import InvalidRun
from orchestrator.workflows.plain import Plain, as_plain, canonical, of_plain, unkeepable
from orchestrator.workflows.state import Attempt, CodegenState

PREVIEW_CHARS = 200
EDITABLE = ("attempts", "base", "decision", "draft", "plan", "stop")  # what was spent, and how it ended, are facts
_FIELDS: Mapping[str, Any] = get_type_hints(CodegenState)
_AT = "edit.values_json"


def state_json(values: Mapping[str, Any]) -> str:
    """The state as canonical JSON: equal states have equal texts, byte for byte."""
    return canonical({name: as_plain(_FIELDS[name], value) for name, value in values.items() if name in _FIELDS})


def read_state(text: str) -> dict[str, Any]:
    """The state back from its JSON. Raises pydantic.ValidationError where a value is none of today's state."""
    return {name: of_plain(_FIELDS[name], value) for name, value in json.loads(text).items() if name in _FIELDS}


def field_sizes(values: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of each field as JSON."""
    return {name: len(text) for name, text in _field_texts(values)}


def field_previews(values: Mapping[str, Any]) -> dict[str, str]:
    """The beginning of each field as JSON."""
    return {name: text[:PREVIEW_CHARS] for name, text in _field_texts(values)}


def _field_texts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, canonical(as_plain(_FIELDS[name], value))) for name, value in values.items() if name in _FIELDS]


def read_edit(values_json: str, current: Mapping[str, Any]) -> CodegenState:
    """An edit as what a node would return: given fields of records are merged onto those that are there.

    Args:
        values_json: a JSON object of fields of the state; an attempt is found by its number.
        current: the state that is edited.

    Raises:
        InvalidRun: a field is unknown or cannot be edited, or a value does not fit.
    """
    try:
        given = json.loads(values_json)
    except (ValueError, RecursionError) as error:
        raise InvalidRun((_AT, f"must be JSON: {error}")) from error
    if not isinstance(given, dict):
        raise InvalidRun((_AT, "must be a JSON object of fields of the state"))
    fragment: dict[str, Any] = {}
    for name, value in given.items():
        if name not in EDITABLE:
            raise InvalidRun(
                (f"{_AT}.{name[:80]}", f"is no field that can be edited; these can: {', '.join(EDITABLE)}")
            )
        if fault := unkeepable(value):
            raise InvalidRun((f"{_AT}.{name}", fault))
        before = current.get(name)
        if name == "attempts":
            merged = _attempts(value, current)
        else:
            merged = _merged(as_plain(_FIELDS[name], before) if before is not None else None, value)
        fragment[name] = _read(name, merged)
    return cast("CodegenState", fragment)


def _attempts(value: Plain, current: Mapping[str, Any]) -> Plain:
    """Each attempt given, merged onto the one with its number."""
    known = {attempt.number: attempt for attempt in current.get("attempts", [])}
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise InvalidRun((f"{_AT}.attempts", "must be a list of attempts, each with its number"))
    for one in value:
        number = one.get("number")
        if not isinstance(number, int) or number not in known:
            raise InvalidRun((f"{_AT}.attempts", f"there is no attempt {str(number)[:80]!r} to change"))
    return [_merged(as_plain(Attempt, known[one["number"]]), one) for one in value]


def _merged(before: Plain, after: Plain) -> Plain:
    if isinstance(before, dict) and isinstance(after, dict):
        return {**before, **{name: _merged(before.get(name), value) for name, value in after.items()}}
    return after


def _read(name: str, value: Plain) -> Plain:
    try:
        read = of_plain(_FIELDS[name], value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in (name, *first["loc"]) if not _is_union_tag(part))
        raise InvalidRun((f"{_AT}.{where}", f"does not fit: {first['msg']}")) from error
    unknown = _unknown(read, value, name)
    if unknown:
        raise InvalidRun((f"{_AT}.{unknown}", "there is no such field"))
    return read


def _is_union_tag(part: int | str) -> bool:
    return isinstance(part, str) and part[:1].isupper()


def _unknown(read: Plain, given: Plain, name: str) -> str:
    """The first name in what was given that the record does not have; empty: all are its own."""
    if isinstance(given, list) and isinstance(read, (list, tuple)):
        pairs = [
            (inner, value, f"{name}.{index}") for index, (inner, value) in enumerate(zip(read, given, strict=False))
        ]
        return next((found for pair in pairs if (found := _unknown(*pair))), "")
    if not isinstance(given, dict) or not dataclasses.is_dataclass(read):
        return ""
    own = {field.name for field in dataclasses.fields(read)}
    for key, value in given.items():
        if key not in own:
            return f"{name}.{key[:80]}"
        if found := _unknown(getattr(read, key), value, f"{name}.{key}"):
            return found
    return ""
