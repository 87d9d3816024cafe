"""Keeps the head and the tail of an output stream within a fixed size, and counts what it lets go."""

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
