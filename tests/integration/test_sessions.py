"""Sessions as their callers have them: what stays between jobs, what never does, and how sessions end."""

import asyncio
import os
import time
from pathlib import Path

import grpc
import pytest
from codemend.rpc import error_detail
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sessions_pb2 as sessions
from codemend.sandbox.v1 import verdicts_pb2 as verdicts
from google.rpc import error_details_pb2
from support.jobs import limits, outcome, outcomes
from support.sandbox import running_sandbox, sandbox_process
from support.sessions import connected, file_parts, seconds

MIB = 1024 * 1024
SERVICE_GROWTH_BYTES = 24 * MIB
WRITE = "open('left.txt', 'w').write('left')\n"


@pytest.fixture(scope="module")
async def address():
    async with running_sandbox(SANDBOX_CONCURRENCY="2", SANDBOX_QUEUE_SIZE="2000") as started:
        yield started


@pytest.fixture
async def client(address):
    async with connected(address) as made:
        yield made


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def running(bench, before):
    """Starts a program in a session and returns its call once it has done what it does before it prints."""
    lines = f"{before}\nprint('up', flush=True)\nimport time; time.sleep(60)"
    request = pb.ExecuteStreamRequest(
        program=pb.Program(command=pb.Command(argv=["python", "-c", lines])),
        session=bench.id,
    )
    call = bench.stub.ExecuteStream(request, timeout=60, metadata=bench.metadata)
    assert (await call.read()).stdout_chunk == b"up\n"
    return call


async def test_what_a_job_leaves_is_there_for_the_next_one_and_no_process_is(client):
    async with client.session({"data/in.txt": "41"}) as bench:
        code = "import os; n = int(open('data/in.txt').read()); os.mkdir('out'); open('out/n', 'w').write(str(n + 1))"
        first = await bench.run("calc.py", {"calc.py": code})
        assert first.status == "SUCCEEDED", first.told()
        update = first.result.workspace
        assert (update.kept, update.written, update.removed) == (True, 3, 0)
        second = await bench.python(
            "print(open('out/n').read(), open('calc.py').read()[:9]); import os; os.remove('data/in.txt')"
        )
        assert second.out == b"42 import os\n"
        assert (second.result.workspace.written, second.result.workspace.removed) == (0, 1)
        assert set((await bench.download()).files) == {"calc.py", "out/n"}
        state = await bench.state()
        assert (state.jobs, state.entries, state.used_bytes) == (2, 4, 4 * 4096)


async def test_an_entry_may_be_a_file_of_the_workspace_and_must_be_one(client):
    async with client.session({"pkg/main.py": "print('here')", "pkg/x": ""}) as bench:
        assert (await bench.run("pkg/main.py")).out == b"here\n"
        for wrong in ("pkg", "pkg/none.py"):
            error = await refused(bench.run(wrong))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "program.entry" in error.details()


async def test_tests_run_against_the_workspace_and_never_come_into_it(client):
    async with client.session({"solution.py": "def double(n):\n    return n + n\n"}) as bench:
        tests = {"test_solution.py": "from solution import double\n\ndef test_double():\n    assert double(4) == 8\n"}
        reply = await bench.tests(tests)
        assert outcome(reply) == "PASSED", reply.report.reason
        assert outcomes(reply) == {"test_double": "PASSED"}
        assert reply.execution.workspace.kept
        changed = await bench.tests(tests, {"solution.py": "def double(n):\n    return n * 3\n"})
        assert outcome(changed) == "FAILED"
        found = await bench.download()
        assert found.files == {"solution.py": b"def double(n):\n    return n * 3\n"}


async def test_tests_that_run_apart_find_the_code_of_the_workspace_and_measure_it(client):
    code = {
        "pkg/deep.py": "def f(x):\n    if x:\n        return 1\n    return 2\n",
        "solution.py": "from pkg.deep import f\n",
    }
    async with client.session(code) as bench:
        tests = {"test_solution.py": "from solution import f\n\ndef test_f():\n    assert f(0) == 2\n"}
        reply = await bench.tests(tests, isolation=verdicts.TEST_ISOLATION_SEPARATE, coverage=True)
        assert outcome(reply) == "PASSED", reply.report.reason
        assert reply.report.integrity.isolation == verdicts.TEST_ISOLATION_SEPARATE
        assert {file.path: list(file.missing_lines) for file in reply.report.coverage} == {
            "pkg/deep.py": [3],
            "solution.py": [],
        }
        assert (reply.execution.workspace.kept, reply.execution.workspace.written) == (True, 0)


async def test_a_program_in_another_language_works_in_the_same_workspace(client, require):
    capabilities = await client.stub.GetCapabilities(pb.GetCapabilitiesRequest())
    require("node" in capabilities.languages, "no node on this machine")
    async with client.session({"lib/x.js": "exports.value = 42\n"}) as bench:
        code = "require('fs').writeFileSync('out.txt', String(require('./lib/x').value))"
        assert (await bench.run("main.js", {"main.js": code}, language="node")).status == "SUCCEEDED"
        assert (await bench.python("print(open('out.txt').read())")).out == b"42\n"


ENDS = {
    "a failure": (WRITE + "raise SystemExit(3)", {}, {"FAILED"}),
    "the wall time limit": (WRITE + "import time; time.sleep(60)", {"wall_time": 1}, {"TIMED_OUT"}),
    "the processor time limit": (WRITE + "while True: pass", {"cpu_time": 1, "wall_time": 20}, {"CPU_LIMIT"}),
    "the memory limit": (
        WRITE + "x = []\nwhile True: x.append(bytearray(2**20))",
        {"memory_bytes": 64 * MIB, "disk_bytes": 16 * MIB},
        {"MEMORY_LIMIT"},
    ),
    "the output limit": (WRITE + "while True: print('x' * 4096)", {"output_bytes": 65536}, {"OUTPUT_LIMIT"}),
    "a signal": (WRITE + "import os; os.kill(os.getpid(), 9)", {}, {"SIGNALED"}),
    "its attempt to kill the first process": (
        WRITE + "import os, signal\ntry: os.kill(1, signal.SIGKILL)\nexcept OSError: pass\n",
        {},
        {"SUCCEEDED"},
    ),
    "a fork bomb": (
        WRITE + "import os\nwhile True:\n    try: os.fork()\n    except OSError: os._exit(1)",
        {"processes": 16, "wall_time": 3},
        {"PROCESS_LIMIT", "FAILED", "TIMED_OUT"},
    ),
}


@pytest.mark.parametrize("name", ENDS)
async def test_a_session_survives_a_job_that_ends_by(client, name):
    code, limit, statuses = ENDS[name]
    async with client.session({"kept.txt": "kept"}) as bench:
        ran = await bench.python(code, limits=limits(**limit))
        assert ran.status in statuses, ran.told()
        assert ran.result.workspace.kept, ran.result.workspace
        after = await bench.python("print(open('kept.txt').read(), open('left.txt').read())")
        assert after.out == b"kept left\n", after.told()


async def test_a_forbidden_call_leaves_what_was_written_before_it(client, require):
    async with client.session() as bench:
        capabilities = await client.stub.GetCapabilities(pb.GetCapabilitiesRequest())
        in_force = {wall.name for wall in capabilities.protections if wall.in_force}
        require("seccomp" in in_force, "seccomp is not in force here")
        code = WRITE + "import ctypes; ctypes.CDLL(None).syscall(321, 0, 0, 0)"  # bpf on x86-64
        ran = await bench.python(code)
        assert ran.status == "VIOLATION", ran.told()
        assert set((await bench.download()).files) == {"left.txt"}


async def test_a_write_through_a_memory_mapping_is_kept_although_no_time_stamp_tells_of_it(client):
    async with client.session({"map.bin": b"a" * 9000}) as bench:
        code = """
import mmap, os
before = os.stat('map.bin').st_ctime_ns
view = mmap.mmap(os.open('map.bin', os.O_RDWR), 0)
view[0], view[5000]
view[8999] = 98
"""
        assert (await bench.python(code)).result.workspace.written == 1
        assert (await bench.download()).files["map.bin"] == b"a" * 8999 + b"b"


async def test_a_file_rewritten_at_once_with_the_same_size_runs_as_it_is_now(client):
    async with client.session() as bench:
        for number in (1, 2, 3):
            code = "import sys; sys.dont_write_bytecode = False; import fresh; print(fresh.x)"
            ran = await bench.run("main.py", {"main.py": code, "fresh.py": f"x = {number}"})
            assert ran.out == f"{number}\n".encode(), ran.told()
        assert set((await bench.download()).files) == {"main.py", "fresh.py"}


async def test_nothing_outside_the_workspace_stays(client):
    async with client.session() as bench:
        places = ["/tmp/x", "/var/tmp/x", "/dev/shm/x", "/home/job/x"]
        assert (await bench.python(f"for p in {places}: open(p, 'w').write('x')")).status == "SUCCEEDED"
        ran = await bench.python(f"import os; print([p for p in {places} if os.path.exists(p)])")
        assert ran.out == b"[]\n"


LOOK = """
import os, stat
held = sorted(fd for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}'))
print(held)
print('codemend-job' in open('/proc/self/maps').read())
"""


async def test_a_job_in_a_session_has_nothing_open_or_mapped_that_one_in_a_fresh_cell_has_not(client):
    fresh = pb.Program(files=[pb.File(path="look.py", content=LOOK.encode())], entry="look.py")
    reply = await client.stub.Execute(pb.ExecuteRequest(program=fresh), timeout=30)
    async with client.session({"secret": "x" * 100_000}) as bench:
        ran = await bench.run("look.py", {"look.py": LOOK})
        assert ran.out == reply.result.stdout.head, ran.told()
        assert ran.out.endswith(b"False\n")


async def test_one_call_at_a_time_works_in_a_session(client):
    async with client.session({"a": "1"}) as bench:
        call = await running(bench, "")
        for other in (bench.python("pass"), bench.upload({"b": ""}), bench.diff(), bench.download()):
            error = await refused(other)
            assert error.code() is grpc.StatusCode.ABORTED
        assert (await bench.state()).id == bench.id
        call.cancel()
        await free(bench)


async def free(bench):
    """Waits until nobody works in the session."""
    async with asyncio.timeout(10):
        while await is_busy(bench):
            pass


async def busy(bench):
    """Waits until somebody works in the session."""
    async with asyncio.timeout(10):
        while not await is_busy(bench):
            pass


async def is_busy(bench):
    """Whether somebody does: asked by a call that is refused in any case, and so is never in another's way."""
    return (await refused(bench.run("there/is/no/such/entry"))).code() is grpc.StatusCode.ABORTED


async def test_a_cancelled_job_changes_nothing(client):
    async with client.session({"a.txt": "before"}) as bench:
        call = await running(bench, "with open('a.txt', 'w') as stream: stream.write('after')")
        call.cancel()
        await free(bench)
        assert not (await bench.diff()).changes
        assert (await bench.download()).files == {"a.txt": b"before"}


async def test_a_job_whose_caller_s_deadline_passes_changes_nothing(client):
    async with client.session({"a.txt": "before"}) as bench:
        error = await refused(bench.python("open('a.txt', 'w').write('after')\nimport time; time.sleep(60)", within=3))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await free(bench)
        assert (await bench.download()).files == {"a.txt": b"before"}


async def test_deleting_a_session_kills_the_job_in_it(client):
    bench = await client.create()
    call = await running(bench, "")
    began = time.monotonic()
    await bench.delete()
    assert time.monotonic() - began < 10
    error = await refused(call.read())
    assert error.code() is grpc.StatusCode.NOT_FOUND
    for gone in (bench.state(), bench.python("pass"), bench.diff(), bench.download(), bench.upload({}), bench.delete()):
        assert (await refused(gone)).code() is grpc.StatusCode.NOT_FOUND


async def test_a_session_of_another_tenant_cannot_be_told_from_none(client):
    bench = await client.create("one")
    stranger = type(bench)(bench.stub, bench.session, "two")
    nobody = type(bench)(bench.stub, sessions.Session(id="ses_000000000000000000000000"), "two")
    calls = ("state", "delete", "diff", "download")
    for call in calls:
        seen, expected = [await refused(getattr(who, call)()) for who in (stranger, nobody)]
        assert seen.code() is expected.code() is grpc.StatusCode.NOT_FOUND
        assert seen.details().replace(bench.id, "") == expected.details().replace(nobody.id, "")
    assert (await refused(stranger.python("pass"))).code() is grpc.StatusCode.NOT_FOUND
    assert (await refused(stranger.upload({"x": ""}))).code() is grpc.StatusCode.NOT_FOUND
    assert (await bench.state()).entries == 0
    await bench.delete()


async def test_an_idle_session_ends_and_a_call_keeps_one_alive(client):
    async with client.session(idle_ttl=seconds(2)) as bench, client.session(idle_ttl=seconds(2)) as idle:
        began = time.monotonic()
        while time.monotonic() - began < 4:
            assert (await bench.python("import time; time.sleep(0.3)")).status == "SUCCEEDED"
        assert (await refused(idle.state())).code() is grpc.StatusCode.NOT_FOUND
        assert (await bench.state()).jobs >= 2


async def test_no_session_outlives_its_time_even_at_work(client):
    bench = await client.create(ttl=seconds(1.5))
    began = time.monotonic()
    call = await running(bench, "")
    error = await refused(call.read())
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert time.monotonic() - began < 12
    assert (await refused(bench.state())).code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ttl", seconds(0)),
        ("ttl", seconds(10**9)),
        ("idle_ttl", seconds(-1)),
        ("idle_ttl", seconds(10**9)),
        ("disk_bytes", 0),
        ("disk_bytes", 1 << 62),
    ],
)
async def test_terms_out_of_their_bounds_are_refused_by_name(client, field, value):
    error = await refused(client.create(**{field: value}))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [one.field for one in error_detail(error, error_details_pb2.BadRequest).field_violations] == [field]


async def test_the_same_key_gives_the_same_session_and_another_request_is_refused(client):
    first = await client.create(idempotency_key="k", disk_bytes=MIB)
    assert (await client.create(idempotency_key="k", disk_bytes=MIB)).id == first.id
    assert (await client.create("other", idempotency_key="k", disk_bytes=MIB)).id != first.id
    error = await refused(client.create(idempotency_key="k", disk_bytes=2 * MIB))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    await first.delete()


async def test_the_same_key_runs_a_job_in_a_session_once(client):
    async with client.session({"n": "0"}) as bench:
        code = "n = int(open('n').read()) + 1; open('n', 'w').write(str(n)); print(n)"
        program = pb.Program(command=pb.Command(argv=["python", "-c", code]))
        replies = await asyncio.gather(*(bench.execute(program, key="once") for _ in range(3)))
        assert {reply.out for reply in replies} == {b"1\n"}
        assert (await bench.download()).files == {"n": b"1"}


async def test_numbers_of_sessions_are_bounded_for_each_tenant_and_in_all():
    settings = {"SANDBOX_MAX_SESSIONS": "5", "SANDBOX_MAX_SESSIONS_PER_TENANT": "3"}
    async with running_sandbox(**settings) as address, connected(address) as client:
        mine = [await client.create("a") for _ in range(3)]
        error = await refused(client.create("a"))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error_detail(error, error_details_pb2.RetryInfo) is not None
        await client.create("b")
        await client.create("b")
        assert (await refused(client.create("c"))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await mine[0].delete()
        await client.create("c")


async def test_all_sessions_together_hold_no_more_than_the_server_gives_them():
    async with running_sandbox(SANDBOX_SESSION_BYTES="4MiB") as address, connected(address) as client:
        one, two = await client.create(), await client.create()
        await one.upload({"big": b"x" * (3 * MIB // 2)})
        error = await refused(two.upload({"big": b"x" * (3 * MIB)}))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await two.state()).entries == 0
        ran = await two.python("open('big', 'wb').write(b'x' * 3 * 2**20)")
        assert ran.status == "SUCCEEDED"
        assert not ran.result.workspace.kept
        assert "together" in ran.result.workspace.reason
        assert (await two.state()).entries == 0
        await one.delete()
        assert (await two.python("open('big', 'wb').write(b'x' * 3 * 2**20)")).result.workspace.kept


async def test_a_service_that_starts_again_knows_no_session_of_before():
    async with sandbox_process() as service, connected(service.address) as client:
        bench = await client.create()
        address, session = service.address, bench.session
    async with sandbox_process(address=address) as again, connected(again.address) as client:
        left = type(bench)(client.stub, session, "")
        assert (await refused(left.python("pass"))).code() is grpc.StatusCode.NOT_FOUND


async def test_hundreds_of_sessions_at_once_each_keep_their_own(client):
    number = 300
    benches = await asyncio.gather(*(client.create() for _ in range(number)))

    async def work(index, bench):
        await bench.upload({f"own/{index}.txt": str(index)})
        code = f"n = int(open('own/{index}.txt').read()); open('result', 'w').write(str(n * n)); print(n)"
        ran = await bench.run("main.py", {"main.py": code}, within=110)
        assert ran.out == f"{index}\n".encode(), ran.told()
        found = await bench.download("own/*", "result")
        assert found.files == {f"own/{index}.txt": str(index).encode(), "result": str(index * index).encode()}

    await asyncio.gather(*(work(index, bench) for index, bench in enumerate(benches)))
    assert len({bench.id for bench in benches}) == number
    await asyncio.gather(*(bench.delete() for bench in benches))


async def test_the_service_holds_nothing_of_sessions_that_are_gone():
    content = os.urandom(MIB)
    async with sandbox_process() as service, connected(service.address) as client:

        async def lives(number):
            for _ in range(number):
                bench = await client.create()
                await bench.send(file_parts({"a": content, "d/b": b"b"}))
                await bench.delete()

        await lives(100)
        before = _resident_bytes(service.process.pid)
        await asyncio.gather(*(lives(250) for _ in range(4)))
        grown = _resident_bytes(service.process.pid) - before
        assert grown < SERVICE_GROWTH_BYTES, f"{grown} bytes more after 1,000 sessions"


def _resident_bytes(pid):
    """Of the service, which is the youngest child of its launcher, or that process itself."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pids = [pid, *map(int, children)]
    sizes = [int(Path(f"/proc/{one}/statm").read_text().split()[1]) * 4096 for one in pids]
    return max(sizes)


async def test_sessions_that_are_deleted_while_their_jobs_run_or_wait_leave_no_job(client):
    benches = [await client.create() for _ in range(6)]
    tasks = [bench.begin("import time; time.sleep(60)") for bench in benches]
    await asyncio.gather(*map(busy, benches))
    await asyncio.gather(*(bench.delete() for bench in benches))
    for task in tasks:
        assert (await refused(task)).code() is grpc.StatusCode.NOT_FOUND
    async with client.session() as bench:
        assert (await bench.python("print(1)")).out == b"1\n"
