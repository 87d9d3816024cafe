"""One running service of each kind of cell, for all tests of this folder.

A kind that cannot be had here is skipped, or fails where CI=true.
"""

from contextlib import AsyncExitStack

import pytest
from support.kinds import KINDS, MissingError


@pytest.fixture(scope="session", params=KINDS)
async def running(request, require):
    """A service with cells of one kind."""
    async with AsyncExitStack() as stack:
        try:
            started = await stack.enter_async_context(KINDS[request.param]())
        except MissingError as error:
            require(False, str(error))
        yield started
