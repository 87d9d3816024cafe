"""Plain values as bytes: what the judge and the candidate of a test run may say to each other.

The carrier is JSON with a tag around everything that JSON does not know. What the two directions share is here; they
are in `plain_writer` and `plain_reader`. Which messages there are is not known to any of the three.
"""

import json
from typing import Any, Protocol

MAX_BYTES = 16 * 1024 * 1024
MAX_VALUES = 2_500_000
_MAX_COMMAS, _MAX_BRACKETS = 4_000_000, 1_000_000
MAX_DEPTH = 100
CLASSES: dict[str, type] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, object)
}
"""Classes that cross as themselves, such as a type to convert to or a default factory."""

Node = Any
"""A value as JSON holds it."""
Value = Any
"""A plain value, or what is taken for one until it is looked at."""


class NotPlainError(TypeError):
    """A value of another kind. `what` names it: "a function"; `value` is the value itself where it is known."""

    def __init__(self, what: str, value: object = None) -> None:
        super().__init__(f"{what}, which is no plain value")
        self.what, self.value = what, value


class TooLargeError(ValueError):
    """More values, or nested deeper, than one message may hold."""


class MalformedError(ValueError):
    """Bytes that no writer of this module writes."""


class Kept(Protocol):
    """What cannot cross and stays where it is: the other side gets a number that it can give back."""

    def number(self, value: object) -> int | None:
        """The number of an iterator, or of what stands for something of the other side's; None: it is neither."""

    def is_generator(self, value: object) -> bool:
        """Whether an iterator that has a number is a generator."""

    def opaque(self, value: object) -> tuple[int, bool, str] | None:
        """The number, the truth and the description of something else that stays; None: nothing else may stay."""

    def found(self, number: int, *, generator: bool) -> object:
        """What has this number on this side, or an iterator (a generator) that stands for it."""

    def stand_in(self, number: int, *, truth: bool, what: str) -> object:
        """What stands for something of the other side's that is no iterator."""


class Memo:
    """The containers of one exchange in order of appearance: both sides count alike, so that a number names one."""

    def __init__(self) -> None:
        self.containers: list[Any] = []
        self._numbers: dict[int, int] = {}

    def add(self, container: object) -> None:
        """Gives the next number."""
        self._numbers[id(container)] = len(self.containers)
        self.containers.append(container)  # which also keeps its id its own

    def number(self, container: object) -> int | None:
        """The number of a container that was there before."""
        return self._numbers.get(id(container))


def to_bytes(message: Node) -> bytes:
    """A message of nodes as bytes.

    Raises:
        TooLargeError: over MAX_BYTES, or of too many values.
    """
    data = json.dumps(message, separators=(",", ":")).encode("ascii")
    if _is_too_large(data):
        raise TooLargeError(f"{len(data)} bytes at once; at most {MAX_BYTES}, or too many values")
    return data


def _is_too_large(data: bytes) -> bool:
    """Whether bytes could take many times their size when they are read: looked at before anything is built."""
    return len(data) > MAX_BYTES or data.count(b",") > _MAX_COMMAS or data.count(b"[") > _MAX_BRACKETS


def from_bytes(data: bytes) -> Node:
    """Reads a message. Its size in memory is bounded before it is built.

    Raises:
        MalformedError: it is none.
    """
    if _is_too_large(data):
        raise MalformedError("a message over its size")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"no message: {type(error).__name__}") from None


def name_of(value: object) -> str:
    """What a value is, in a word: "a function", "an instance of Node"."""
    kind = type(value)
    if kind.__name__ in ("function", "builtin_function_or_method", "method", "method_descriptor"):
        return "a function"
    if isinstance(value, type):
        return f"the class {value.__name__[:80]}"
    if kind.__name__ in ("module", "generator", "coroutine"):
        return f"a {kind.__name__}"
    return f"an instance of {kind.__name__[:80]}"
