"""Keeps the head and the tail of an output stream within a fixed size, and counts what it lets go.

A job's two streams share one limit, whatever kind of cell they come from.
"""

from collections.abc import Callable

from sandbox_service.cells.base import OutputSink
from sandbox_service.domain import Output

KEPT_BYTES = 256 * 1024
"""Of head and of tail each: two streams of both stay within a quarter of a 4-MiB reply."""


class OutputKeeper:
    """Memory stays flat however much is fed."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept = kept_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes."""
        self.total_bytes += len(chunk)
        room = self._kept - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail += chunk[-self._kept :]
            if len(self._tail) > 2 * self._kept:  # cut seldom, so that many small chunks do not move the tail each time
                del self._tail[: -self._kept]

    def output(self) -> Output:
        """What was kept so far."""
        tail = bytes(self._tail[-self._kept :])
        dropped = self.total_bytes - len(self._head) - len(tail)
        if dropped:
            return Output(bytes(self._head), tail, dropped)
        return Output(bytes(self._head) + tail)


class LimitedOutput:
    """Both streams of one job, up to the bytes that they may have together."""

    def __init__(self, limit_bytes: int, sink: OutputSink | None, on_limit: Callable[[], None]) -> None:
        """Makes two empty streams.

        Args:
            limit_bytes: of both together; what comes beyond is dropped.
            sink: gets each chunk that is within the limit.
            on_limit: called with each chunk that goes over the limit, before what is left of it is taken.
        """
        self.stdout, self.stderr = OutputKeeper(), OutputKeeper()
        self._limit_bytes, self._sink, self._on_limit = limit_bytes, sink, on_limit

    def take_stdout(self, chunk: bytes) -> None:
        """Takes the next bytes of stdout."""
        self._take(1, self.stdout, chunk)

    def take_stderr(self, chunk: bytes) -> None:
        """Takes the next bytes of stderr."""
        self._take(2, self.stderr, chunk)

    def _take(self, number: int, keeper: OutputKeeper, chunk: bytes) -> None:
        room = self._limit_bytes - self.stdout.total_bytes - self.stderr.total_bytes
        if len(chunk) > room:
            self._on_limit()
            chunk = chunk[: max(room, 0)]
        if chunk:
            keeper.feed(chunk)
            if self._sink is not None:
                self._sink(number, chunk)
