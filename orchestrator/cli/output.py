"""Raw bytes to this process's own stdout and stderr, without ever blocking the event loop.

One daemon thread writes in order: a reader that stopped reading (a paused pager) holds up neither the service nor the
end of this process.
"""

import asyncio
import os
import queue
import threading


class RawOutput:
    """Writes chunks to file descriptors in the order they were given."""

    def __init__(self) -> None:
        self._chunks: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._write_all, name="codemend-output", daemon=True).start()

    def write(self, descriptor: int, chunk: bytes) -> None:
        """Takes a chunk; it is written as soon as the ones before it are.

        Raises:
            OSError: an earlier chunk could not be written, such as BrokenPipeError.
        """
        if self._finished.done():
            self._finished.result()
        self._chunks.put((descriptor, chunk))

    async def finish(self) -> None:
        """Waits until everything is written.

        Raises:
            OSError: something could not be written.
        """
        self._chunks.put(None)
        await asyncio.shield(self._finished)

    def _write_all(self) -> None:
        failure: OSError | None = None
        try:
            while (item := self._chunks.get()) is not None:
                descriptor, chunk = item
                left = memoryview(chunk)
                while left:
                    left = left[os.write(descriptor, left) :]
        except OSError as error:
            failure = error
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._settle, failure)

    def _settle(self, failure: OSError | None) -> None:
        if self._finished.done():
            return
        if failure is None:
            self._finished.set_result(None)
        else:
            self._finished.set_exception(failure)
            self._finished.exception()  # whoever still writes or finishes gets it; nobody else has to
