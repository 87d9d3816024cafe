"""What the sandbox offers, asked once for many runs and never waited for long.

A sandbox that does not answer is no reason to refuse a run: its offer is then unknown, and for a moment it is not asked
again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

from orchestrator.errors import SandboxError
from orchestrator.workflows.sandbox import Capabilities

FRESH = timedelta(seconds=30)
"""A sandbox may be started anew with other settings; what it offered is believed for so long."""
PAUSE = timedelta(seconds=5)
"""After an ask without an answer."""

logger = logging.getLogger(__name__)


class Offers:
    """The sandbox's capabilities, asked for when they are needed and old."""

    def __init__(self, ask: Callable[[], Awaitable[Capabilities]], clock: Callable[[], float] = time.monotonic) -> None:
        """Knows nothing yet.

        Args:
            ask: asks the sandbox; raises SandboxError where it does not answer.
            clock: monotonic seconds.
        """
        self._ask = ask
        self._clock = clock
        self._known: Capabilities | None = None
        self._ask_again = clock()
        self._asking = asyncio.Lock()  # protects all of the above: many who come at once ask once

    async def known(self) -> Capabilities | None:
        """What the sandbox offers; None where it did not answer."""
        async with self._asking:
            if self._clock() >= self._ask_again:
                try:
                    self._known, fresh = await self._ask(), FRESH
                except SandboxError as error:
                    logger.warning("the sandbox does not tell what it offers: %s", error)
                    self._known, fresh = None, PAUSE
                self._ask_again = self._clock() + fresh.total_seconds()
            return self._known
