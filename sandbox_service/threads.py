"""Work of callers that would hold up the event loop, in threads: so many at one time for each tenant, whoever asks.

The threads are the event loop's own; what the work is, callers say. A thread cannot be stopped: work that goes there
has bounds of its own.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar

TENANT_THREADS = 2
"""A tenant that asks for more waits for itself, and not for others with the interpreter's lock."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class _Line:
    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(TENANT_THREADS))
    users: int = 0


class TenantThreads:
    """Runs functions in threads. One event loop."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    async def run(self, tenant: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result.

        Cancelling the task that awaits this leaves the thread to its end; its place is taken until then.

        Raises:
            Exception: whatever the function raises.
        """
        line = self._lines.setdefault(tenant, _Line())
        line.users += 1
        try:
            await line.free.acquire()
        except BaseException:
            self._leave(tenant, line)
            raise
        work = asyncio.get_running_loop().run_in_executor(None, partial(function, *args, **kwargs))
        work.add_done_callback(lambda done: self._ended(tenant, line, done))
        return await asyncio.shield(work)

    def _ended(self, tenant: str, line: _Line, done: asyncio.Future[T]) -> None:
        if not done.cancelled():
            done.exception()  # read, since the caller may have left
        line.free.release()
        self._leave(tenant, line)

    def _leave(self, tenant: str, line: _Line) -> None:
        line.users -= 1
        if not line.users:
            del self._lines[tenant]
