"""An edit of a state, read from JSON: given fields are laid over the records that are there, and the sum is checked."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, cast

from pydantic import ValidationError

from orchestrator.errors import InvalidRun
from orchestrator.workflows.editrules import AT, check_edit
from orchestrator.workflows.plain import Plain, as_plain, of_plain, unkeepable
from orchestrator.workflows.state import Attempt, CodegenState
from orchestrator.workflows.statejson import FIELDS

EDITABLE = ("attempts", "base", "decision", "draft", "plan", "stop")  # what was spent, and how it ended, are facts
MAXIMUM_DEPTH = 32  # of the JSON; a state has five levels


def read_edit(values_json: str, current: Mapping[str, Any]) -> CodegenState:
    """An edit as what a node would return: given fields of records are merged onto those that are there.

    Args:
        values_json: a JSON object of fields of the state; an attempt is found by its number.
        current: the state that is edited.

    Raises:
        InvalidRun: a field is unknown or cannot be edited, or a value does not fit, by its type or by what is there.
    """
    try:
        given = json.loads(values_json)
    except (ValueError, RecursionError) as error:
        raise InvalidRun((AT, f"must be JSON: {error}")) from error
    if not isinstance(given, dict):
        raise InvalidRun((AT, "must be a JSON object of fields of the state"))
    if _is_deep(given):
        raise InvalidRun((AT, f"must be nested at most {MAXIMUM_DEPTH} deep"))
    fragment: dict[str, Any] = {}
    for name, value in given.items():
        if name not in EDITABLE:
            raise InvalidRun((f"{AT}.{name[:80]}", f"is no field that can be edited; these can: {', '.join(EDITABLE)}"))
        if fault := unkeepable(value):
            raise InvalidRun((f"{AT}.{name}", fault))
        before = current.get(name)
        if name == "attempts":
            merged = _attempts(value, current)
        else:
            merged = _merged(as_plain(FIELDS[name], before) if before is not None else None, value)
        fragment[name] = _read(name, merged)
    edit = cast("CodegenState", fragment)
    check_edit(current, edit)
    return edit


def _is_deep(value: Plain) -> bool:
    """Whether values are nested deeper than `MAXIMUM_DEPTH`; found without recursion, which they could exhaust."""
    level = [value]
    for _ in range(MAXIMUM_DEPTH):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [item for items in inner for item in items]
    return any(isinstance(one, (dict, list)) for one in level)


def _attempts(value: Plain, current: Mapping[str, Any]) -> Plain:
    """Each attempt given, merged onto the one with its number."""
    known = {attempt.number: attempt for attempt in current.get("attempts", [])}
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise InvalidRun((f"{AT}.attempts", "must be a list of attempts, each with its number"))
    seen = set()
    for one in value:
        number = one.get("number")
        if type(number) is not int or number not in known:  # True would be 1
            raise InvalidRun((f"{AT}.attempts", f"there is no attempt {str(number)[:80]!r} to change"))
        if number in seen:
            raise InvalidRun((f"{AT}.attempts", f"attempt {number} is given twice"))
        seen.add(number)
    return [_merged(as_plain(Attempt, known[one["number"]]), one) for one in value]


def _merged(before: Plain, after: Plain) -> Plain:
    if isinstance(before, dict) and isinstance(after, dict):
        return {**before, **{name: _merged(before.get(name), value) for name, value in after.items()}}
    return after


def _read(name: str, value: Plain) -> Plain:
    try:
        read = of_plain(FIELDS[name], value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in (name, *first["loc"]) if not _is_union_tag(part))
        raise InvalidRun((f"{AT}.{where}", f"does not fit: {first['msg']}")) from error
    unknown = _unknown(read, value, name)
    if unknown:
        raise InvalidRun((f"{AT}.{unknown}", "there is no such field"))
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
