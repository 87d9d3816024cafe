"""kill -9 of a service in the middle of its work: its callers hear of it, and nothing of it is left."""

import asyncio
from collections.abc import Mapping

import grpc
import pytest
from codemend.sandbox.v1 import sandbox_pb2 as pb
from support.kinds import KINDS, MissingError
from support.waiting import until

from security.battery import honest_job_passes

pytestmark = pytest.mark.timeout(400)  # two services of a kind, and many jobs that start at once
JOBS: Mapping[str, int] = {"process": 50, "unprivileged": 50, "pod": 20, "docker": 12}
"""Running jobs; under gVisor each takes the machine about a second to start."""
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
        async with KINDS[kind](SANDBOX_CONCURRENCY=str(JOBS[kind])) as running:
            calls = await asyncio.gather(*(_held(running) for _ in range(JOBS[kind])))
            before = running.traces()
            assert sum(map(len, before.values())) > 0
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


async def _held(running):
    call = running.sandbox.stream(HOLD, seconds=300)
    assert (await call.read()).stdout_chunk == b"up\n"
    return call


async def test_a_job_whose_cell_is_killed_from_outside_is_answered_and_the_next_call_works(kind, require):
    try:
        async with KINDS[kind]() as running:
            call = await _held(running)
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
