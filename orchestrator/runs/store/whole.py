"""Calls of the database that are carried out whole: a caller that is cancelled meanwhile waits for their end.

A connection that is broken off in the middle of a statement is lost, and what became of its transaction is unknown.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def whole(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The method, carried out whole, see `to_its_end`."""

    @functools.wraps(method)
    async def carried_out(*args: P.args, **kwargs: P.kwargs) -> T:
        return await to_its_end(method(*args, **kwargs))

    return carried_out


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to. A cancellation counts once the work has ended, whatever it came to.

    However often its caller is cancelled: of several cancellations, the first is raised.
    """
    task = asyncio.create_task(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancellation = cancellation or error
    if cancellation is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # looked at, so that nobody complains of it
    raise cancellation
