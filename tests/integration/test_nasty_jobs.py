"""Programs that harm: each ends in time, with the right status, and leaves nothing for the next job to find."""

import signal
import sys
from pathlib import Path

import pytest
from codemend.sandbox.v1 import sandbox_pb2 as pb
from support.footprint import footprint
from support.jobs import client, limits
from support.nasty import ALL, MIB, Nasty
from support.sandbox import sandbox_process
from support.service import service_process
from support.waiting import until

REPLY_BYTES = 4 * MIB
KEPT_BYTES = 256 * 1024
SERVICE_GROWTH_BYTES = 16 * MIB
"""What the service's memory may grow by during a flood: its buffers and its interpreter's arenas, not the flood."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The service's TMPDIR."""
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
async def sandbox(folder):
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="2", TMPDIR=str(folder)) as service,
        client(service.address, service.process.pid) as made,
    ):
        yield made


@pytest.fixture(scope="module")
async def protections(sandbox):
    return await sandbox.in_force()


@pytest.fixture
def nasty(request, protections, require) -> Nasty:
    """One harmful program that can be held with the protections of this machine."""
    absent = request.param.needs - protections
    require(not absent, f"{', '.join(sorted(absent))} not in force here")
    return request.param


@pytest.fixture(scope="module")
async def at_start(sandbox, folder):
    """What the service has on the machine while no job runs."""
    assert (await sandbox.python("print('first')")).out == b"first\n"
    return footprint(sandbox.pid, folder)


@pytest.mark.parametrize("nasty", ALL, ids=lambda nasty: nasty.name, indirect=True)
async def test_it_ends_in_time_with_its_status_and_nothing_is_left(sandbox, protections, at_start, folder, nasty):
    ran = await sandbox.python(nasty.code, limits=limits(**nasty.limits), **nasty.fields)
    assert ran.status in nasty.statuses, ran.told()
    assert nasty.check(ran), ran.told()
    assert ran.wall_seconds <= nasty.wall_seconds + 1, ran.told()
    assert ran.seconds <= nasty.wall_seconds + 3, ran.told()
    assert set(ran.result.isolation.protections) == protections
    assert bool(ran.result.reason) == (ran.status != "SUCCEEDED")
    await nothing_left(sandbox, at_start, folder)
    following = await sandbox.python("import os; print(os.listdir('.'), os.listdir('/tmp'), os.listdir('/dev/shm'))")
    assert following.out == b"['main.py'] [] []\n", following.told()


async def nothing_left(sandbox, before, folder):
    """Waits shortly, since a process that is dead may still have its entry in /proc, and says what is left."""
    try:
        await until(lambda: not footprint(sandbox.pid, folder).beyond(before), seconds=2)
    except TimeoutError:
        assert footprint(sandbox.pid, folder).beyond(before) == {}


async def test_a_gigabyte_of_output_ends_at_its_limit_and_leaves_the_service_s_memory_flat(sandbox, at_start, folder):
    flood = "import os\nblock = b'x' * 1048576\nfor _ in range(1024): os.write(1, block)"
    for given, limit in ((limits(), 16 * MIB), (limits(output_bytes=256 * MIB), 256 * MIB)):
        before = reset_peak(sandbox.pid)
        ran = await sandbox.python(flood, limits=given)
        assert ran.status == "OUTPUT_LIMIT", ran.told()
        assert str(limit) in ran.result.reason
        kept = ran.result.stdout
        assert len(kept.head) + len(kept.tail) + kept.dropped_bytes == limit
        assert peak_bytes(sandbox.pid) - before < SERVICE_GROWTH_BYTES
    await nothing_left(sandbox, at_start, folder)


def reset_peak(pid: int) -> int:
    """Makes the kernel measure the peak of a process anew; returns what it uses now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    return memory(pid, "VmHWM")


def memory(pid: int, name: str) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


async def test_output_on_both_streams_is_counted_to_the_byte_and_keeps_head_and_tail(sandbox):
    code = """
import os
for n in range(3000):
    os.write(1, b'%07d\\n' % n * 250)
    os.write(2, b'%06dE\\n' % n * 125)
"""
    ran = await sandbox.python(code)
    assert ran.status == "SUCCEEDED", ran.told()
    for stream, total, first, last in (
        (ran.result.stdout, 6_000_000, b"0000000\n", b"0002999\n"),
        (ran.result.stderr, 3_000_000, b"000000E\n", b"002999E\n"),
    ):
        assert (len(stream.head), len(stream.tail)) == (KEPT_BYTES, KEPT_BYTES)
        assert stream.dropped_bytes == total - 2 * KEPT_BYTES
        assert stream.head.startswith(first)
        assert stream.tail.endswith(last)


async def test_a_line_of_100_megabytes_fits_the_reply_with_the_rest_counted(sandbox):
    ran = await sandbox.python(
        "import os\nfor _ in range(100): os.write(1, b'y' * 1_000_000)", limits=limits(output_bytes=200 * MIB)
    )
    assert ran.status == "SUCCEEDED", ran.told()
    assert ran.reply_bytes < REPLY_BYTES
    assert ran.result.stdout.dropped_bytes == 100_000_000 - 2 * KEPT_BYTES


async def test_a_million_lines_fit_the_reply_with_the_rest_counted(sandbox):
    ran = await sandbox.python("for n in range(1_000_000): print(f'{n:07}')", limits=limits(output_bytes=200 * MIB))
    assert ran.status == "SUCCEEDED", ran.told()
    assert ran.reply_bytes < REPLY_BYTES
    assert ran.result.stdout.dropped_bytes == 8_000_000 - 2 * KEPT_BYTES
    assert ran.result.stdout.tail.endswith(b"0999998\n0999999\n")


async def test_bytes_that_are_no_text_come_back_as_they_are(sandbox):
    every_byte = bytes(range(256)) + b"\x00\xff\xfe\xed\xa0\x80"
    code = f"import sys\nsys.stdout.buffer.write({every_byte!r})\nsys.stderr.buffer.write({every_byte[::-1]!r})"
    ran = await sandbox.python(code)
    assert ran.result.stdout.head == every_byte
    assert ran.result.stderr.head == every_byte[::-1]


async def test_lone_surrogates_printed_come_back_as_bare_python_prints_them(sandbox):
    ran = await sandbox.python("import sys\nprint('\\udcff')\nprint('\\ud800', file=sys.stderr)")
    assert (ran.status, ran.out, ran.err) == ("SUCCEEDED", b"\xff\n", "\\ud800\n")


async def test_the_cause_of_an_output_limit_is_the_first_byte_over_it(sandbox):
    exactly = await sandbox.python("print('x' * 999)", limits=limits(output_bytes=1000))
    over = await sandbox.python("import time\nprint('x' * 1000)\ntime.sleep(60)", limits=limits(output_bytes=1000))
    assert exactly.status == "SUCCEEDED"
    assert over.status == "OUTPUT_LIMIT"
    assert over.wall_seconds < 2
    assert over.out == b"x" * 1000


async def test_a_program_that_met_a_limit_and_went_on_well_has_succeeded(sandbox):
    code = """
import os
try:
    with open('big', 'wb') as f:
        for _ in range(200): f.write(b'x' * 1048576)
except OSError: os.remove('big')
print('mended')
"""
    ran = await sandbox.python(code)
    assert (ran.status, ran.out) == ("SUCCEEDED", b"mended\n"), ran.told()


async def test_an_executable_given_as_a_file_runs_and_a_missing_one_is_a_result(sandbox):
    script = pb.File(path="run.sh", content=b"#!/bin/sh\necho from $0 $1\nexit 4\n", executable=True)
    program = pb.Program(files=[script], command=pb.Command(argv=["./run.sh", "x"]))
    result = (await sandbox.stub.Execute(pb.ExecuteRequest(program=program), timeout=30)).result
    assert (result.exit_code, result.stdout.head) == (4, b"from ./run.sh x\n")
    missing = await sandbox.command("no-such-program")
    assert (missing.status, missing.result.exit_code) == ("FAILED", 127)
    assert "no-such-program" in missing.err


async def test_collected_files_are_regular_new_and_within_their_caps(sandbox):
    code = """
import os
os.makedirs('deep/er')
open('new.txt', 'w').write('new')
open('deep/er/new.txt', 'w').write('deep')
open('old.txt', 'a').write(' changed')
os.symlink('/etc/passwd', 'link.txt')
os.mkfifo('fifo.txt')
open('big.txt', 'w').write('x' * 2_000_000)
os.link('new.txt', 'hard.txt')
"""
    ran = await sandbox.python(code, more={"old.txt": "old", "same.txt": "same"}, collect=["**/*.txt"])
    found = {file.path: file.content for file in ran.result.files}
    assert found == {
        "deep/er/new.txt": b"deep",
        "hard.txt": b"new",
        "new.txt": b"new",
        "old.txt": b"old changed",
    }
    assert sorted(ran.result.files_left_out) == ["big.txt", "fifo.txt", "link.txt"]


async def test_files_are_brought_back_after_a_timeout_too(sandbox):
    code = "import time\nopen('partial.txt', 'w').write('so far')\ntime.sleep(60)"
    ran = await sandbox.python(code, limits=limits(wall_time=1), collect=["*.txt"])
    assert ran.status == "TIMED_OUT"
    assert [file.content for file in ran.result.files] == [b"so far"]


async def test_usage_is_measured(sandbox, protections, require):
    require("memory_cgroup" in protections, "memory_cgroup not in force here")
    ran = await sandbox.python("import time\nx = b'x' * (100 << 20)\nend = time.process_time() + 0.3\n"
                               "while time.process_time() < end: pass")  # fmt: skip
    assert ran.result.peak_memory_bytes > 100 * MIB
    assert 0.3 <= ran.result.cpu_time.ToTimedelta().total_seconds() < 1.5
    assert ran.wall_seconds >= 0.3


async def test_the_service_s_interpreter_is_the_one_that_jobs_get(sandbox):
    ran = await sandbox.python("import sys; print('.'.join(map(str, sys.version_info[:3])))")
    assert ran.out.decode().strip() == ".".join(map(str, sys.version_info[:3]))


async def test_a_program_that_ended_in_time_is_no_timeout_however_much_it_left(sandbox):
    code = "for i in range(20000): open(f'f{i}', 'w').close()\nprint('done')\n"
    ran = await sandbox.python(code, collect=["**"], limits=limits(wall_time=30))
    tight = limits(wall_time=ran.wall_seconds * 1.5)
    again = await sandbox.python(code, collect=["**/" * 12 + "zz"], limits=tight)
    assert again.status == "SUCCEEDED" or again.wall_seconds >= ran.wall_seconds * 1.5, again.told()
    assert len(ran.result.files) == 256


async def test_paths_over_the_contracts_length_are_left_out(sandbox):
    code = "import os\nfor _ in range(8): os.mkdir('\\x01' * 250), os.chdir('\\x01' * 250)\nopen('f', 'w').close()\n"
    ran = await sandbox.python(code, collect=["**"])
    assert ran.status == "SUCCEEDED"
    assert [file.path for file in ran.result.files] == []
    assert len(ran.result.files_left_out) == 1


async def test_no_key_of_one_job_is_there_for_the_next(sandbox):
    leave = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.syscall(248, b'user', b'codemend-secret', b'secret', 6, -4))\n"
    )
    await sandbox.python(leave)
    look = "import os\nprint([open(p).read() for p in ('/proc/keys', '/proc/key-users') if os.path.exists(p)])\n"
    assert b"secret" not in (await sandbox.python(look)).out


async def test_signals_act_whatever_the_service_was_started_with():
    started = service_process(
        "sandbox_service",
        ["--address", "127.0.0.1:0"],
        {"SANDBOX_CONCURRENCY": "1"},
        without=("SANDBOX_",),
        through=("/usr/bin/env", "--ignore-signal=HUP,USR1,ALRM", "--block-signal=USR2"),
    )
    async with started as service, client(service.address, service.process.pid) as made:
        for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM"):
            ran = await made.python(f"import os, signal; os.kill(os.getpid(), signal.{name})")
            assert (ran.status, ran.result.signal) == ("SIGNALED", getattr(signal, name))
