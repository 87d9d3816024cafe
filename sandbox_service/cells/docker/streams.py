"""The attached streams of a process in a container, on the event loop: the engine's framing off, our frames out of it.

Everything that comes is a stranger's: sizes are capped before bytes are kept.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Self

from sandbox_service.guest.exchange import frames

_HEAD = struct.Struct("!BxxxI")
"""The engine's own header: which stream (1 stdout, 2 stderr), then how many bytes follow."""
_STDOUT = 1
_KEPT_WORDS_BYTES = 2048

OnFrame = Callable[[int, bytes], None]
"""Raises ValueError, TypeError or KeyError for a frame that must not be; the stream is closed then."""


def _unasked(kind: int, _body: bytes) -> None:
    raise ValueError(f"a frame of kind {kind} that nobody asked for")


class Demultiplexer:
    """Cuts the engine's stream into chunks of stdout and stderr; a chunk is passed on before it is complete."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._stream = 0
        self._left = 0

    def feed(self, chunk: bytes) -> list[tuple[int, bytes]]:
        """Takes the next bytes and returns stream number and bytes."""
        found, offset = [], 0
        while offset < len(chunk):
            if self._left:
                part = chunk[offset : offset + self._left]
                found.append((self._stream, part))
                self._left -= len(part)
                offset += len(part)
                continue
            missing = _HEAD.size - len(self._head)
            self._head += chunk[offset : offset + missing]
            offset += missing
            if len(self._head) == _HEAD.size:
                self._stream, self._left = _HEAD.unpack(self._head)
                self._head.clear()
        return found


class Streams(asyncio.Protocol):
    """One process's streams.

    Attributes:
        on_frame: gets its frames.
        words: the last that it wrote to stderr.
        fault: why the service gave the stream up; empty: it did not.
        closed: done when nothing more will come.
    """

    def __init__(self, *, framed: bool) -> None:
        """`framed`: stdout is frames; otherwise it counts as words like stderr."""
        self._demultiplexer = Demultiplexer()
        self._reader = frames.FrameCutter() if framed else None
        self._transport: asyncio.Transport | None = None
        self._words = bytearray()
        self.fault = ""
        self.on_frame: OnFrame = _unasked
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def over(cls, handle: socket.socket, *, framed: bool) -> Self:
        """Takes a connected socket over; its descriptor is closed with this object."""
        _transport, streams = await asyncio.get_running_loop().create_connection(
            lambda: cls(framed=framed), sock=handle
        )
        return streams

    @property
    def words(self) -> str:
        """The last words, as text for an error or a log."""
        return self._words.decode("utf-8", "replace").strip()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        for number, chunk in self._demultiplexer.feed(data):
            if self._reader is None or number != _STDOUT:
                self._words += chunk
                del self._words[:-_KEPT_WORDS_BYTES]
                continue
            try:
                for kind, body in self._reader.feed(chunk):
                    self.on_frame(kind, body)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                self.fault = self.fault or f"{type(error).__name__}: {error}"[:256]
                self.close()
                return

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's own signature
        """Called by the event loop."""
        self._finish()

    def send(self, frame: bytes) -> None:
        """Sends one frame, unless the stream has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def close(self) -> None:
        """Closes it at once."""
        if self._transport is not None:
            self._transport.abort()
        self._finish()

    def _finish(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
