"""What the service and the guest say to each other, and how: the one module that both sides import.

Three channels: *orders* (service to template, one packet a job, file descriptors attached), *control* (job to
service, JSON packets on a SOCK_SEQPACKET pair) and *report* (test reporter to service, length-prefixed JSON on a
pipe). A job itself travels in a memory file: a JSON header, then the files' bytes. The service parses what comes back
as strictly as anything that a stranger sends.
"""

import json
import os
import struct
from collections.abc import Iterable
from typing import Any

MAX_PACKET_BYTES = 64 * 1024
MAX_FRAME_BYTES = 512 * 1024
MAX_REPORT_BYTES = 32 * 1024 * 1024
_LENGTH = struct.Struct("!I")

ORDER_FDS = ("control", "spec", "stdin", "stdout", "stderr")
"""Descriptors of every order, in this sequence; `report`, `collect` and cgroup descriptors follow where the order
says so."""


def pack_job(header: dict[str, Any], blobs: Iterable[bytes]) -> bytes:
    """The content of a job's memory file: length, JSON header, then the blobs one after the other."""
    head = json.dumps(header).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *blobs])


def unpack_job(descriptor: int) -> dict[str, Any]:
    """Reads a memory file made of `pack_job`.

    Every entry of the header's `files` and `tests` gets its bytes as `content`.
    """
    size = os.fstat(descriptor).st_size
    data = memoryview(os.pread(descriptor, size, 0))
    (length,) = _LENGTH.unpack(data[: _LENGTH.size])
    offset = _LENGTH.size + length
    header: dict[str, Any] = json.loads(bytes(data[_LENGTH.size : offset]))
    for entry in [*header["files"], *header["tests"]]:
        entry["content"] = data[offset : offset + entry["size"]]
        offset += entry["size"]
    return header


def frame(message: dict[str, Any]) -> bytes:
    """One report frame: four bytes of length (big endian), then JSON in ASCII."""
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a byte stream into report frames.

    Raises from `feed`:
        ValueError: a frame is longer than MAX_FRAME_BYTES, is no JSON object, or the stream is longer than
            MAX_REPORT_BYTES.
    """

    def __init__(self) -> None:
        self._pending = bytearray()
        self._seen = 0

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """Takes the next bytes and returns the frames that they complete."""
        self._seen += len(chunk)
        if self._seen > MAX_REPORT_BYTES:
            raise ValueError(f"the report is longer than {MAX_REPORT_BYTES} bytes")
        self._pending += chunk
        frames = []
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a report frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
            if len(self._pending) < _LENGTH.size + length:
                break
            body = bytes(self._pending[_LENGTH.size : _LENGTH.size + length])
            del self._pending[: _LENGTH.size + length]
            message = json.loads(body)
            if not isinstance(message, dict):
                raise ValueError("a report frame is no JSON object")  # noqa: TRY004 - what came is data, not an argument
            frames.append(message)
        return frames
