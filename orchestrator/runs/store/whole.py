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
    """The method, carried out whole. A cancellation counts once it has ended, whatever it came to."""

    @functools.wraps(method)
    async def carried_out(*args: P.args, **kwargs: P.kwargs) -> T:
        work = asyncio.ensure_future(method(*args, **kwargs))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})
            if not work.cancelled():
                work.exception()  # looked at, so that nobody complains of it
            raise

    return carried_out
