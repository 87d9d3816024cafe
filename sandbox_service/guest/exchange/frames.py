"""What the service and a container say to each other over the container's attached streams: frames, cut and counted.

A frame is its kind (one byte), its length (four bytes, big endian) and its body. The service takes what comes out of
a container as strictly as anything that a stranger sends; what a job of `wire` looks like is not known here.
"""

import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

PROTOCOL = 1
"""Version of this page and of all that a container's guest does by it: an image of another version is refused."""

ADDRESS = b"\0codemend-orders"
"""Where process 1 of a container listens for its relay: no file, and closed before the first job."""
MAX_BODY_BYTES = 512 * 1024
_PIECE_BYTES = 256 * 1024
_HEAD = struct.Struct("!BI")
_CODE = (".py", ".js", ".cjs", ".mjs")


class ToGuest(IntEnum):
    """Frames from the service."""

    HELLO = 1
    """JSON: `filters`, the forms of the filter of system calls."""
    ORDER = 2
    """JSON: one job, whose parts have been sent."""
    END = 3
    """Ends the job that runs."""
    PART = 5
    """The number of a part of the next job, then the next bytes of it."""
    CHANNEL = 4
    """The next bytes for the program on its channel to another cell; none: that one has closed its end."""


class FromGuest(IntEnum):
    """Frames from a container."""

    READY = 1
    """JSON: `protocol`, `versions` of the languages, `have` (protections found inside: name -> how)."""
    CONTROL = 2
    """One packet of the job's process 1, as it is."""
    STREAM = 3
    """The number of a stream in the order's list, then the next bytes of it."""
    FILES = 4
    """The next bytes of what `collect` brings."""
    CHANNEL = 6
    """The next bytes from the program on its channel; none: it has closed its end."""
    DONE = 5
    """JSON: the job is over; `left`: something of it may be left, and no other job may run here."""


def digest() -> str:
    """Names the guest's code as it lies around this file: what an image must hold to be spoken to from here."""
    here = Path(__file__).parents[1]
    whole = hashlib.sha256()
    for path in sorted(path for path in here.rglob("*") if path.suffix in _CODE):
        whole.update(f"{path.relative_to(here)}\0".encode() + path.read_bytes() + b"\0")
    return whole.hexdigest()


def pack(kind: int, body: bytes = b"") -> bytes:
    """One frame."""
    return _HEAD.pack(kind, len(body)) + body


def pack_json(kind: int, **message: object) -> bytes:
    """One frame whose body is a JSON object."""
    return pack(kind, json.dumps(message).encode())


def pack_order(order: dict[str, Any], parts: Sequence[bytes]) -> Iterator[bytes]:
    """The frames of one job: its parts piece by piece, so that nobody has to hold them whole, then the order."""
    for number, part in enumerate(parts):
        view = memoryview(part)
        for start in range(0, len(view), _PIECE_BYTES):
            yield pack(ToGuest.PART, bytes((number,)) + view[start : start + _PIECE_BYTES])
    yield pack_json(ToGuest.ORDER, **order)


class FrameCutter:
    """Cuts a byte stream into frames of at most `limit` bytes each."""

    def __init__(self, limit: int = MAX_BODY_BYTES) -> None:
        self._limit = limit
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> list[tuple[int, bytes]]:
        """Takes the next bytes and returns kind and body of the frames that they complete.

        Raises:
            ValueError: a frame is longer than the limit.
        """
        self._pending += chunk
        found, offset = [], 0
        while len(self._pending) - offset >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._pending, offset)
            if length > self._limit:
                raise ValueError(f"a frame of {length} bytes is over the limit of {self._limit}")
            start = offset + _HEAD.size
            if len(self._pending) < start + length:
                break
            found.append((kind, bytes(self._pending[start : start + length])))
            offset = start + length
        del self._pending[:offset]
        return found
