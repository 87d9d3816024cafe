"""The known faults of such systems, section S: the same program has the same status on every kind of cell.

What a killed service or template leaves behind (S21, S29) is in `test_killed`.
"""

import asyncio
import json
import secrets

import grpc
import pytest
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import verdicts_pb2
from support import looking
from support.jobs import limits, outcome
from support.looking import seen
from support.waiting import until

from security.faults import FAULTS, MIB
from security.places import Tenant, started, waiting
from security.surrogates import SURROGATES, sent

SERVICE_GROWTH_BYTES = 24 * MIB
CHEAT_KINDS = 10
WALL_SECONDS = 1.5
LATE_SECONDS = 0.5
QUEUE_SECONDS = 10


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.row} {fault.name}")
async def test_it_ends_the_same_on_every_kind(running, fault):
    ran = await running.sandbox.python(
        fault.code, limits=limits(**fault.limits), stdin=fault.stdin, collect=fault.collect
    )
    assert ran.status == fault.status, ran.told()
    assert fault.check(ran), ran.told()
    assert ran.seconds <= fault.within, ran.told()


async def test_s3_no_zombie_is_left_after_many_timeouts(running):
    code = "import os, time\nfor _ in range(5):\n    if not os.fork(): os._exit(0)\ntime.sleep(60)"
    for _ in range(6):
        runs = (running.sandbox.python(code, limits=limits(wall_time=0.3)) for _ in range(3))
        assert {ran.status for ran in await asyncio.gather(*runs)} == {"TIMED_OUT"}
    assert await running.leftovers() == {}


async def test_s5_a_flood_leaves_the_service_s_memory_flat(running):
    flood = "import os\nfor _ in range(64): os.write(1, b'x' * 1048576)"
    await running.sandbox.python(flood, limits=limits(output_bytes=200 * MIB))
    before = service_memory(running)
    await running.sandbox.python(flood, limits=limits(output_bytes=200 * MIB))
    assert service_memory(running) - before < SERVICE_GROWTH_BYTES


def service_memory(running) -> int:
    """Resident bytes of the service's process."""
    line = running.shell(f"grep VmRSS /proc/{running.sandbox.pid}/status")
    return int(line.split()[1]) * 1024


async def test_s18_nothing_of_one_job_is_there_for_the_next(running):
    await seen(running.sandbox, looking.KEEP)
    found = await seen(running.sandbox, looking.FIND_KEPT)
    assert found.pop("/work") == ["main.py"]
    assert not any(found.values()), found


async def test_s19_a_module_rewritten_within_a_second_at_the_same_size_is_the_new_one(running):
    for number in (1, 2, 3):
        ran = await running.sandbox.python("import m; print(m.x)", more={"m.py": f"x = {number}\n"})
        assert ran.out == f"{number}\n".encode()


async def test_s8_a_lone_surrogate_where_text_belongs_is_refused_at_once_and_nothing_is_started(running):
    before = started(running)
    codes = {place: await sent(running, method, request) for place, (method, request) in SURROGATES.items()}
    assert codes == dict.fromkeys(SURROGATES, grpc.StatusCode.INVALID_ARGUMENT)
    assert started(running) == before


async def test_s8_a_lone_surrogate_in_the_code_is_the_program_s_own_fault(running):
    ran = await running.sandbox.python(b"print('\xed\xa0\x80')")
    assert ran.status == "FAILED", ran.told()
    assert "SyntaxError" in ran.err


async def test_s20_waiting_is_not_charged_to_the_program(running):
    tenant = Tenant(running)
    async with tenant.with_all_places():
        waits = tenant.execute("print('x')", wall_time=WALL_SECONDS)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waits.code(), WALL_SECONDS)
    result = (await waits).result
    assert result.status == pb.EXECUTION_STATUS_SUCCEEDED, result
    assert (
        result.wall_time.ToTimedelta().total_seconds() < WALL_SECONDS <= result.queue_time.ToTimedelta().total_seconds()
    )


async def test_s20_a_job_whose_deadline_passed_or_whose_caller_left_in_the_queue_never_starts(running):
    tenant = Tenant(running)
    async with tenant.with_all_places():
        before = started(running)
        await tenant.waits_in_vain(LATE_SECONDS)
        leaves = tenant.execute("pass")
        await until(lambda: waiting(running) == 1, QUEUE_SECONDS)
        leaves.cancel()
        await until(lambda: waiting(running) == 0, QUEUE_SECONDS)
    await tenant.execute("pass")
    assert started(running) == before + 1


async def test_s21_a_call_that_its_caller_gave_up_leaves_no_job(running):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.sandbox.python("import os, time\nos.fork()\ntime.sleep(100)", seconds=1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await running.leftovers() == {}


async def test_s22_calls_under_load_all_come_back(running):
    runs = [running.sandbox.python(f"print({number})") for number in range(24)]
    replies = await asyncio.wait_for(asyncio.gather(*runs), 60)
    assert [int(ran.out) for ran in replies] == list(range(24))


@pytest.mark.parametrize("code", [0, 1, 3, 255])
async def test_s23_an_exit_code_is_told_in_a_stream_as_in_a_reply(running, code):
    call = running.sandbox.stream(f"print('x', flush=True)\nimport sys; sys.exit({code})")
    messages = [message async for message in call]
    assert messages[-1].result.HasField("exit_code")
    assert messages[-1].result.exit_code == code
    assert (await running.sandbox.python(f"import sys; sys.exit({code})")).result.exit_code == code


async def test_s25_cheats_are_no_passes(running, data_folder):
    cheats = [json.loads(line) for line in (data_folder / "cheats.jsonl").read_text().splitlines()]
    assert len({cheat["kind"] for cheat in cheats}) >= CHEAT_KINDS
    verdicts = await asyncio.gather(*(_verdict_of(running, cheat) for cheat in cheats))
    assert not [cheat["id"] for cheat, verdict in zip(cheats, verdicts, strict=True) if verdict == "PASSED"]


async def _verdict_of(running, cheat) -> str:
    separate = verdicts_pb2.TEST_ISOLATION_SEPARATE
    given = {"limits": limits(wall_time=10), "isolation": separate}
    return outcome(await running.sandbox.tests(cheat["tests"], cheat["files"], **given))


@pytest.mark.parametrize(
    "planted",
    [
        {"test_solution.py": "def test_a(): pass\n"},
        {"conftest.py": "import os; os._exit(0)\n"},
        {"pytest.ini": "[pytest]\naddopts = --collect-only\n"},
        {"sitecustomize.py": "import os; os._exit(0)\n"},
    ],
    ids=lambda planted: next(iter(planted)),
)
async def test_s26_what_the_candidate_lays_beside_the_tests_changes_no_verdict(running, planted):
    tests = "from solution import f\ndef test_a():\n    assert f(1) == 2\n"
    wrong = await running.sandbox.tests(tests, {"solution.py": "def f(x):\n    return x\n", **planted})
    assert outcome(wrong) == "FAILED", wrong.report.reason
    right = await running.sandbox.tests(tests, {"solution.py": "def f(x):\n    return x + 1\n", **planted})
    assert outcome(right) == "PASSED", right.report.reason


async def test_s27_arguments_reach_the_program_as_they_are(running):
    words = ["`id`", "$(id)", "a b", "&&", ";", "'\"", "\\", "*"]
    ran = await running.sandbox.command("printf", "%s\n", *words)
    assert ran.out.decode().splitlines() == words


async def test_s28_two_jobs_at_once_never_share_a_cell(running):
    code = (
        "import os, time\nname = '{0}'\nopen(name, 'w').close(); open('/tmp/' + name, 'w').close()\ntime.sleep(0.2)\n"
    )
    code += "print(sorted(os.listdir('.')), os.listdir('/tmp'))"
    names = [secrets.token_hex(4) for _ in range(8)]
    replies = await asyncio.gather(*(running.sandbox.python(code.format(name)) for name in names))
    for name, ran in zip(names, replies, strict=True):
        assert ran.out.decode() == f"{sorted(['main.py', name])} ['{name}']\n"


async def test_s30_nothing_that_forks_has_grpc_in_it(running):
    children = running.shell(f"grep -lE '^PPid:\\s+{running.sandbox.pid}$' /proc/[0-9]*/status || true").split()
    for path in children:
        maps = path.replace("status", "maps")
        assert "cygrpc" not in running.shell(f"cat {maps} 2>/dev/null || true")
