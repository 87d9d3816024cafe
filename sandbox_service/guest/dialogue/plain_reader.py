"""Nodes to plain values: exact built-in types and nothing else.

No class, no code and no name of the writer's gets through. See `plain`.
"""

import datetime as dt
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from sandbox_service.guest.dialogue.plain import CLASSES, Kept, MalformedError, Memo, Node, Value

_ATOMS = frozenset({type(None), bool, int, float, str})
_LONGEST_DECIMAL = 10_000
_LONGEST_NAME = 128
_BROKEN = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)


class Reader:
    """Makes values of nodes. Everything that comes out is of an exact built-in type, or out of `kept`."""

    def __init__(self, memo: Memo, kept: Kept) -> None:
        self.memo, self.kept = memo, kept

    def value(self, node: Node) -> Value:
        """The value of a node.

        Raises:
            MalformedError: no Writer makes such a node.
        """
        if type(node) in _ATOMS:
            return node
        try:
            return self._built(node)
        except _BROKEN as error:
            raise MalformedError(f"no plain value: {type(error).__name__}: {error}"[:200]) from None

    def assign(self, number: int, node: Node) -> None:
        """Puts what a node holds into the container with this number, in place.

        Raises:
            MalformedError: there is none, or it is of another type.
        """
        try:
            container = self.memo.containers[number]
            make, fill = _CONTAINERS[node[0]]
            fresh = make(node)
            fill(self, fresh, node[1])
            replace(container, fresh)
        except _BROKEN as error:
            raise MalformedError(f"no content: {type(error).__name__}: {error}"[:200]) from None

    def items(self, nodes: Node) -> list[Any]:
        """The values of a list of nodes."""
        if type(nodes) is not list:
            raise TypeError("no list")
        if _ATOMS.issuperset(map(type, nodes)):
            return nodes
        return [node if type(node) in _ATOMS else self._built(node) for node in nodes]

    def _built(self, node: Node) -> Value:
        if type(node) is not list:
            raise TypeError("no value")
        tag = node[0]
        if tag in _CONTAINERS:
            make, fill = _CONTAINERS[tag]
            container = make(node)
            self.memo.add(container)
            fill(self, container, node[1])
            return container
        return _READERS[tag](self, *node[1:])


def replace(container: Value, fresh: Value) -> None:
    """Puts the content of one container into another in place.

    Raises:
        TypeError: they are of different types.
    """
    if type(fresh) is not type(container):
        raise TypeError(f"a {type(fresh).__name__} for a {type(container).__name__}")
    if isinstance(container, (list, bytearray)):
        container[:] = fresh
        return
    container.clear()
    if isinstance(container, deque):
        container.extend(fresh)
    elif isinstance(container, set):
        container.update(fresh)
    else:
        _fill(container, fresh.items())


def _fill_pairs(reader: Reader, container: Value, nodes: Node) -> None:
    flat = reader.items(nodes)
    _fill(container, zip(flat[::2], flat[1::2], strict=True))


def _fill(container: Value, pairs: Iterable[tuple[Value, Value]]) -> None:
    """Sets keys of a new dictionary; the method of `dict` knows nothing of an OrderedDict's order."""
    if isinstance(container, OrderedDict):
        container.update(pairs)
    else:
        dict.update(container, pairs)


def _whole(value: Node) -> int:
    if type(value) is not int:
        raise TypeError("no whole number")
    return value


def _default_dict(node: Node) -> Value:
    return defaultdict(None if node[2] is None else CLASSES[node[2]])


_CONTAINERS: dict[str, tuple[Callable[[Node], Any], Callable[[Reader, Any, Node], None]]] = {
    "l": (lambda _node: [], lambda r, made, nodes: made.extend(r.items(nodes))),
    "d": (lambda _node: {}, _fill_pairs),
    "s": (lambda _node: set(), lambda r, made, nodes: made.update(r.items(nodes))),
    "B": (lambda _node: bytearray(), lambda _r, made, text: made.extend(bytes.fromhex(text))),
    "q": (
        lambda node: deque(maxlen=None if node[2] is None else _whole(node[2])),
        lambda r, made, nodes: made.extend(r.items(nodes)),
    ),
    "C": (lambda _node: Counter(), _fill_pairs),
    "O": (lambda _node: OrderedDict(), _fill_pairs),
    "dd": (_default_dict, _fill_pairs),
}


def _big(_reader: Reader, text: str) -> int:
    return int(text, 16)


def _read_zone(node: Node) -> dt.timezone | None:
    if node is None:
        return None
    days, seconds, microseconds, name = node
    offset = dt.timedelta(_whole(days), _whole(seconds), _whole(microseconds))
    plain = dt.timezone(offset)
    return plain if plain.tzname(None) == name else dt.timezone(offset, name)


def _read_date_time(_reader: Reader, *parts: Node) -> dt.datetime:
    year, month, day, *clock = parts
    return dt.datetime.combine(dt.date(_whole(year), _whole(month), _whole(day)), _read_time(_reader, *clock))


def _read_time(_reader: Reader, *parts: Node) -> dt.time:
    hour, minute, second, microsecond, fold = map(_whole, parts[:5])
    return dt.time(hour, minute, second, microsecond, _read_zone(parts[5]), fold=fold)


def _read_decimal(_reader: Reader, text: str) -> Decimal:
    if type(text) is not str or len(text) > _LONGEST_DECIMAL:
        raise ValueError("no decimal")
    return Decimal(text)


def _wholes(reader: Reader, nodes: Node) -> list[int]:
    return [_whole(value) for value in reader.items(nodes)]


def _referred(reader: Reader, number: Node) -> Value:
    return reader.memo.containers[_index(number)]


def _index(number: Node) -> int:
    if type(number) is not int or number < 0:
        raise TypeError("no number")
    return number


_READERS: dict[str, Callable[..., Any]] = {
    "@": _referred,
    "i": _big,
    "u": lambda _r, text: bytes.fromhex(text).decode("utf-8", "surrogatepass"),
    "t": lambda r, nodes: tuple(r.items(nodes)),
    "f": lambda r, nodes: frozenset(r.items(nodes)),
    "b": lambda _r, text: bytes.fromhex(text),
    "c": lambda _r, real, imaginary: complex(_part(real), _part(imaginary)),
    "r": lambda r, nodes: range(*_wholes(r, nodes)),
    "dt": _read_date_time,
    "D": lambda _r, *parts: dt.date(*map(_whole, parts)),
    "tm": _read_time,
    "td": lambda _r, *parts: dt.timedelta(*map(_whole, parts)),
    "tz": lambda _r, node: _read_zone(node),
    "n": _read_decimal,
    "F": lambda r, nodes: Fraction(*_wholes(r, nodes)),
    "vk": lambda r, nodes: dict.fromkeys(r.items(nodes)).keys(),
    "vv": lambda r, nodes: dict(enumerate(r.items(nodes))).values(),
    "vi": lambda r, nodes: dict(_paired(r.items(nodes))).items(),
    "T": lambda _r, name: CLASSES[name],
    "g": lambda r, number, generator: r.kept.found(_index(number), generator=generator is True),
    "o": lambda r, number, truth, what: r.kept.stand_in(_index(number), truth=truth is True, what=_short(what)),
}


def _short(text: Node) -> str:
    if type(text) is not str:
        raise TypeError("no text")
    return text[:_LONGEST_NAME]


def _part(value: Node) -> float:
    if type(value) is not float:
        raise TypeError("no float")
    return value


def _paired(flat: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))
