"""How a service's process stops: signals as events, and the order of a graceful drain.

The order: health says NOT_SERVING, new work is refused, running work ends within the grace period, the rest is
cancelled, and the server stops when every handler has cleaned up. A second signal ends the grace period at once.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from codemend.rpc.server import RpcServer

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """SIGTERM and SIGINT as events: `first` asks for a graceful stop, `second` for a fast one. A context manager."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._received)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    def _received(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


async def finished(work: Coroutine[Any, Any, None], *, unless: asyncio.Event, within: timedelta | None = None) -> bool:
    """Whether the work ended before the event and the time; otherwise it has been cancelled and is gone.

    Raises:
        Exception: whatever the work raised.
    """
    task = asyncio.create_task(work)
    event = asyncio.create_task(unless.wait())
    timeout = None if within is None else within.total_seconds()
    try:
        await asyncio.wait({task, event}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        is_done = task.done()
    finally:
        task.cancel()
        event.cancel()
        await asyncio.wait({task, event})
    if task.cancelled():
        return False
    task.result()
    return is_done


async def serve_until_stopped(
    server: RpcServer,
    signals: StopSignals,
    *,
    refuse: Callable[[], None],
    drained: Callable[[], Awaitable[None]],
    grace: timedelta,
) -> None:
    """Serves until the first signal, then drains.

    Args:
        server: a server that serves.
        signals: what ends it.
        refuse: makes the service refuse new work; called once, and must not block.
        drained: waits until the service's own work has ended. Calls at work are waited for here.
        grace: time for what runs to end by itself.
    """
    await signals.first.wait()
    logger.info("stopping", extra={"calls": server.calls.running, "grace_seconds": grace.total_seconds()})
    await server.set_not_serving()
    refuse()

    async def work_ends() -> None:
        await drained()
        await server.calls.idle()

    if await finished(work_ends(), unless=signals.second, within=grace):
        await server.stop()
        logger.info("stopped; nothing was cut off")
        return
    logger.warning("grace is over; cancelling what still runs", extra={"calls": server.calls.running})
    await server.stop(timedelta())
