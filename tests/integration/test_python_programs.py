"""A python program in a cell behaves as under `python main.py`, though its interpreter was started before it came."""

import asyncio
import re
import sys
import tempfile
from pathlib import Path

import pytest
from support.jobs import client
from support.programs import PROGRAMS, Plain
from support.sandbox import sandbox_process

BARE = getattr(sys, "_base_executable", sys.executable)
BARE_SECONDS = 30


@pytest.fixture(scope="module")
async def sandbox():
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="2") as service,
        client(service.address, service.process.pid) as made,
    ):
        yield made


async def bare(program: Plain, environment: dict[str, str]) -> tuple[int, bytes, bytes]:
    """Exit code (negative: a signal), stdout and stderr of a plain run here; its folder is told as /work."""
    with tempfile.TemporaryDirectory() as name:
        folder = lay(program, name)
        process = await asyncio.create_subprocess_exec(
            *(BARE, str(folder / program.entry), *program.args),
            stdin=-1, stdout=-1, stderr=-1, cwd=folder, env={**environment, "HOME": name}, umask=0o022,
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(program.stdin), BARE_SECONDS)
    return process.returncode or 0, *(stream.replace(bytes(folder), b"/work") for stream in (out, err))


def lay(program: Plain, name: str) -> Path:
    """Writes a program's files as a cell does; returns their folder."""
    folder = Path(name).resolve()
    for path, content in {program.entry: program.code, **program.more}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content.encode() if isinstance(content, str) else content)
        (folder / path).chmod(0o644)
    return folder


def comparable(stream: bytes) -> str:
    """Text without what differs between any two runs: addresses and thread numbers."""
    text = re.sub(r"0x[0-9a-f]+", "0x…", stream.decode("utf-8", "backslashreplace"))
    text = re.sub(r" in [0-9.]+s$", " in …s", text, flags=re.MULTILINE)
    return re.sub(r"(MainThread, started) [0-9]+", r"\1 …", text)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
async def test_a_program_does_the_same_as_under_bare_python(sandbox, program: Plain):
    given = {"GIVEN": "x", "GIVEN_TOO": ""}
    code, out, err = await bare(
        program, {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", **given}
    )
    ran = await sandbox.run(
        {program.entry: program.code, **program.more}, program.entry, args=program.args, stdin=program.stdin, env=given
    )
    ended = -ran.result.signal if ran.result.HasField("signal") else ran.result.exit_code
    assert comparable(ran.result.stdout.head) == comparable(out)
    assert comparable(ran.result.stderr.head) == comparable(err)
    assert ended == code, ran.told()


async def test_random_numbers_and_hashes_are_not_the_same_in_two_jobs(sandbox):
    code = """
import os, random, secrets, tempfile, uuid
print(random.random(), secrets.token_hex(8), uuid.uuid4(), uuid.uuid1())
print(tempfile.mktemp(), os.urandom(4).hex())
"""
    first, second = [(await sandbox.python(code)).out.decode().split() for _ in range(2)]
    assert len(first) == 6
    assert not set(first) & set(second)


@pytest.mark.parametrize("code", [b"x = 1\x00\n", b"x = '\xff'\n"])
async def test_bytes_that_are_no_source_are_a_syntax_error_of_the_file(sandbox, code):
    ran = await sandbox.python(code)
    assert ran.result.exit_code == 1
    assert "SyntaxError" in ran.err
    assert "/work/main.py" in ran.err


async def test_only_the_environment_s_packages_are_importable(sandbox):
    code = """
import importlib.util
names = 'pytest', 'pip', 'grpc', 'google', 'orchestrator', 'sandbox_service'
print(*(name for name in names if importlib.util.find_spec(name)))
"""
    assert (await sandbox.python(code)).out == b"pytest pip\n"
    spawned = await sandbox.command("python", "-c", code)
    assert spawned.out == b"pytest pip\n", spawned.told()


async def test_what_was_printed_before_a_kill_is_not_lost(sandbox):
    ran = await sandbox.python(
        "import os\nprint('one')\nprint('two', end='')\nprint('\\nthree')\nos.kill(os.getpid(), 9)"
    )
    assert ran.out == b"one\ntwo\nthree\n"


async def test_numpy_style_libraries_see_one_core_s_worth_of_threads(sandbox):
    ran = await sandbox.python("import os; print(os.environ['OMP_NUM_THREADS'], os.environ['OPENBLAS_NUM_THREADS'])")
    assert ran.out == b"1 1\n"


async def test_a_file_that_has_the_name_of_a_loaded_module_is_imported(sandbox):
    more = {"random.py": "def choice(things): return 'ours'\n"}
    ran = await sandbox.python("import random\nprint(random.choice([1]))\n", more=more)
    assert ran.out == b"ours\n", ran.told()


async def test_variables_of_the_caller_do_what_they_do_for_python(sandbox):
    code = "import time, helper, sys\nprint(time.tzname[0], helper.x, sys.flags.hash_randomization, hash('a'))\n"
    env = {"TZ": "XYZ-3", "PYTHONPATH": "src", "PYTHONHASHSEED": "7"}
    first, second = [await sandbox.python(code, more={"src/helper.py": "x = 5\n"}, env=env) for _ in range(2)]
    assert first.out == second.out
    assert first.out.startswith(b"XYZ 5 1 "), first.told()


async def test_the_packages_of_the_cell_are_there_beside_those_of_the_caller(sandbox):
    code = "import subprocess, sys\nprint(subprocess.call([sys.executable, '-c', 'import pytest, helper']))\n"
    ran = await sandbox.python(code, more={"src/helper.py": ""}, env={"PYTHONPATH": "/work/src"})
    assert ran.out == b"0\n", ran.told()
