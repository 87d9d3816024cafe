"""kill -9 of a service in the middle of its work: its callers hear of it, and nothing of it is left."""

import asyncio
from collections.abc import Mapping

import grpc
import pytest
from codemend.sandbox.v1 import sandbox_pb2 as pb
from support.jobs import limits
from support.kinds import KINDS, MissingError
from support.waiting import until

from security.battery import honest_job_passes
from security.places import waiting

pytestmark = pytest.mark.timeout(400)  # two services of a kind, and many jobs that start at once
IN_FLIGHT = 50
RUNNING: Mapping[str, int] = {"process": 50, "unprivileged": 50, "pod": 50, "docker": 12}
"""Of the jobs in flight, those that run; the others wait in the queue. Each container takes two processors about a
second to start and another to remove: with 50 of them this test alone would take two minutes longer."""
QUEUE_SECONDS = 30
STARTS = 6
"""At one time: a cell must be set up within its bound, also on a machine with two processors."""
HELD_SECONDS = 300
GONE_SECONDS = 15
HOLD = """
import os, subprocess, time
for place in '/work', '/tmp', '/dev/shm', '/var/tmp', '/home/job': open(f'{place}/held', 'w').write('x')
subprocess.Popen(['sleep', '1000'], start_new_session=True)
print('up', flush=True)
time.sleep(1000)
"""


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


async def test_a_killed_service_leaves_nothing_for_its_successor(kind, require):
    try:
        async with KINDS[kind](SANDBOX_CONCURRENCY=str(RUNNING[kind])) as running:
            starting = asyncio.Semaphore(STARTS)
            calls = await asyncio.gather(*(_held(running, starting) for _ in range(RUNNING[kind])))
            calls += [
                running.sandbox.stream(HOLD, HELD_SECONDS, limits=limits(wall_time=HELD_SECONDS))
                for _ in range(IN_FLIGHT - len(calls))
            ]
            await until(lambda: waiting(running) == IN_FLIGHT - RUNNING[kind], QUEUE_SECONDS)
            seen = {**running.beyond(), **running.traces()}
            assert max(map(len, seen.values())) >= RUNNING[kind], seen
            await running.kill()
            for call in calls:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call.read()
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            async with KINDS[kind]() as successor:
                await until(lambda: not running.traces(), GONE_SECONDS)
                assert await honest_job_passes(successor)
    except MissingError as error:
        require(False, str(error))


async def _held(running, starting):
    async with starting:
        call = running.sandbox.stream(HOLD, HELD_SECONDS, limits=limits(wall_time=HELD_SECONDS))
        assert (await call.read()).stdout_chunk == b"up\n"
        return call


async def test_a_job_whose_cell_is_killed_from_outside_is_answered_and_the_next_call_works(kind, require):
    try:
        async with KINDS[kind]() as running:
            call = await _held(running, asyncio.Semaphore(1))
            running.shell(_KILL_CELLS[kind].format(pid=running.sandbox.pid))
            assert await _answer(call) in _ANSWERS[kind]
            assert (await running.sandbox.python("print('again')")).out == b"again\n"
    except MissingError as error:
        require(False, str(error))


async def _answer(call):
    """The code of the call's error, or the status of its result."""
    try:
        return (await call.read()).result.status
    except grpc.aio.AioRpcError as error:
        return error.code()


_ANSWERS: Mapping[str, frozenset[object]] = {
    **dict.fromkeys(("process", "unprivileged", "pod"), frozenset({grpc.StatusCode.UNAVAILABLE})),
    "docker": frozenset({grpc.StatusCode.UNAVAILABLE, pb.EXECUTION_STATUS_SIGNALED}),
}
"""What its caller hears. A job can end its own container, so there a killed one may have been the job's doing."""
_KILL_CHILDREN = "kill -9 $(grep -lE '^PPid:\\s+{pid}$' /proc/[0-9]*/status | cut -d/ -f3)"
_KILL_CELLS: Mapping[str, str] = {
    **dict.fromkeys(("process", "unprivileged", "pod"), _KILL_CHILDREN),
    "docker": "docker kill $(docker ps -q --filter name=codemend-{pid}-) || true",
}
"""A command line on the service's machine that ends whatever its cells are made of; {pid} is the service."""
