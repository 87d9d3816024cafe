"""Records as plain JSON values and as canonical JSON, and back; and what no text or number from outside may hold.

A lone surrogate, a NUL or a number over 64 bits breaks one or another of the places where values are kept (MessagePack,
PostgreSQL, UTF-8), so answers from outside are freed of them before anything else sees them.
"""

import json
import re
from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")
Plain = Any  # values as JSON has them: texts, numbers, lists, dicts
Kind = Any  # a type, or a form of one such as a union
Kept = Any  # a value of it

GREATEST_INT = 2**63 - 1
_UNKEEPABLE = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "\ufffd"

_adapters: dict[Any, TypeAdapter[Any]] = {}  # making one takes milliseconds


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def canonical(plain: Plain) -> str:
    """Plain values as JSON text: sorted keys, no spaces, ASCII alone. Equal values have equal texts."""
    return json.dumps(plain, ensure_ascii=True, sort_keys=True, separators=(",", ":"))


def as_plain(kind: Kind, value: Kept) -> Plain:
    """A record as plain JSON values."""
    return _adapter(kind).dump_python(value, mode="json")


def of_plain(kind: type[T], plain: Plain, *, strict: bool = False) -> T:
    """The record back. Raises pydantic.ValidationError where the values are something else's.

    Args:
        kind: what the values are to be.
        plain: the values.
        strict: takes no value of another type for one of the right type, such as "2" for 2.
    """
    return _adapter(kind).validate_json(canonical(plain), strict=strict)


def encode(kind: Kind, value: Kept) -> bytes:
    """A record as canonical JSON."""
    return canonical(as_plain(kind, value)).encode()


def decode(kind: type[T], content: bytes | str) -> T:
    """Reads back what `encode` wrote. Raises pydantic.ValidationError where it is something else."""
    return _adapter(kind).validate_json(content)


def clean_text(text: str) -> str:
    """The text with U+FFFD in the place of each NUL and each lone surrogate."""
    return _UNKEEPABLE.sub(_REPLACEMENT, text)


def clean(plain: Plain) -> Plain:
    """Plain values with clean texts, and with numbers cut to 64 bits."""
    match plain:
        case str():
            return clean_text(plain)
        case bool() | float() | None:
            return plain
        case int():
            return max(-GREATEST_INT - 1, min(plain, GREATEST_INT))
        case dict():
            return {clean_text(key): clean(value) for key, value in plain.items()}
        case _:
            return [clean(value) for value in plain]


def unkeepable(plain: Plain) -> str:
    """What is wrong with plain values that are not clean; empty where nothing is."""
    match plain:
        case str() if (not plain.isascii() or "\0" in plain) and _UNKEEPABLE.search(plain):  # which takes its time
            return "must hold no NUL and no lone surrogate"
        case int() if not -GREATEST_INT - 1 <= plain <= GREATEST_INT:
            return "must hold no number over 64 bits"
        case dict():
            return next((text for item in plain.items() if (text := unkeepable(item))), "")
        case list() | tuple():
            return next((text for item in plain if (text := unkeepable(item))), "")
        case _:
            return ""
