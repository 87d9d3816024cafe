"""`codemend exec` and `codemend test` as a person uses them: a real process, a real sandbox."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.cli import CLI_SECONDS, command_line, environment, outcome_of, run_cli, started_cli
from support.sandbox import running_sandbox
from support.waiting import until

TESTS = (
    "from solution import double\n\ndef test_two():\n    assert double(2) == 4\n\n"
    "def test_three():\n    assert double(3) == 6\n"
)


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[str]:
    async with running_sandbox() as address:
        yield address


@pytest.fixture
def cli(sandbox, tmp_path):
    async def run(*arguments, **options):
        return await run_cli(*arguments, cwd=tmp_path, env={"CODEMEND_SANDBOX_ADDRESS": sandbox}, **options)

    return run


def write(folder: Path, **sources: str) -> None:
    for name, text in sources.items():
        (folder / f"{name}.py").write_text(text)


async def test_exec_passes_on_output_arguments_stdin_and_exit_code(cli, tmp_path):
    write(
        tmp_path,
        prog="import sys\nprint(sys.argv[1:], sys.stdin.read())\nprint('oops', file=sys.stderr)\nsys.exit(7)\n",
    )
    done = await cli("exec", "prog.py", "--stdin", "-", "--", "a", "--flag", stdin=b"typed")
    assert done.code == 7
    assert done.out == "['a', '--flag'] typed\n"
    assert done.err.splitlines() == ["oops", "codemend: FAILED: exit code 7"]


async def test_exec_keeps_bytes_that_are_no_text(sandbox, tmp_path):
    write(tmp_path, prog="import sys\nsys.stdout.buffer.write(bytes(range(256)))\n")
    async with started_cli("exec", "prog.py", "--sandbox-address", sandbox, cwd=tmp_path) as process:
        out, _ = await process.communicate()
    assert (process.returncode, out) == (0, bytes(range(256)))


async def test_exec_lays_files_beside_the_program(cli, tmp_path):
    write(tmp_path, prog="import part.one\nprint(part.one.VALUE, open('two.txt').read())\n")
    (tmp_path / "lib" / "part").mkdir(parents=True)
    (tmp_path / "lib" / "part" / "one.py").write_text("VALUE = 1\n")
    (tmp_path / "two.txt").write_text("2")
    done = await cli("exec", "prog.py", "--file", "lib", "--file", "two.txt")
    assert (done.code, done.out) == (0, "1 2\n")


@pytest.mark.parametrize(
    ("source", "options", "code", "status"),
    [
        ("while True: pass", ["--wall", "500ms"], 124, "TIMED_OUT"),
        ("x = bytearray(10**9)", ["--memory", "64MiB"], 137, "MEMORY_LIMIT"),
        ("while True: print('x' * 10**6)", [], 153, "OUTPUT_LIMIT"),
        ("import os\nos.kill(os.getpid(), 15)", [], 143, "SIGNALED"),
    ],
)
async def test_exec_exit_code_says_which_limit_ended_the_program(cli, tmp_path, source, options, *, code, status):
    write(tmp_path, prog=source)
    done = await cli("exec", "prog.py", *options)
    assert done.code == code
    assert done.err.splitlines()[-1].startswith(f"codemend: {status}: ")


async def test_exec_output_appears_while_the_program_runs(sandbox, tmp_path):
    write(tmp_path, prog="import sys\nprint('first', flush=True)\nsys.stdin.read()\nwhile True: pass\n")
    async with started_cli("exec", "prog.py", "--sandbox-address", sandbox, cwd=tmp_path) as process:
        assert await process.stdout.readline() == b"first\n"
        process.send_signal(signal.SIGINT)
        done = await outcome_of(process)
    assert done.code == 130


async def test_exec_refusals_name_option_and_limit(cli, tmp_path):
    write(tmp_path, prog="")
    for arguments, said in (
        (["exec", "missing.py"], "FILE: cannot read 'missing.py': No such file or directory"),
        (["exec", "prog.py", "--memory", "much"], "--memory: 'much' is no size"),
        (
            ["exec", "prog.py", "--memory", "900GiB"],
            "program.limits.memory_bytes: is 966367641600; this server allows at most",
        ),
        (["exec", "prog.py", "--wall", "2d"], "--wall: '2d' is no time"),
        (["exec", "prog.py", "--file", "prog.py"], "--file: a file would lie at 'prog.py', where FILE lies"),
        (["exec", "prog.py", "--walk", "1"], "No such option: --walk"),
        (["exec", "prog.py", "--sandbox-address", "nowhere"], "--sandbox-address: 'nowhere' is no address"),
    ):
        done = await cli(*arguments)
        assert (done.code, done.out) == (2, "")
        assert said in done.err
        assert "Traceback" not in done.err


async def test_service_that_is_not_there_is_told_with_its_address(tmp_path):
    write(tmp_path, prog="")
    done = await run_cli("exec", "prog.py", "--sandbox-address", f"unix:{tmp_path}/none", cwd=tmp_path)
    assert done.code == 3
    assert f"cannot reach the sandbox service at unix:{tmp_path}/none" in done.err


async def test_exec_starts_and_stops_a_sandbox_of_its_own(tmp_path):
    write(tmp_path, prog="print(6 * 7)\n")
    (tmp_path / "private").mkdir()
    done = await run_cli("exec", "prog.py", cwd=tmp_path, env={"TMPDIR": str(tmp_path / "private")})
    assert (done.code, done.out, done.err) == (0, "42\n", "")
    assert list((tmp_path / "private").iterdir()) == []


async def test_modules_of_the_working_directory_do_not_reach_the_services(tmp_path):
    write(
        tmp_path,
        prog="print(6 * 7)\n",
        grpc="raise SystemExit('taken over')\n",
        logging="raise SystemExit('taken over')\n",
    )
    done = await run_cli("exec", "prog.py", cwd=tmp_path)
    assert (done.code, done.out) == (0, "42\n")


async def test_sandbox_that_cannot_start_shows_its_own_words(tmp_path):
    write(tmp_path, prog="")
    done = await run_cli("exec", "prog.py", cwd=tmp_path, env={"SANDBOX_CONCURRENCY": "none"})
    assert done.code == 3
    assert "sandbox_service ended with exit code 2; its log ends with:" in done.err
    assert "SANDBOX_CONCURRENCY" in done.err
    assert "Traceback" not in done.err


async def test_own_sandbox_dies_with_a_killed_command(tmp_path):
    write(tmp_path, prog="print('up', flush=True)\nwhile True: pass\n")
    async with started_cli("exec", "prog.py", cwd=tmp_path, env={"TMPDIR": str(tmp_path)}) as process:
        assert await process.stdout.readline() == b"up\n"
        children = descendants(process.pid)
        assert children
        process.kill()
        await process.wait()
        await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), 15)


async def test_closed_pipe_ends_the_command_without_a_traceback(sandbox, tmp_path):
    write(tmp_path, prog="while True: print('x' * 1000, flush=True)\n")
    async with started_cli("exec", "prog.py", "--sandbox-address", sandbox, cwd=tmp_path) as process:
        await process.stdout.readexactly(1000)
        process._transport.get_pipe_transport(1).close()
        err = await process.stderr.read()
        await process.wait()
    assert process.returncode == 141
    assert b"Traceback" not in err


@pytest.mark.parametrize("extra", [(), ("--json",)])
async def test_nobody_who_reads_the_verdict_is_no_failed_test(sandbox, tmp_path, extra):
    write(tmp_path, solution="def double(x):\n    return x * 2\n", test_solution=TESTS)
    reader, writer = os.pipe()
    os.close(reader)
    command = ["test", "--solution", "solution.py", "--tests", "test_solution.py", "--sandbox-address", sandbox]
    assert await ended_with_stdout(writer, *command, *extra, cwd=tmp_path) == (141, "")


async def test_doctor_says_nothing_of_the_machine_when_its_reader_has_left(sandbox, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    assert await ended_with_stdout(writer, "doctor", "--sandbox-address", sandbox, cwd=tmp_path) == (141, "")


@pytest.mark.parametrize(
    "command",
    [
        ("test", "--solution", "solution.py", "--tests", "test_solution.py"),
        ("test", "--solution", "solution.py", "--tests", "test_solution.py", "--json"),
        ("exec", "prog.py"),
    ],
)
async def test_a_full_disk_is_told_in_one_line(sandbox, tmp_path, command):
    write(tmp_path, solution="def double(x):\n    return x * 2\n", test_solution=TESTS, prog="print('x')\n")
    full = os.open("/dev/full", os.O_WRONLY)
    code, err = await ended_with_stdout(full, *command, "--sandbox-address", sandbox, cwd=tmp_path)
    assert (code, err) == (3, "codemend: cannot write the output: No space left on device\n")


async def ended_with_stdout(descriptor: int, *arguments: str, cwd: Path) -> tuple[int, str]:
    """Runs a command whose stdout is `descriptor`, which is closed here; its exit code and what it said on stderr."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command_line(*arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=descriptor,
            stderr=asyncio.subprocess.PIPE,
            cwd=cwd,
            env=environment(),
        )
    finally:
        os.close(descriptor)
    async with asyncio.timeout(CLI_SECONDS):
        _, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, err.decode()


async def test_test_command_shows_the_failing_assertion_with_its_values(cli, tmp_path):
    write(tmp_path, solution="def double(x):\n    return x * 2 if x != 3 else 7\n", test_solution=TESTS)
    done = await cli("test", "--solution", "solution.py", "--tests", "test_solution.py")
    assert done.code == 1
    for line in (
        "test_solution.py::test_three FAILED",
        "    AssertionError at test_solution.py:7: assert 7 == 6",
        "      left  = 7",
        "      right = 6",
        "FAILED 1/2 tests in ",
    ):
        assert line in done.out


async def test_test_command_passes_only_when_every_test_passed(cli, tmp_path):
    write(tmp_path, solution="def double(x):\n    return x * 2\n", test_solution=TESTS, test_none="")
    passed = await cli("test", "--solution", "solution.py", "--tests", "test_solution.py", "--json")
    assert passed.code == 0
    assert json.loads(passed.out)["report"]["outcome"] == "REPORT_OUTCOME_PASSED"
    nothing = await cli("test", "--solution", "solution.py", "--tests", "test_none.py")
    assert nothing.code == 1
    assert "NO_TESTS 0/0 tests" in nothing.out


async def test_test_command_needs_both_sides(cli, tmp_path):
    done = await cli("test", "--solution", str(tmp_path))
    assert done.code == 2
    assert "Missing option '--tests'" in done.err


def descendants(pid: int) -> list[int]:
    """Processes below one, children before grandchildren."""
    found: list[int] = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *descendants(int(child))]
    return found
