"""Judge and candidate start together: the code still waits for the judge's word, and a cell in vain leaves nothing."""

import asyncio
from pathlib import Path

import pytest
from codemend.sandbox.v1.verdicts_pb2 import TEST_ISOLATION_SEPARATE, TEST_ISOLATION_SHARED
from support.footprint import alive, footprint, processes, waiting
from support.jobs import client, outcome
from support.sandbox import sandbox_process
from support.waiting import until

READY_SECONDS = 20
WAITING = 2 * 2 * 2
"""Two cells of two processes in each of the two templates that have had jobs when a service starts."""
CELL = 2
"""Processes of one cell."""
CODE = "def f(x): return x(1) if callable(x) else x + 1\n"
PLAIN = "from solution import f\n\ndef test_f():\n    assert f(1) == 2\n"
UNPLAIN = "from solution import f\n\ndef test_f():\n    assert f(lambda n: n + 1) == 2\n"
LONG = "\n".join(f"def helper_{number}(): return [{number}, {number} + 1]" for number in range(8000)) + "\n"
"""Takes the judge most of a second to read."""
MARK = "imported-early"
MARKS_ITSELF = f"import ctypes, time\nctypes.CDLL(None).prctl(15, {MARK.encode()!r}, 0, 0, 0)\ntime.sleep(60)\n"
EARLY = (
    "configparser",
    "sqlite3",
    "tomllib",
    "html",
    "xml",
    "glob",
    "hashlib",
    "platform",
    "site",
    "tempfile",
    "queue",
)
"""Modules that measuring or serving could import before the code is asked for."""


@pytest.fixture
async def sandbox():
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="2", SANDBOX_CELLS_AHEAD="2") as service,
        client(service.address, service.process.pid) as made,
    ):
        yield made


def isolation(reply) -> int:
    return reply.report.integrity.isolation


async def cells_taken(sandbox, tests: str, number: int) -> int:
    """How many of the waiting cells a run used; the tests are told apart from all others by a number."""
    await until(lambda: len(waiting(sandbox.pid)) == WAITING, READY_SECONDS)
    there = waiting(sandbox.pid)
    reply = await sandbox.tests(f"# {number}\n{tests}", CODE)
    assert outcome(reply) == "PASSED", reply
    return (len(there) - len(alive(there))) // CELL


async def test_a_cell_starts_in_vain_once_for_the_same_tests_and_every_time_where_the_code_runs_apart(sandbox):
    assert await cells_taken(sandbox, UNPLAIN, 1) == 2
    assert await cells_taken(sandbox, UNPLAIN, 1) == 1
    assert await cells_taken(sandbox, UNPLAIN, 2) == 2
    for _ in range(2):
        assert await cells_taken(sandbox, PLAIN, 1) == 2


@pytest.mark.parametrize("ahead", ["0", "2"])
async def test_a_run_beside_its_tests_leaves_nothing_of_the_cell_that_was_not_needed(tmp_path, ahead):
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="2", SANDBOX_CELLS_AHEAD=ahead, TMPDIR=str(tmp_path)) as service,
        client(service.address, service.process.pid) as sandbox,
    ):
        await sandbox.tests(PLAIN, CODE)
        before = footprint(sandbox.pid, tmp_path)
        for number in range(10):
            reply = await sandbox.tests(f"# {number}\n{UNPLAIN}", CODE)
            assert (outcome(reply), isolation(reply)) == ("PASSED", TEST_ISOLATION_SHARED), reply
        await until(lambda: not footprint(sandbox.pid, tmp_path).beyond(before), 2)


@pytest.mark.parametrize("coverage", [False, True])
async def test_nothing_of_the_code_runs_before_the_judge_has_settled_that_it_runs(sandbox, coverage):
    planted = {f"{name}.py": MARKS_ITSELF for name in (*EARLY, "solution", "conftest", "sitecustomize")}
    call = asyncio.ensure_future(
        sandbox.tests(
            LONG + UNPLAIN,
            planted,
            isolation=TEST_ISOLATION_SEPARATE,
            env={"PYTHONPATH": "."},
            coverage=coverage,
        )
    )
    names: set[str] = set()

    def is_done() -> bool:
        names.update(_name(pid) for pid in processes(sandbox.pid))
        return call.done()

    await until(is_done, 30)
    reply = call.result()
    assert outcome(reply) == "ERROR", reply
    assert "passes a function to solution.f" in reply.report.reason
    assert "codemend-cell" in names, "the look came too late to see anything"
    assert MARK not in names


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


async def test_a_run_that_is_cancelled_while_both_cells_start_leaves_nothing(sandbox):
    await sandbox.tests(PLAIN, CODE)
    before = footprint(sandbox.pid)
    for number, milliseconds in enumerate(range(1, 60, 3)):
        tests = UNPLAIN if number % 2 else PLAIN
        call = asyncio.ensure_future(sandbox.tests(f"# {number}\n{tests}", CODE))
        await asyncio.wait({call}, timeout=milliseconds / 1000)
        call.cancel()
    await until(lambda: not footprint(sandbox.pid).beyond(before), 2)
    await until(lambda: len(waiting(sandbox.pid)) == WAITING, READY_SECONDS)
    assert outcome(await sandbox.tests(PLAIN, CODE)) == "PASSED"
