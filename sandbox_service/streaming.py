"""Output on its way from a cell to a streaming caller: buffers with bounds, since a cell's output cannot wait.

The bound of one stream is what a job may print by default, so that a program which prints faster than gRPC sends is no
fault; what all streams hold together is bounded too. Pieces that follow each other are joined, so that a program that
prints byte by byte does not cost a message for each. How long a reader may take is the server's to bound.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable

from sandbox_service.domain import MIB
from sandbox_service.errors import ReaderTooSlow

STREAM_BYTES = 16 * MIB
ALL_STREAMS_BYTES = 64 * MIB
CHUNK_BYTES = 64 * 1024
PIECE_OVERHEAD_BYTES = 64  # what a piece costs beside its bytes; without it, pieces of one byte would go uncounted


class Unsent:
    """What all streams of a server hold together; over its bound, those that hold most have to go."""

    def __init__(self, maximum_bytes: int = ALL_STREAMS_BYTES) -> None:
        self.maximum_bytes = maximum_bytes
        self.held_bytes = 0
        self._held: dict[OutputBuffer, int] = {}

    def count(self, buffer: "OutputBuffer", held_bytes: int) -> None:
        """Notes what a buffer holds now."""
        self.held_bytes += held_bytes - self._held.pop(buffer, 0)
        if held_bytes:
            self._held[buffer] = held_bytes

    def shrink(self) -> None:
        """Drops the buffers that hold most, until all are within the bound: a caller that reads loses nothing."""
        while self.held_bytes > self.maximum_bytes:
            largest = max(self._held, key=self._held.__getitem__)
            largest.drop(f"more than {self.maximum_bytes} bytes of all streams waited to be read, most of them here")


class OutputBuffer:
    """Takes pieces from a sink at any time and gives them out in order.

    Over a bound it drops everything, says so once, and its reader gets `ReaderTooSlow`.
    """

    def __init__(self, unsent: Unsent, *, maximum_bytes: int = STREAM_BYTES) -> None:
        """Makes an open, empty buffer.

        Args:
            unsent: shared by all buffers of the server.
            maximum_bytes: bound of this one.
        """
        self._unsent = unsent
        self._maximum = maximum_bytes
        self._pieces: deque[tuple[int, bytearray]] = deque()
        self._held = 0
        self._overflow = ""
        self._report_overflow: Callable[[], object] = lambda: None
        self._is_closed = False
        self._changed = asyncio.Event()

    def on_overflow(self, callback: Callable[[], object]) -> None:
        """Sets what is called when a bound is passed."""
        self._report_overflow = callback

    def push(self, stream: int, data: bytes) -> None:
        """Takes the next bytes of stdout (1) or stderr (2). Never blocks."""
        if self._overflow or not data:
            return
        if self._pieces and (last := self._pieces[-1])[0] == stream and len(last[1]) + len(data) <= CHUNK_BYTES:
            last[1].extend(data)
            self._count(len(data))
        else:
            for start in range(0, len(data), CHUNK_BYTES):
                piece = bytearray(data[start : start + CHUNK_BYTES])
                self._pieces.append((stream, piece))
                self._count(len(piece) + PIECE_OVERHEAD_BYTES)
        if self._held > self._maximum:
            self.drop(f"more than {self._maximum} bytes of this stream waited to be read")
        self._unsent.shrink()
        self._changed.set()

    def close(self) -> None:
        """No more output will come; what is left is still given out."""
        self._is_closed = True
        self._changed.set()

    async def chunks(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """Gives out pieces of at most 64 KiB as they come, until the buffer is closed and empty.

        Raises:
            ReaderTooSlow: a bound was passed.
        """
        try:
            while not (self._is_closed and not self._pieces and not self._overflow):
                if self._overflow:
                    raise ReaderTooSlow(f"{self._overflow}; the job was killed")
                if self._pieces:
                    stream, piece = self._pieces.popleft()
                    self._count(-len(piece) - PIECE_OVERHEAD_BYTES)
                    yield stream, bytes(piece)
                else:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self._overflow = self._overflow or "the stream has ended"  # what still comes is not kept
            self._clear()

    def drop(self, reason: str) -> None:
        """Lets go of everything; its reader is told the reason."""
        self._overflow = reason
        self._clear()
        self._report_overflow()
        self._changed.set()

    def _clear(self) -> None:
        self._pieces.clear()
        self._count(-self._held)

    def _count(self, change: int) -> None:
        self._held += change
        self._unsent.count(self, self._held)
