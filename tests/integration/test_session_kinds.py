"""Sessions on every kind of cell: the same jobs leave the same workspace on each."""

import pytest
from support.jobs import limits, outcome
from support.kinds import KINDS, MissingError
from support.sessions import Sessions

MIB = 1024 * 1024
BEFORE = {"keep.txt": "keep", "edit.txt": "old", "gone.txt": "gone", "map.bin": b"a" * 9000, "deep/er/x": "x"}
WORK = """
import mmap, os, socket
open('edit.txt', 'w').write('new')
os.remove('gone.txt')
view = mmap.mmap(os.open('map.bin', os.O_RDWR), 0)
view[0], view[8999]
view[8999] = 98
os.makedirs('made/empty')
os.symlink('/etc/passwd', 'made/link')
os.mkfifo('made/fifo')
open('made/tool', 'w').write('#!'); os.chmod('made/tool', 0o755)
open(b'made/\\xff', 'w').write('raw')
open('made/shut', 'w').write('shut'); os.chmod('made/shut', 0); os.chmod('made', 0)
for number in range(300):
    open(f'deep/{number}', 'w').write(str(number))
"""
LOOK = """
import os
print(sorted(os.listdir(b'made')), os.readlink('made/link'), open('edit.txt').read(), open('made/shut').read())
print(len(os.listdir('deep')), os.path.exists('gone.txt'), open('map.bin', 'rb').read()[-2:])
"""


@pytest.fixture(scope="module", params=KINDS)
async def client(request, require):
    """A client of a service with cells of one kind."""
    starting = KINDS[request.param](SANDBOX_SESSION_BYTES="256MiB")
    try:
        running = await starting.__aenter__()
    except MissingError as missing:
        require(None, f"{request.param}: {missing}")
        raise
    try:
        yield Sessions(running.sandbox.stub)
    finally:
        await starting.__aexit__(None, None, None)


async def test_a_workspace_is_the_same_after_the_same_jobs(client):
    async with client.session(BEFORE) as bench:
        worked = await bench.run("work.py", {"work.py": WORK})
        assert worked.status == "SUCCEEDED", worked.told()
        update = worked.result.workspace
        # work.py, edit.txt, map.bin, and made with empty, link, tool, a raw name and shut, and 300 files
        assert (update.kept, update.written, update.removed, list(update.left_out)) == (True, 309, 1, ["made/fifo"])
        looked = await bench.python(LOOK)
        assert looked.out == (
            b"[b'empty', b'link', b'shut', b'tool', b'\\xff'] /etc/passwd new shut\n301 False b'ab'\n"
        ), looked.told()
        assert (looked.result.workspace.written, looked.result.workspace.removed) == (0, 0)
        assert (await bench.download("made/*")).executable == {"made/tool"}


@pytest.mark.parametrize(
    ("code", "limit", "statuses"),
    [
        ("import time; time.sleep(60)", {"wall_time": 1.5}, {"TIMED_OUT"}),
        ("while True: print('x' * 4096)", {"output_bytes": 65536}, {"OUTPUT_LIMIT"}),
        (
            "x = []\nwhile True: x.append(bytearray(2**20))",
            {"memory_bytes": 64 * MIB, "disk_bytes": 16 * MIB, "wall_time": 20},
            {"MEMORY_LIMIT", "FAILED"},
        ),
        ("import os; os.kill(os.getpid(), 9)", {}, {"SIGNALED"}),
        ("raise SystemExit(7)", {}, {"FAILED"}),
    ],
    ids=["wall time", "output", "memory", "signal", "exit code"],
)
async def test_a_job_that_is_ended_leaves_what_it_wrote(client, code, limit, statuses):
    async with client.session(BEFORE) as bench:
        ran = await bench.python("open('left.txt', 'w').write('left')\n" + code, limits=limits(**limit))
        assert ran.status in statuses, ran.told()
        assert ran.result.workspace.kept, ran.result.workspace
        assert set((await bench.download()).files) == {*BEFORE, "left.txt"}


async def test_tests_of_a_session_run_against_its_workspace(client):
    async with client.session({"solution.py": "def f():\n    return 1\n"}) as bench:
        tests = {"test_solution.py": "from solution import f\n\ndef test_f():\n    assert f() == 1\n"}
        passed = await bench.tests(tests)
        assert outcome(passed) == "PASSED", passed.report.reason
        await bench.upload({"solution.py": "def f():\n    return 2\n"})
        assert outcome(await bench.tests(tests)) == "FAILED"
        assert set((await bench.download()).files) == {"solution.py"}
