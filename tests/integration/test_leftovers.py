"""What is left of jobs when their service, their template or their caller goes away: nothing, within a bound."""

import asyncio
import os
import signal
import time
from pathlib import Path

import grpc
import pytest
from support.footprint import alive, children, footprint, groups, processes
from support.jobs import client
from support.sandbox import sandbox_process
from support.waiting import until

GONE_SECONDS = 2
DESCRIPTORS_OF_A_WAITING_CELL = 4
HOLD = """
import subprocess, time
subprocess.Popen(['sleep', '100'], start_new_session=True)
print('up', flush=True)
time.sleep(100)
"""


async def hold(sandbox, number):
    """Starts jobs that run until they are ended; returns their calls."""
    calls = [sandbox.stream(HOLD) for _ in range(number)]
    for call in calls:
        assert (await call.read()).stdout_chunk == b"up\n"
    return calls


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_the_watch_sees_the_processes_and_groups_of_a_running_job(tmp_path):
    async with (
        sandbox_process(TMPDIR=str(tmp_path)) as service,
        client(service.address, service.process.pid) as sandbox,
    ):
        before = footprint(sandbox.pid, tmp_path)
        (call,) = await hold(sandbox, 1)
        counted = ["groups"] if "pids_cgroup" in await sandbox.in_force() else []
        found = lambda: footprint(sandbox.pid, tmp_path).beyond(before)  # noqa: E731 - asked repeatedly
        # process 1 of the cell, the program, its child; a cell that is just being made for the next job passes
        await until(lambda: len(found()["processes"]) == 3 and sorted(found()) == [*counted, "processes"])
        call.cancel()
        await until(lambda: not footprint(sandbox.pid, tmp_path).beyond(before), 1)


async def test_a_service_that_is_killed_takes_its_jobs_with_it_and_the_next_removes_its_groups():
    async with sandbox_process(SANDBOX_CONCURRENCY="8") as service:
        old = service.process.pid
        async with client(service.address, old) as sandbox:
            calls = await hold(sandbox, 8)
            had_groups = bool(groups(old))
            started = processes(old)
            assert len(started) >= 3 * 8
            service.send(signal.SIGKILL)
            await until(lambda: not alive(started), GONE_SECONDS)
            for call in calls:
                assert (await refused(call.read())).code() is grpc.StatusCode.UNAVAILABLE
        await service.ended()
    assert bool(groups(old)) == had_groups  # nobody is left who could have removed them
    async with sandbox_process() as service, client(service.address, service.process.pid) as sandbox:
        assert groups(old) == []
        assert (await sandbox.python("print('new')")).out == b"new\n"


async def test_a_service_that_is_stopped_leaves_no_process_group_or_file(tmp_path):
    async with sandbox_process(SANDBOX_CONCURRENCY="4", SANDBOX_GRACE="100ms", TMPDIR=str(tmp_path)) as service:
        pid = service.process.pid
        async with client(service.address, pid) as sandbox:
            calls = await hold(sandbox, 4)
            started = processes(pid)
            service.send(signal.SIGTERM)
            assert await service.ended() == 0
            for call in calls:
                assert (await refused(call.read())).code() is grpc.StatusCode.UNAVAILABLE
    assert alive(started) == set()
    assert groups(pid) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("level", ["the service's child", "process 1 of its namespace"])
async def test_a_template_that_dies_fails_its_running_calls_and_the_next_call_works(level):
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="4") as service,
        client(service.address, service.process.pid) as sandbox,
    ):
        before = footprint(sandbox.pid)
        calls = await hold(sandbox, 2)
        jobs = processes(sandbox.pid) - set(before.processes)
        (template,) = [pid for pid in children(sandbox.pid) if jobs & below(pid)]
        (victim,) = {template} if level == "the service's child" else children(template)
        os.kill(victim, signal.SIGKILL)
        for call in calls:
            assert (await refused(call.read())).code() is grpc.StatusCode.UNAVAILABLE
        assert (await sandbox.python("print('again')")).out == b"again\n"
        assert (await sandbox.tests("def test_a(): pass")).report.counts.passed == 1
        assert alive(jobs) == set()
        await until(lambda: len(processes(sandbox.pid)) == len(before.processes) and not job_groups(sandbox.pid))


def below(pid: int) -> set[int]:
    """All descendants."""
    found = children(pid)
    return found.union(*(below(child) for child in found))


def job_groups(service: int) -> list[str]:
    """Control groups of jobs; the service's own stays."""
    return [str(path) for path in groups(service) if path.name.isdigit()]


async def test_a_cancelled_call_s_job_is_gone_within_a_second(tmp_path):
    async with (
        sandbox_process(TMPDIR=str(tmp_path)) as service,
        client(service.address, service.process.pid) as sandbox,
    ):
        before = footprint(sandbox.pid, tmp_path)
        for _ in range(3):
            calls = await hold(sandbox, 2)
            left = time.monotonic()
            for call in calls:
                call.cancel()
            await until(lambda: not footprint(sandbox.pid, tmp_path).beyond(before), 1)
            assert time.monotonic() - left < 1


async def test_a_call_that_is_cancelled_while_its_cell_is_made_leaves_nothing():
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="4") as service,
        client(service.address, service.process.pid) as sandbox,
    ):
        await sandbox.python("")
        before = footprint(sandbox.pid)
        for milliseconds in range(1, 40, 2):
            call = sandbox.stream("while True: pass")
            await asyncio.wait({asyncio.ensure_future(call.read())}, timeout=milliseconds / 1000)
            call.cancel()
        await until(lambda: not footprint(sandbox.pid).beyond(before), 2)
        assert (await sandbox.python("print('after')")).out == b"after\n"


async def test_two_hundred_jobs_leave_no_descriptor_task_or_process_in_the_service():
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="4", SANDBOX_CELLS_AHEAD="2") as service,
        client(service.address, service.process.pid) as sandbox,
    ):
        await asyncio.gather(*(sandbox.python("print(1)") for _ in range(8)))
        before, open_before = footprint(sandbox.pid), descriptors(sandbox.pid)
        for _ in range(20):
            await asyncio.gather(*(sandbox.python("import os\nif not os.fork(): os._exit(0)") for _ in range(10)))
        await until(lambda: not footprint(sandbox.pid).beyond(before), 2)
        assert descriptors(sandbox.pid) <= open_before + 2 * DESCRIPTORS_OF_A_WAITING_CELL


def descriptors(pid: int) -> int:
    """How many a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
