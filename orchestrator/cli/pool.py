"""A bounded number of workers over a list of things to do."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def in_parallel(items: Iterable[T], work: Callable[[T], Awaitable[None]], *, at_once: int) -> None:
    """Does `work` on every item in their order, `at_once` at a time; the first error ends all of it and is raised."""
    waiting = iter(items)

    async def serve() -> None:
        for item in waiting:
            await work(item)

    workers = [asyncio.ensure_future(serve()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
