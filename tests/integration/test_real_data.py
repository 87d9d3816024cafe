"""Task sets that others wrote: every reference passes its tests in a cell, and no defective version does."""

import asyncio
import json
from pathlib import Path

import pytest
from codemend.sandbox.v1 import sandbox_pb2 as pb
from support.jobs import client, limits, outcome
from support.sandbox import sandbox_process

EVERY = {"quixbugs": 1, "humaneval": 10, "mbpp_sanitized": 10, "exercism": 10, "bigcodebench_stdlib": 10}
"""Every how many rows of a set one is taken."""
REFERENCE_SECONDS, DEFECTIVE_SECONDS = 45, 4
"""Limits of wall and processor time; some defective versions never end."""
AT_ONCE = 4


@pytest.fixture(scope="module")
async def sandbox():
    async with (
        sandbox_process() as service,
        client(service.address, service.process.pid) as made,
    ):
        yield made


def rows(folder: Path, name: str) -> list[dict]:
    """The sample of one set."""
    lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[EVERY[name] // 2 :: EVERY[name]]]


async def told(
    sandbox, tasks: list[dict], version: str, seconds: float = DEFECTIVE_SECONDS
) -> dict[str, tuple[str, pb.RunTestsResponse]]:
    """Outcome and reply of each task with its reference or its buggy version."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(task: dict) -> tuple[str, tuple[str, pb.RunTestsResponse]]:
        async with places:
            files = {**task.get("files", {}), **task[version]}
            reply = await sandbox.tests(
                task["tests"], files, limits=limits(wall_time=seconds, cpu_time=seconds), seconds=100
            )
        return task["id"], (outcome(reply), reply)

    return dict(await asyncio.gather(*(one(task) for task in tasks)))


@pytest.mark.parametrize("name", EVERY)
async def test_every_reference_passes_its_tests(sandbox, data_folder, name):
    tasks = rows(data_folder, name)
    assert len(tasks) >= 10
    found = await told(sandbox, tasks, "reference", REFERENCE_SECONDS)
    assert {task: reply.report.reason for task, (verdict, reply) in found.items() if verdict != "PASSED"} == {}


async def test_no_defective_version_passes(sandbox, data_folder):
    tasks = [task for task in rows(data_folder, "quixbugs") if task.get("buggy")]
    assert len(tasks) >= 20
    found = await told(sandbox, tasks, "buggy")
    assert [task for task, (verdict, _reply) in found.items() if verdict == "PASSED"] == []
    assert all(reply.report.reason for _verdict, reply in found.values())


async def test_a_stub_passes_nothing(sandbox, data_folder):
    tasks = [task for task in rows(data_folder, "exercism") if task.get("files")]
    assert tasks
    found = await told(sandbox, [{**task, "stub": {}} for task in tasks], "stub")
    assert [task for task, (verdict, _reply) in found.items() if verdict == "PASSED"] == []
