"""Writes a test run's frames to the service, sealed with a key that is nowhere else once the run has begun."""

import fcntl
import gc
import json
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

from sandbox_service.guest.exchange import wire

Send = Callable[[dict[str, Any]], int]
"""Writes one frame; its size in bytes. Blocks while the pipe is full, which costs the job's own wall time."""
_FIRST_NUMBER, _LAST_NUMBER = 64, 160


def sealed(descriptor: int, key: str) -> Send:
    """Makes the function that writes frames to a descriptor.

    Code in the same process could write there too, so the descriptor moves to a number that it has to look for, what
    it writes there breaks the seal, and the key is kept where neither an attribute nor the garbage collector leads.

    Args:
        descriptor: of the report's pipe; it is closed, and another one takes its place.
        key: of the seal, in hexadecimal digits; empty: the report is not sealed.
    """
    number = _moved(descriptor)
    seal = wire.Seal(bytes.fromhex(key)) if key else None
    encode, write, frame = _encoder(), os.write, wire.framed  # by now: later they could be somebody else's

    def send(message: dict[str, Any]) -> int:
        data = memoryview(frame("".join(encode(message, 0)).encode(), seal))
        size = len(data)
        while data:
            data = data[write(number, data) :]
        return size

    gc.freeze()
    return send


_Encode = Callable[[dict[str, Any], int], Sequence[str]]


def _encoder() -> _Encode:
    """The json module's encoder in C: no function in python lies between a frame and its bytes."""
    make = vars(json.encoder)["c_make_encoder"]
    if make is None:
        return lambda message, _level: (json.dumps(message),)
    options = (None, ": ", ", ", False, False, True)  # indent, separators, sort_keys, skipkeys, allow_nan
    encode: _Encode = make(None, _refuse, json.encoder.encode_basestring_ascii, *options)
    return encode


def _refuse(value: object) -> str:
    raise TypeError(f"a {type(value).__name__} in a frame")


def _moved(descriptor: int) -> int:
    try:
        number = fcntl.fcntl(
            descriptor, fcntl.F_DUPFD_CLOEXEC, random.SystemRandom().randint(_FIRST_NUMBER, _LAST_NUMBER)
        )
    except OSError:  # a limit of open files below these numbers
        return descriptor
    os.close(descriptor)
    return number
