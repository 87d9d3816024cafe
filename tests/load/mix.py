"""Jobs of the soak: what each does, what it must end in, and how often it comes."""

# ruff: noqa: E501 - some lines are whole programs

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sessions_pb2 as sessions_pb
from codemend.sandbox.v1 import verdicts_pb2 as verdicts_pb
from support.jobs import Sandbox, files, limits, outcome

MIB = 1024 * 1024
CALL_SECONDS = 120.0

SOLUTION = "def double(x):\n    return 2 * x\n"
WRONG = "def double(x):\n    return 3 * x\n"
CHEAT = "import os\nos._exit(0)\n"
TESTS = "from solution import double\n\n\ndef test_small():\n    assert double(2) == 4\n\n\ndef test_zero():\n    assert double(0) == 0\n"
FORK_BOMB = "import os\nwhile True: os.fork()"
FLOOD = "while True: print('x' * 10_000)"
OUT_OF_MEMORY = "x = []\nwhile True: x.append(b'x' * 1_048_576)"
DISK = "for n in range(1000):\n    with open(f'file-{n}', 'wb') as f: f.write(b'x' * 1_048_576)"
DAEMONS = (
    "import subprocess\nfor _ in range(3): subprocess.Popen(['sleep', '60'], start_new_session=True)\nprint('left')"
)
VIOLATION = "import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\nprint('allowed')"

Job = Callable[[Sandbox, random.Random], Awaitable[str]]
"""Does one job and says how it ended."""


@dataclass(frozen=True)
class Kind:
    """One kind of job.

    Attributes:
        weight: how many of a thousand jobs are of this kind.
        right: the only ending that is right.
    """

    name: str
    weight: int
    right: str
    do: Job


def _program(code: str, *, told: bytes | None = None, **given: float) -> Job:
    async def do(sandbox: Sandbox, _chance: random.Random) -> str:
        ran = await sandbox.python(code, CALL_SECONDS, limits=limits(**given))
        return ran.status if told is None or ran.result.stdout.head == told else f"{ran.status} with other output"

    return do


async def _own_output(sandbox: Sandbox, chance: random.Random) -> str:
    """A number that no other job prints: an answer to another call would be seen."""
    number = chance.getrandbits(64)
    ran = await sandbox.python(f"print({number} + 1)", CALL_SECONDS)
    return ran.status if ran.result.stdout.head == b"%d\n" % (number + 1) else f"{ran.status} with other output"


def _tests(solution: str, isolation: int) -> Job:
    async def do(sandbox: Sandbox, _chance: random.Random) -> str:
        reply = await sandbox.tests(TESTS, solution, CALL_SECONDS, isolation=isolation)
        return outcome(reply)

    return do


async def _cheat(sandbox: Sandbox, chance: random.Random) -> str:
    isolation = chance.choice((verdicts_pb.TEST_ISOLATION_SHARED, verdicts_pb.TEST_ISOLATION_SEPARATE))
    reply = await sandbox.tests(TESTS, CHEAT, CALL_SECONDS, isolation=isolation)
    return "PASSED" if outcome(reply) == "PASSED" else "not passed"


async def _session(sandbox: Sandbox, chance: random.Random) -> str:
    """What one call leaves the next one finds, though a call between them was killed."""
    made = await sandbox.stub.CreateSession(sessions_pb.CreateSessionRequest(), timeout=CALL_SECONDS)
    session, number = made.session.id, chance.getrandbits(64)
    codes = (f"open('kept', 'w').write('{number}')", "while True: pass", "print(open('kept').read())")
    seen = b""
    for code in codes:
        program = pb.Program(files=files({"main.py": code}), entry="main.py", limits=limits(cpu_time=0.2))
        reply = await sandbox.stub.Execute(pb.ExecuteRequest(program=program, session=session), timeout=CALL_SECONDS)
        seen = reply.result.stdout.head
    await sandbox.stub.DeleteSession(sessions_pb.DeleteSessionRequest(session=session), timeout=CALL_SECONDS)
    return "kept" if seen == b"%d\n" % number else f"lost: {seen[:80]!r}"


async def _stream(sandbox: Sandbox, _chance: random.Random) -> str:
    said, status = b"", "no result"
    async for message in sandbox.stream("for n in range(5): print(n, flush=True)", CALL_SECONDS):
        said += message.stdout_chunk
        if message.HasField("result"):
            status = pb.ExecutionStatus.Name(message.result.status).removeprefix("EXECUTION_STATUS_")
    return status if said == b"0\n1\n2\n3\n4\n" else f"{status} with other output"


async def _cancelled(sandbox: Sandbox, chance: random.Random) -> str:
    """A caller that leaves, at any point of its job's life."""
    job = asyncio.ensure_future(sandbox.python("import time\nwhile True: time.sleep(1)", CALL_SECONDS))
    await asyncio.wait({job}, timeout=chance.uniform(0, 0.3))
    job.cancel()
    try:
        await job
    except asyncio.CancelledError:
        return "left"
    return "answered"


async def _refused(sandbox: Sandbox, _chance: random.Random) -> str:
    try:
        await sandbox.run({"../main.py": "print(1)"}, "../main.py", CALL_SECONDS)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "accepted"


def kinds(in_force: set[str]) -> list[Kind]:
    """All kinds that make sense where these protections are in force."""
    shared, separate = verdicts_pb.TEST_ISOLATION_SHARED, verdicts_pb.TEST_ISOLATION_SEPARATE
    needing = {
        "pids_cgroup": [Kind("fork bomb", 15, "PROCESS_LIMIT", _program(FORK_BOMB, processes=16, wall_time=20))],
        "seccomp": [Kind("forbidden call", 15, "VIOLATION", _program(VIOLATION))],
    }
    return [
        Kind("own output", 380, "SUCCEEDED", _own_output),
        Kind("leaves daemons", 20, "SUCCEEDED", _program(DAEMONS, told=b"left\n")),
        Kind("exit 3", 70, "FAILED", _program("import sys; sys.exit(3)")),
        Kind("exception", 50, "FAILED", _program("def f(n): return n / 0\nf(1)")),
        Kind("kills itself", 20, "SIGNALED", _program("import os; os.kill(os.getpid(), 11)")),
        Kind("sleeps for ever", 20, "TIMED_OUT", _program("import time; time.sleep(60)", wall_time=0.3)),
        Kind("spins for ever", 15, "CPU_LIMIT", _program("while True: pass", cpu_time=0.2, wall_time=20)),
        Kind("out of memory", 20, "MEMORY_LIMIT", _program(OUT_OF_MEMORY, memory_bytes=64 * MIB)),
        Kind("output flood", 20, "OUTPUT_LIMIT", _program(FLOOD, output_bytes=MIB)),
        Kind("fills the disk", 15, "DISK_LIMIT", _program(DISK, disk_bytes=4 * MIB)),
        Kind("tests pass", 130, "PASSED", _tests(SOLUTION, shared)),
        Kind("tests fail", 50, "FAILED", _tests(WRONG, shared)),
        Kind("tests pass, SEPARATE", 60, "PASSED", _tests(SOLUTION, separate)),
        Kind("tests fail, SEPARATE", 20, "FAILED", _tests(WRONG, separate)),
        Kind("tests that are cheated", 20, "not passed", _cheat),
        Kind("session of three calls", 20, "kept", _session),
        Kind("stream", 30, "SUCCEEDED", _stream),
        Kind("caller that leaves", 20, "left", _cancelled),
        Kind("bad request", 10, "INVALID_ARGUMENT", _refused),
        *(kind for name, found in needing.items() if name in in_force for kind in found),
    ]
