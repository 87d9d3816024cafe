"""Reads chosen words of this process's own memory without touching the objects that they belong to.

To look at a python object is to count a reference to it, and that write copies its memory page where the process is a
fork. Where which word lies is found by trying it out, never taken from a version's source: where the trial fails,
there is nothing to read and whoever asks must look at the objects themselves.
"""

import ctypes
import gc
import os
import struct
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Range = tuple[int, int]
"""Address and number of bytes."""
_WORD = struct.calcsize("P")
_CHUNK_BYTES, _CHUNK_RANGES = 32 * 1024, 1024
"""Half of what a pipe takes unless its user has very many, and what one call takes (IOV_MAX); both are Linux's."""
_pipe, _read, _close = os.pipe2, os.read, os.close
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_libc_writev = ctypes.CDLL(None, use_errno=True).writev
_libc_writev.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_libc_writev.restype = ctypes.c_ssize_t


class _Piece(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Words:
    """Ranges of memory that are read together.

    The kernel gathers them: it reads this process's pages as they are, and a range that is no longer mapped makes the
    call fail instead of the process.
    """

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._chunks: list[tuple[ctypes.Array[_Piece], int]] = []
        chunk: list[Range] = []
        for one in ranges:
            if len(chunk) == _CHUNK_RANGES or sum(length for _at, length in chunk) + one[1] > _CHUNK_BYTES:
                self._add(chunk)
                chunk = []
            chunk.append(one)
        self._add(chunk)

    def _add(self, chunk: list[Range]) -> None:
        if chunk:
            self._chunks.append(
                ((_Piece * len(chunk))(*(_Piece(*one) for one in chunk)), sum(length for _at, length in chunk))
            )

    def read(self) -> bytes | None:
        """All ranges as one row of bytes; None: they cannot be read."""
        try:
            source, sink = _pipe(_FLAGS)
        except OSError:
            return None
        try:
            found = []
            for pieces, size in self._chunks:
                if _libc_writev(sink, ctypes.addressof(pieces), len(pieces)) != size:
                    return None
                found.append(_read(source, size))
            return b"".join(found)
        except OSError:
            return None
        finally:
            _close(source)
            _close(sink)


def word_of(holder: object, value: object) -> int | None:
    """Offset of the one word of `holder` that points to `value`; None: there is none, or there are several."""
    size = type(holder).__basicsize__ // _WORD
    words = (ctypes.c_size_t * size).from_address(id(holder))
    found = [number * _WORD for number in range(2, size) if words[number] == id(value)]
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class Layout:
    """Where this interpreter keeps what can be changed.

    Attributes:
        function: offset and length of the part of a function object that has its code and its defaults.
        version: offset of a dict's word that no two states of it have in common.
        cell: offset of a cell's content.
        items: offset of a list's pointer to its items.
    """

    function: Range
    version: int
    cell: int
    items: int

    def of_function(self, function: types.FunctionType) -> list[Range]:
        """Ranges that differ once its code, a default or what it encloses was replaced."""
        start, length = self.function
        found = [(id(function) + start, length)]
        if function.__kwdefaults__ is not None:
            found.append(self.of_dict(function.__kwdefaults__))
        return found + [(id(cell) + self.cell, _WORD) for cell in function.__closure__ or ()]

    def of_dict(self, names: Mapping[str, object]) -> Range:
        """The range that differs once a key was added, replaced or deleted."""
        return id(names) + self.version, _WORD

    def of_list(self, items: Sequence[object]) -> list[Range]:
        """Ranges that differ once an item was added, replaced or deleted."""
        start = 2 * _WORD
        found = [(id(items) + start, list.__basicsize__ - start)]
        if items:
            pointer = ctypes.c_size_t.from_address(id(items) + self.items).value
            found.append((pointer, len(items) * _WORD))
        return found

    @staticmethod
    def of_slot(holder: object, value: object) -> Range | None:
        """The range of a slot of an object, found by the value that it has now; None: it is not to be found."""
        offset = word_of(holder, value)
        return None if offset is None else (id(holder) + offset, _WORD)


def dict_behind(names: Mapping[str, object]) -> dict[str, object] | None:
    """The dict itself behind a class's read-only view of its names; None: there is none to be found."""
    if isinstance(names, types.MappingProxyType):
        behind = gc.get_referents(names)
        return behind[0] if len(behind) == 1 and type(behind[0]) is dict else None
    return names if type(names) is dict else None


def find_layout() -> Layout | None:
    """Tries out where the words lie. None: this interpreter keeps something in another way than can be found."""
    function, version, cell, items = _find_function(), _find_version(), _find_cell(), _find_items()
    if function is None or version is None or cell is None or items is None:
        return None
    return Layout(function, version, cell, items)


def _find_function() -> Range | None:
    def sample(one: object = object(), *, two: object = 2) -> object:
        return one, two

    parts = (sample.__code__, sample.__defaults__, sample.__kwdefaults__)
    offsets = [offset for part in parts if (offset := word_of(sample, part)) is not None]
    if len(offsets) != len(parts):
        return None
    return min(offsets), max(offsets) + _WORD - min(offsets)


def _find_version() -> int | None:
    """The word that takes a new value with every change, and that looking up leaves alone."""
    sample: dict[str, object] = {f"key{number}": number for number in range(8)}
    changes: tuple[Callable[[], object], ...] = (
        lambda: sample.__setitem__("key1", "new"),
        lambda: sample.__setitem__("key1", 1),
        lambda: sample.pop("key2"),
        lambda: sample.update(key2=2),
        lambda: sample.__delitem__("key3"),
        lambda: sample.setdefault("key3", 3),
        lambda: sample.__ior__({"key4": "new"}),
        sample.popitem,
    )
    words = (ctypes.c_size_t * (dict.__basicsize__ // _WORD)).from_address(id(sample))
    seen = [list(words)]
    for change in changes:
        change()
        before = list(words)
        sample.get("key1"), list(sample.items())
        seen.append(list(words))
        if before[2:] != seen[-1][2:]:
            return None
    fit = [number for number in range(2, len(words)) if len({each[number] for each in seen}) == len(seen)]
    return fit[0] * _WORD if len(fit) == 1 else None


def _find_cell() -> int | None:
    content = object()
    return word_of(types.CellType(content), content)


def _find_items() -> int | None:
    """The word that points to a place where the addresses of the items lie."""
    sample = [object() for _ in range(5)]
    wanted = tuple(id(one) for one in sample)
    words = (ctypes.c_size_t * (list.__basicsize__ // _WORD)).from_address(id(sample))
    for number, word in enumerate(list(words)):
        found = Words([(word, len(sample) * _WORD)]).read()  # any number at all: the kernel refuses what is no address
        if found is not None and struct.unpack(f"{len(sample)}P", found) == wanted:
            return number * _WORD
    return None


def ranges_of_functions(layout: Layout, functions: Iterable[types.FunctionType]) -> list[Range]:
    """Of several functions."""
    return [one for function in functions for one in layout.of_function(function)]
