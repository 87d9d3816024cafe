"""Cells that are made before their jobs come: each serves one job, within its limits, and a lost one costs nothing."""

import asyncio
import os
import signal

import pytest
from support.footprint import host_uid, is_waiting, waiting
from support.jobs import client, limits, outcome
from support.sandbox import sandbox_process
from support.waiting import until

MIB = 1024 * 1024
UP = "print('up', flush=True)\nimport time\ntime.sleep(60)"
READY_SECONDS = 20
PROCESSES = 2 * 2 * 2
"""Two templates have had jobs when a service starts; two cells wait in each, of two processes."""


@pytest.fixture
async def sandbox():
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="2", SANDBOX_CELLS_AHEAD="2") as service,
        client(service.address, service.process.pid) as made,
    ):
        await until(lambda: len(waiting(made.pid)) == PROCESSES, READY_SECONDS)
        yield made


async def test_a_job_runs_in_a_cell_that_was_waiting_and_no_other_job_does(sandbox):
    used: set[int] = set()
    for _ in range(3):
        await until(lambda: len(waiting(sandbox.pid)) == PROCESSES, READY_SECONDS)
        there = waiting(sandbox.pid)
        call = sandbox.stream(UP)
        assert (await call.read()).stdout_chunk == b"up\n"
        taken = {pid for pid in there if host_uid(pid) >= 0 and not is_waiting(pid)}
        assert len(taken) == 2, "process 1 of the cell and the program"
        assert not taken & used
        used |= taken
        call.cancel()


async def test_a_cell_made_ahead_holds_nothing_when_its_job_comes(sandbox):
    code = """
import os, sys
print(os.listdir('/work'), os.listdir('/tmp'), os.listdir('/dev/shm'), os.listdir('/home/job'), os.listdir('/tests'))
print(sorted(os.environ), sorted(int(n) for n in os.listdir('/proc/self/fd'))[:3], open('/proc/self/comm').read())
"""
    ahead, told = [], []
    async with (
        sandbox_process(SANDBOX_CELLS_AHEAD="0") as service,
        client(service.address, service.process.pid) as without,
    ):
        assert waiting(without.pid) == set()
        for where, into in ((sandbox, ahead), (without, told)):
            into.append((await where.python(code)).out)
        assert waiting(without.pid) == set()
    assert ahead == told


@pytest.mark.parametrize(
    ("given", "code", "status"),
    [
        ({"memory_bytes": 64 * MIB}, "x = b'x' * (200 * 1048576)", "MEMORY_LIMIT"),
        ({"memory_bytes": 1024 * MIB}, "x = b'x' * (700 * 1048576); print(len(x))", "SUCCEEDED"),
        ({"memory_bytes": 16 * MIB}, "x = b'x' * (64 * 1048576)", "MEMORY_LIMIT"),
        ({"disk_bytes": 2 * MIB}, "open('x', 'wb').write(b'x' * (3 * 1048576))", "DISK_LIMIT"),
        ({"disk_bytes": 256 * MIB, "file_bytes": 256 * MIB}, "open('x', 'wb').write(b'x' * 209715200)", "SUCCEEDED"),
        ({"open_files": 20}, "print([open('/dev/null') for _ in range(30)])", "FAILED"),
        ({"wall_time": 0.3}, "import time; time.sleep(60)", "TIMED_OUT"),
    ],
)
async def test_limits_are_those_of_the_job(sandbox, given, code, status):
    ran = await sandbox.python(code, limits=limits(**given))
    assert ran.status == status, ran.told()


async def test_a_cell_that_is_lost_while_it_waits_costs_no_job(sandbox):
    for pid in waiting(sandbox.pid):
        os.kill(pid, signal.SIGKILL)
    answers = await asyncio.gather(*(sandbox.python(f"print({number})") for number in range(6)))
    assert [ran.out for ran in answers] == [b"%d\n" % number for number in range(6)]
    await until(lambda: waiting(sandbox.pid), READY_SECONDS)


async def test_a_program_that_is_no_python_and_tests_run_in_such_cells_too(sandbox):
    ran = await sandbox.command("sh", "-c", "echo $$; cat", stdin=b"in")
    assert ran.out.endswith(b"in"), ran.told()
    tests = "from solution import f\n\ndef test_f():\n    assert f(1) == 2\n"
    reply = await sandbox.tests(tests, "def f(x): return x + 1\n")
    assert outcome(reply) == "PASSED"
    assert reply.report.counts.passed == 1
