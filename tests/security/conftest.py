"""One running service of each kind of cell, for all tests of this folder.

A kind that cannot be had here is skipped, or fails where CI=true.
"""

from contextlib import AsyncExitStack

import pytest
from support.kinds import KINDS, MissingError

from security.battery import LAST_OF_GROUP

BATTERY = "test_an_attack_is_contained_and_leaves_nothing_for_honest_jobs"
SLOW_KINDS = ("pod", "docker")  # gVisor without hardware help: an attack takes half a second and more
SPREAD = 3  # of the battery there, every so manieth is a test; `make security` runs all of it on every kind


def pytest_collection_modifyitems(config, items):
    """Leaves out of the battery on slow kinds what is neither in the spread nor the last of its group."""
    kept, left_out = [], []
    number = 0
    for item in items:
        slow = item.name.startswith(tuple(f"{BATTERY}[{kind}-" for kind in SLOW_KINDS))
        number += slow
        last = slow and item.callspec.params["attack"].name in LAST_OF_GROUP.values()
        (left_out if slow and number % SPREAD and not last else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session", params=KINDS)
async def running(request, require):
    """A service with cells of one kind."""
    async with AsyncExitStack() as stack:
        try:
            started = await stack.enter_async_context(KINDS[request.param]())
        except MissingError as error:
            require(False, str(error))
        yield started
