"""What the service and the guest say to each other, and how: the one module that both sides import.

Three channels: *orders* (service to template, one packet a job, file descriptors attached), *control* (job to
service, JSON packets on a SOCK_SEQPACKET pair) and *report* (test reporter to service, length-prefixed JSON on a
pipe). A job itself travels in a memory file: a JSON header, then the files' bytes. The service parses what comes back
as strictly as anything that a stranger sends.
"""

import hashlib
import hmac
import json
import mmap
import os
import struct
from collections.abc import Iterable
from typing import Any

MAX_PACKET_BYTES = 64 * 1024
MAX_FRAME_BYTES = 512 * 1024
MAX_REPORT_BYTES = 32 * 1024 * 1024
SEAL_BYTES = 16
_LENGTH = struct.Struct("!I")

ORDER_FDS = ("control", "spec", "stdin", "stdout", "stderr")
"""Descriptors of every order, in this sequence; those of OPTIONAL_FDS that the order asks for follow, then those of
cgroups."""
OPTIONAL_FDS = ("report", "collect", "changes", "channel")


def pack_job(header: dict[str, Any], blobs: Iterable[bytes]) -> bytes:
    """The content of a job's memory file: length, JSON header, then the blobs one after the other."""
    return b"".join(job_parts(header, blobs))


def job_parts(header: dict[str, Any], blobs: Iterable[bytes]) -> list[bytes]:
    """The same in parts, for a job that is too large to be copied at leisure."""
    head = json.dumps(header).encode()
    return [_LENGTH.pack(len(head)), head, *blobs]


def unpack_job(descriptor: int) -> dict[str, Any]:
    """Reads a memory file made of `pack_job`.

    Every entry of the header's `workspace`, `files` and `tests` gets its bytes as `content` and their place in the
    file as `offset`. The bytes stay where they are, so that they do not count as the job's memory.
    """
    size = os.fstat(descriptor).st_size
    data = memoryview(mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))
    (length,) = _LENGTH.unpack(data[: _LENGTH.size])
    offset = _LENGTH.size + length
    header: dict[str, Any] = json.loads(bytes(data[_LENGTH.size : offset]))
    for entry in _entries(header):
        entry["content"] = data[offset : offset + entry["size"]]
        entry["offset"] = offset
        offset += entry["size"]
    return header


def forget_contents(header: dict[str, Any]) -> None:
    """Lets go of the bytes that `unpack_job` gave, and of the memory that they are mapped into."""
    for entry in _entries(header):
        del entry["content"]


def _entries(header: dict[str, Any]) -> list[dict[str, Any]]:
    """All entries with bytes, in the order of the bytes."""
    return [*header.get("workspace", ()), *header["files"], *header["tests"]]


class Seal:
    """A running tag over all frames of a report, made with a key that only the reporter and the service have."""

    def __init__(self, key: bytes) -> None:
        self._state = hashlib.blake2b(key=key, digest_size=SEAL_BYTES)

    def tag(self, body: bytes) -> bytes:
        """The tag of the next frame."""
        self._state.update(body)
        return self._state.digest()


class ForgedError(ValueError):
    """A frame whose tag is not the reporter's."""


def frame(message: dict[str, Any], seal: Seal | None = None) -> bytes:
    """One report frame: four bytes of length (big endian), JSON in ASCII, and its tag where the report is sealed."""
    return framed(json.dumps(message).encode(), seal)


def framed(body: bytes, seal: Seal | None) -> bytes:
    """A frame of a body that is JSON already."""
    return _LENGTH.pack(len(body)) + body + (seal.tag(body) if seal else b"")


class FrameReader:
    """Cuts a byte stream into report frames.

    Raises from `feed`:
        ForgedError: a frame of a sealed report has another tag than it must have.
        ValueError: a frame is longer than MAX_FRAME_BYTES, is no JSON object, or the stream is longer than
            MAX_REPORT_BYTES.
    """

    def __init__(self, seal: Seal | None = None) -> None:
        self._pending = bytearray()
        self._seen = 0
        self._seal = seal
        self._tag_bytes = SEAL_BYTES if seal else 0

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
                over = f"a report frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}"
                raise ForgedError(over) if self._seal else ValueError(over)
            end = _LENGTH.size + length
            if len(self._pending) < end + self._tag_bytes:
                break
            body = bytes(self._pending[_LENGTH.size : end])
            tag = bytes(self._pending[end : end + self._tag_bytes])
            del self._pending[: end + self._tag_bytes]
            if self._seal and not hmac.compare_digest(tag, self._seal.tag(body)):
                raise ForgedError("a frame that the reporter did not write")
            message = json.loads(body)
            if not isinstance(message, dict):
                raise ValueError("a report frame is no JSON object")  # noqa: TRY004 - what came is data, not an argument
            frames.append(message)
        return frames
