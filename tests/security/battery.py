"""Runs attacks against one running service and says of each whether it was contained, and how."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import verdicts_pb2
from support.jobs import files, limits
from support.kinds import Running

from security.attacks import ALL, Attack, Seen
from security.attacks.base import PRELUDE, Finding

OUTER_SECONDS = 30.0
"""Bound of every call, whatever its job does."""
CALLERS = 2
_TENANT = (("x-codemend-tenant", "battery"),)
"""The same for all attacks: where cells are reused for one tenant, they are."""
_NEIGHBOUR = f"""{PRELUDE}
held = C['held'][::-1]
for place in '/work', '/tmp', '/dev/shm', '/home/job': open(f'{{place}}/{{C["name"]}}', 'w').write(held)
abstract = socket.socket(socket.AF_UNIX)
try: abstract.bind('\\0' + C['name']); abstract.listen()
except OSError: pass  # gVisor of 2022 has no abstract names in a new network namespace
tcp = socket.create_server(('127.0.0.1', 0))
print(tcp.getsockname()[1], flush=True)
while True:
    time.sleep(0.05); print('.', flush=True)
"""

LAST_OF_GROUP = {attack.group: attack.name for attack in ALL}


@dataclass(frozen=True)
class Verdict:
    """What became of one attack on one kind of cell."""

    attack: Attack
    kind: str
    finding: Finding
    seconds: float


async def run(attack: Attack, running: Running, session: str = "") -> Verdict:
    """Runs one attack, with what it needs around it, and looks from outside at what it reached.

    Args:
        session: the one that the attack, and what it runs before, are calls of; empty: none.
    """
    began = time.monotonic()
    try:
        async with asyncio.timeout(OUTER_SECONDS * 2):
            finding = await _run(attack, running, session)
    except grpc.aio.AioRpcError as error:
        finding = Finding(False, f"the call failed: {error.code().name} {error.details()}")
    except TimeoutError as error:
        finding = Finding(False, str(error) or f"no answer in {OUTER_SECONDS * 2:g} s")
    return Verdict(attack, running.kind, finding, time.monotonic() - began)


async def run_all(attacks: Sequence[Attack], running: Running) -> list[Verdict]:
    """Runs attacks, some at a time, in order."""
    free = asyncio.Semaphore(CALLERS)

    async def one(attack: Attack) -> Verdict:
        async with free:
            return await run(attack, running)

    return list(await asyncio.gather(*map(one, attacks)))


async def honest_job_passes(running: Running) -> bool:
    """Whether a program and a test run of somebody who means no harm still get what they are owed."""
    ran = await running.sandbox.python("import os; print(sum(range(10)), os.listdir('.'), os.listdir('/tmp'))")
    tests = "from solution import f\ndef test_a():\n    assert f(1) == 2\n"
    reply = await running.sandbox.tests(tests, "def f(x):\n    return x + 1\n")
    return ran.out == b"45 ['main.py'] []\n" and reply.report.outcome == pb.REPORT_OUTCOME_PASSED


async def _run(attack: Attack, running: Running, session: str) -> Finding:
    told = {**running.canary.told, "secret": running.canary.secret[::-1], "nowhere": secrets.token_hex(16)}
    hits = len(running.canary.hits())
    if attack.first:
        program = pb.Program(files=files({"main.py": attack.first}), entry="main.py", limits=limits(wall_time=10))
        request = pb.ExecuteRequest(program=program, session=session)
        await running.sandbox.stub.Execute(request, timeout=OUTER_SECONDS, metadata=_TENANT)
    if attack.neighbour:
        async with _neighbour(running, told):
            finding = attack.judge(await _attacked(attack, running, told, session))
    else:
        finding = attack.judge(await _attacked(attack, running, told, session))
    reached = running.canary.hits()[hits:]
    return Finding(False, f"reached services of the host: {reached}") if reached else finding


async def _attacked(attack: Attack, running: Running, told: dict[str, object], session: str) -> Seen:
    began = time.monotonic()
    bounds = limits(**attack.limits)
    if attack.tests:
        request = pb.RunTestsRequest(
            files=files({"solution.py": attack.code, **attack.more}), tests=files(attack.tests), limits=bounds,
            isolation=verdicts_pb2.TEST_ISOLATION_SHARED, session=session,
        )  # fmt: skip
        answer = await running.sandbox.stub.RunTests(request, timeout=OUTER_SECONDS, metadata=_TENANT)
        return Seen(answer.execution, time.monotonic() - began, answer.report, running.kind)
    program = pb.Program(
        files=files({"main.py": attack.code, **attack.more}), entry="main.py", limits=bounds, collect=attack.collect,
        stdin=attack.stdin, env={"CANARY": json.dumps(told)},
    )  # fmt: skip
    reply = await running.sandbox.stub.Execute(
        pb.ExecuteRequest(program=program, session=session), timeout=OUTER_SECONDS, metadata=_TENANT
    )
    return Seen(reply.result, time.monotonic() - began, kind=running.kind)


@asynccontextmanager
async def _neighbour(running: Running, told: dict[str, object]) -> AsyncIterator[None]:
    """Another job, which holds secrets while the attack runs and must not notice it."""
    name, held = f"mark-{secrets.token_hex(8)}", secrets.token_hex(16)
    call = running.sandbox.stream(
        _NEIGHBOUR, env={"CANARY": json.dumps({"name": name, "held": held[::-1]}), "HELD": held}
    )
    first = await call.read()
    if not first.stdout_chunk:
        raise TimeoutError(f"the neighbour did not start: {first}")
    port = first.stdout_chunk.split(b"\n")[0]
    told |= {"neighbour": name, "held": held[::-1], "neighbour_port": int(port)}
    try:
        yield
        for _ in range(3):
            answer = await call.read()
            if answer is grpc.aio.EOF or not answer.stdout_chunk:
                raise TimeoutError("the neighbour is dead")
    finally:
        call.cancel()
