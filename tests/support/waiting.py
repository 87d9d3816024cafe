"""Waiting for a condition that nothing announces."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], seconds: float = 5) -> None:
    """Returns as soon as the condition holds, and fails when it does not hold in time."""
    async with asyncio.timeout(seconds):
        while True:
            if condition():
                return
            await asyncio.sleep(0.002)
