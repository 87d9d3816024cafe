"""Plain values to nodes. See `plain`."""

import datetime as dt
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from sandbox_service.guest.dialogue.plain import (
    CLASSES,
    MAX_DEPTH,
    MAX_VALUES,
    Kept,
    Memo,
    Node,
    NotPlainError,
    TooLargeError,
    Value,
    name_of,
)

_JSON_INT = 2**63
_ATOMS = frozenset({type(None), bool, float})


class Writer:
    """Makes nodes of values.

    Args:
        memo: of the exchange that the values belong to.
        kept: what stays here and crosses as a number.
        exact: refuse subclasses of plain types; otherwise they are written as the plain type that they extend.
    """

    def __init__(self, memo: Memo, kept: Kept, *, exact: bool) -> None:
        self._memo, self._kept, self._exact = memo, kept, exact
        self._left = MAX_VALUES
        self._open: set[int] = set()

    def node(self, value: Value, depth: int = 0) -> Node:
        """The node of a value.

        Raises:
            NotPlainError: it is, or holds, something else than plain values.
            TooLargeError: it holds too much.
        """
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind is int:
            return value if -_JSON_INT < value < _JSON_INT else ["i", hex(value)]
        if kind is str:
            return value if value.isascii() else _text(value)
        if depth > MAX_DEPTH:
            raise TooLargeError(f"values nested deeper than {MAX_DEPTH}")
        write = _WRITERS.get(kind)
        if write is None:
            return self._other(value, depth)
        return write(self, value, depth)

    def content(self, container: Value, depth: int = 0) -> Node:
        """The node of a container itself, although it is in the memo."""
        return _CONTENTS[_base(container)](self, container, depth)

    def items(self, iterable: Iterable[Value], depth: int) -> list[Node]:
        """The nodes of a sequence; one of numbers or texts alone costs no call for each."""
        values = list(iterable)
        self._left -= len(values)
        if self._left < 0:
            raise TooLargeError(f"more than {MAX_VALUES} values at once")
        kinds = set(map(type, values))
        if kinds <= _ATOMS:
            return values
        if kinds == {int} and min(values) > -_JSON_INT and max(values) < _JSON_INT:
            return values
        if kinds == {str} and all(map(str.isascii, values)):
            return values
        return [self.node(value, depth + 1) for value in values]

    def _container(self, value: Value, depth: int) -> Node:
        number = self._memo.number(value)
        if number is not None:
            return ["@", number]
        self._memo.add(value)
        return self.content(value, depth)

    def _closed(self, tag: str, value: Value, depth: int) -> Node:
        """One that cannot be changed: it has no number, and cannot hold itself without a container between."""
        if id(value) in self._open:
            raise TooLargeError(f"a {type(value).__name__} that holds itself")
        self._open.add(id(value))
        try:
            return [tag, self.items((tuple if tag == "t" else frozenset).__iter__(value), depth)]
        finally:
            self._open.discard(id(value))

    def _other(self, value: Value, depth: int) -> Node:
        number = self._kept.number(value)
        if number is not None:
            return ["g", number, self._kept.is_generator(value)]
        if isinstance(value, type) and CLASSES.get(value.__name__) is value:
            return ["T", value.__name__]
        if not self._exact:
            if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
                return self.node(value.item(), depth)
            base = _base(value)
            if base in _PLAIN_CALLS:
                return self.node(_PLAIN_CALLS[base](value), depth)
            if base in _WRITERS:
                return _WRITERS[base](self, value, depth)
        opaque = self._kept.opaque(value)
        if opaque is not None:
            return ["o", *opaque]
        raise NotPlainError(name_of(value), value)


def _base(value: object) -> type:
    for kind in type(value).__mro__:
        if kind in _WRITERS or kind in _PLAIN_CALLS:
            return kind
    return object


def _text(value: str) -> Node:
    try:
        value.encode()
    except UnicodeEncodeError:  # two surrogates beside each other would come out as one character
        return ["u", value.encode("utf-8", "surrogatepass").hex()]
    return value


def _zone(value: dt.tzinfo | None) -> Node:
    if value is None:
        return None
    if type(value) is not dt.timezone:
        raise NotPlainError(name_of(value))
    offset = value.utcoffset(None)
    return [offset.days, offset.seconds, offset.microseconds, value.tzname(None)]


def _clock(value: Value) -> list[Node]:
    return [value.hour, value.minute, value.second, value.microsecond, value.fold, _zone(value.tzinfo)]


def _factory(value: Value) -> Node:
    made = value.default_factory
    return made.__name__ if isinstance(made, type) and CLASSES.get(made.__name__) is made else None


def _pairs(writer: Writer, value: Value, depth: int) -> list[Node]:
    return writer.items(flat_items(value), depth)


def flat_items(value: Value) -> list[Value]:
    """Keys and values of a dictionary in its order: an OrderedDict has one of its own."""
    pairs = OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value)
    return [part for pair in pairs for part in pair]


def _defaults(writer: Writer, value: Value, depth: int) -> Node:
    if writer._exact and value.default_factory is not None and _factory(value) is None:  # noqa: SLF001 - its own module
        raise NotPlainError(f"a defaultdict with {name_of(value.default_factory)}")
    return writer._container(value, depth)  # noqa: SLF001 - its own module


_Write = Callable[[Writer, Any, int], Node]
_CONTENTS: dict[type, _Write] = {
    list: lambda w, v, d: ["l", w.items(list.__iter__(v), d)],
    dict: lambda w, v, d: ["d", _pairs(w, v, d)],
    set: lambda w, v, d: ["s", w.items(set.__iter__(v), d)],
    bytearray: lambda _w, v, _d: ["B", bytes(v).hex()],
    deque: lambda w, v, d: ["q", w.items(deque.__iter__(v), d), v.maxlen],
    Counter: lambda w, v, d: ["C", _pairs(w, v, d)],
    OrderedDict: lambda w, v, d: ["O", _pairs(w, v, d)],
    defaultdict: lambda w, v, d: ["dd", _pairs(w, v, d), _factory(v)],
}
_WRITERS: dict[type, _Write] = {
    **dict.fromkeys(_CONTENTS, Writer._container),  # noqa: SLF001 - its own module
    defaultdict: _defaults,
    tuple: lambda w, v, d: w._closed("t", v, d),  # noqa: SLF001 - its own module
    frozenset: lambda w, v, d: w._closed("f", v, d),  # noqa: SLF001 - its own module
    bytes: lambda _w, v, _d: ["b", v.hex()],
    complex: lambda _w, v, _d: ["c", v.real, v.imag],
    range: lambda w, v, d: ["r", w.items((v.start, v.stop, v.step), d)],
    dt.datetime: lambda _w, v, _d: ["dt", v.year, v.month, v.day, *_clock(v)],
    dt.date: lambda _w, v, _d: ["D", v.year, v.month, v.day],
    dt.time: lambda _w, v, _d: ["tm", *_clock(v)],
    dt.timedelta: lambda _w, v, _d: ["td", v.days, v.seconds, v.microseconds],
    dt.timezone: lambda _w, v, _d: ["tz", _zone(v)],
    Decimal: lambda _w, v, _d: ["n", str(v)],
    Fraction: lambda w, v, d: ["F", w.items((v.numerator, v.denominator), d)],
    type({}.keys()): lambda w, v, d: ["vk", w.items(v, d)],
    type({}.values()): lambda w, v, d: ["vv", w.items(v, d)],
    type({}.items()): lambda w, v, d: ["vi", w.items([part for pair in v for part in pair], d)],
}  # fmt: skip
_PLAIN_CALLS: dict[type, Callable[[Any], Any]] = {
    int: int.__pos__,
    float: float.__pos__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
}
