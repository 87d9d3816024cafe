"""Threads for the work of tenants: none of them can take all of them."""

import asyncio
import threading

import pytest
from support.waiting import until

from sandbox_service.threads import TENANT_THREADS, TenantThreads


class Work:
    """Work that lasts until it is let go."""

    def __init__(self):
        self.begun, self.go = 0, threading.Event()

    def __call__(self, result=None):
        self.begun += 1
        assert self.go.wait(10)
        return result


async def test_one_tenant_s_work_waits_for_its_own_and_another_s_does_not():
    threads, held = TenantThreads(), Work()
    flood = [asyncio.ensure_future(threads.run("flood", held, number)) for number in range(10)]
    await until(lambda: held.begun == TENANT_THREADS)
    assert await asyncio.wait_for(threads.run("other", lambda: "done"), 5) == "done"
    assert held.begun == TENANT_THREADS
    held.go.set()
    assert await asyncio.gather(*flood) == list(range(10))


async def test_a_caller_that_leaves_does_not_free_the_place_of_its_thread():
    threads, held = TenantThreads(), Work()
    left = [asyncio.ensure_future(threads.run("t", held)) for _ in range(TENANT_THREADS)]
    await until(lambda: held.begun == TENANT_THREADS)
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    waiting = asyncio.ensure_future(threads.run("t", lambda: "turn"))
    queued = asyncio.ensure_future(threads.run("t", lambda: "never"))
    await asyncio.wait((waiting,), timeout=0.05)
    assert not waiting.done()
    queued.cancel()
    held.go.set()
    assert await asyncio.wait_for(waiting, 5) == "turn"


async def test_errors_come_out_and_nothing_is_kept_of_a_tenant_without_work():
    threads = TenantThreads()
    with pytest.raises(ZeroDivisionError):
        await threads.run("t", lambda: 1 / 0)
    await until(lambda: not threads._lines)
