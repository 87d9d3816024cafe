"""Docker cells on a real engine, with gVisor and with plain containers: what jobs get, what limits do, what is left."""

import asyncio
import signal
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import docker
import grpc
import pytest
from codemend.rpc import error_detail
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sessions_pb2, verdicts_pb2
from google.rpc import error_details_pb2
from support.engine import ENGINE, IMAGE, check_engine, containers_of, passage, sandbox_processes
from support.jobs import client, limits, outcome, outcomes
from support.sandbox import sandbox_process
from support.waiting import until

from sandbox_service.cells import DockerCells, DockerOptions, Reuse
from sandbox_service.domain import DEFAULT_LIMITS, MIB, File, Lease, Program, Status
from sandbox_service.domain import TestRun as Tests
from sandbox_service.errors import CellUnavailable

pytestmark = pytest.mark.timeout(240)
GONE_SECONDS = 60
SERVICE = {"SANDBOX_CELL": "docker", "SANDBOX_CONCURRENCY": "2", "SANDBOX_DOCKER_IMAGE": IMAGE}
SLEEP = "print('up', flush=True)\nimport time\ntime.sleep(60)"
LEFT = """
import os, pathlib
places = ('/work', '/tmp', '/var/tmp', '/dev/shm', '/home/job')
print(sorted(str(path) for place in places for path in pathlib.Path(place).iterdir() if path.name != 'main.py'))
pids = [name for name in os.listdir('/proc') if name.isdigit()]
print(sum(b'marked' in pathlib.Path(f'/proc/{pid}/cmdline').read_bytes() for pid in pids))
"""
LEAVE = """
import os, subprocess, sys
for place in ('/work', '/tmp', '/var/tmp', '/dev/shm', '/home/job'):
    os.makedirs(f'{place}/deep/er')
    open(f'{place}/deep/er/file', 'w').write('secret')
    os.chmod(f'{place}/deep', 0)
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', 'marked'], start_new_session=True)
"""


@pytest.fixture(scope="module", params=["runsc", "runc"])
def runtime(request, require):
    check_engine(require, request.param)
    return request.param


@pytest.fixture(scope="module")
async def sandbox(runtime):
    """A service whose jobs of one kind share no container."""
    async with (
        sandbox_process(**SERVICE, SANDBOX_DOCKER_RUNTIME=runtime) as service,
        client(service.address, service.process.pid) as made,
    ):
        yield made


@asynccontextmanager
async def started(runtime, **options):
    """Cells of this process itself, proved and ready."""
    cells = DockerCells(DockerOptions(runtime=runtime, image=IMAGE, **options))
    await cells.start()
    try:
        cells.degrade({})
        yield cells
    finally:
        await cells.stop()


def script(code, **fields):
    return Program(
        fields.pop("limits", DEFAULT_LIMITS), files=(File("main.py", code.encode()),), entry="main.py", **fields
    )


async def printed(cells, code, lease):
    result = (await cells.run(script(code), lease=lease)).result
    assert result.status is Status.SUCCEEDED, (result.reason, result.stderr)
    return result.stdout.head.decode()


async def test_a_program_gets_all_that_it_was_given(sandbox):
    code = "import os, sys, data\nopen('made.txt', 'w').write('x')\n"
    code += "print(data.x, sys.argv[1:], sys.stdin.read(), os.environ['A'])"
    ran = await sandbox.python(
        code, more={"data.py": "x = 7"}, args=["one"], stdin=b"in", env={"A": "b"}, collect=["*.txt"]
    )
    assert ran.status == "SUCCEEDED", ran.told()
    assert ran.out == b"7 ['one'] in b\n"
    assert [(file.path, file.content) for file in ran.result.files] == [("made.txt", b"x")]
    assert ran.result.isolation.cell == "docker"


async def test_bytes_stay_bytes_and_both_streams_are_kept_apart(sandbox):
    ran = await sandbox.python("import os\nos.write(1, bytes(range(256)))\nos.write(2, b'\\xff\\0')\nos._exit(3)")
    assert (ran.status, ran.result.exit_code) == ("FAILED", 3)
    assert ran.result.stdout.head == bytes(range(256))
    assert ran.result.stderr.head == b"\xff\0"


async def test_output_comes_while_the_program_runs(sandbox):
    call = sandbox.stream(SLEEP)
    assert (await call.read()).stdout_chunk == b"up\n"
    call.cancel()


async def test_a_command_runs_and_so_does_node(sandbox):
    assert (await sandbox.command("python3", "-c", "print(6 * 7)")).out == b"42\n"
    ran = await sandbox.run({"main.js": "console.log(6 * 7)"}, "main.js", language="node")
    assert ran.out == b"42\n", ran.told()


async def test_tests_give_a_report(sandbox):
    tests = "from solution import f\ndef test_good(): assert f(1) == 2\ndef test_bad(): assert f(1) == 3\n"
    reply = await sandbox.tests(tests, "def f(x): return x + 1\n")
    assert outcome(reply) == "FAILED"
    assert outcomes(reply) == {"test_good": "PASSED", "test_bad": "FAILED"}
    compared = next(case for case in reply.report.tests if case.node_id.endswith("test_bad")).failure.comparison
    assert (compared.left, compared.right) == ("2", "3")


async def test_the_code_under_test_runs_in_a_container_without_the_tests(sandbox):
    equal = (
        "class Same(int):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(x): return Same(0)\n"
    )
    tests = "from solution import f\ndef test_it(): assert f(1) == 2\n"
    for code, wanted in (("def f(x): return x + 1\n", "PASSED"), (equal, "FAILED")):
        reply = await sandbox.tests(tests, code)
        assert outcome(reply) == wanted, reply.report
        assert reply.report.integrity.isolation == verdicts_pb2.TEST_ISOLATION_SEPARATE
    spying = "import os\nfound = os.listdir('/tests')\ndef f(x): return found\n"
    reply = await sandbox.tests("from solution import f\ndef test_it(): assert f(1) == []\n", spying)
    assert outcome(reply) == "PASSED", reply.report


async def test_the_places_that_a_job_may_write_to_count_together(sandbox):
    code = "for place in ('/work', '/tmp', '/var/tmp', '/dev/shm', '/home/job'):\n"
    code += "    open(f'{place}/x', 'wb').write(b'x' * (50 * 2 ** 20))\nimport time\ntime.sleep(20)"
    ran = await sandbox.python(code, limits=limits(memory_bytes=400 * MIB, file_bytes=64 * MIB))
    assert ran.status == "DISK_LIMIT", ran.told()


async def test_the_code_under_test_cannot_change_the_tests(sandbox):
    solution = """
import os
answers = []
own = '/tests/test_solution.py'
more = '/tests/more.py'
for action in (lambda: open(own, 'a'), lambda: os.unlink(own), lambda: os.chmod(own, 0o777), lambda: open(more, 'w')):
    try:
        action()
    except OSError:
        answers.append('refused')
"""
    reply = await sandbox.tests(
        "import solution\ndef test_it(): assert solution.answers == ['refused'] * 4\n", solution
    )
    assert outcome(reply) == "PASSED", reply.report


@pytest.mark.parametrize(
    ("code", "given", "status"),
    [
        ("import time\ntime.sleep(60)", {"wall_time": 1}, "TIMED_OUT"),
        ("while True: pass", {"cpu_time": 1}, "CPU_LIMIT"),
        ("held = []\nwhile True: held.append(b'x' * 2 ** 20)", {"memory_bytes": 100 * MIB}, "MEMORY_LIMIT"),
        ("import os\nwhile True: os.write(1, b'x' * 65536)", {"output_bytes": MIB}, "OUTPUT_LIMIT"),
        ("file = open('x', 'wb', 0)\nwhile True: file.write(b'x' * 65536)", {"disk_bytes": 4 * MIB}, "DISK_LIMIT"),
        ("file = open('x', 'wb', 0)\nwhile True: file.write(b'x' * 65536)", {"file_bytes": MIB}, "DISK_LIMIT"),
        (
            "import os, time\nfor _ in range(40):\n    if not os.fork(): time.sleep(60)",
            {"processes": 16},
            "PROCESS_LIMIT",
        ),
        ("import os\nos.kill(os.getpid(), 11)", {}, "SIGNALED"),
        ("import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)", {}, "VIOLATION"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isupper() else None,
)
async def test_each_limit_has_its_status_and_the_next_job_runs(sandbox, code, given, status):
    ran = await sandbox.python(code, limits=limits(**given))
    assert ran.status == status, ran.told()
    assert (await sandbox.python("print('next')")).out == b"next\n"


async def test_jobs_do_not_reach_the_channel_of_their_container(sandbox):
    code = """
import os, struct
forged = struct.pack('!BI', 5, 15) + b'{"left": false}'
for pid in (name for name in os.listdir('/proc') if name.isdigit() and int(name) != os.getpid()):
    for number in range(16):
        try:
            os.write(os.open(f'/proc/{pid}/fd/{number}', os.O_WRONLY), forged)
        except OSError:
            pass
print('honest')
"""
    ran = await sandbox.python(code)
    assert (ran.status, ran.out) == ("SUCCEEDED", b"honest\n"), ran.told()


async def test_containers_are_made_as_the_design_says(sandbox):
    engine = docker.APIClient(base_url=f"unix://{ENGINE}", version="auto")
    await until(lambda: bool(containers_of(sandbox.pid)), GONE_SECONDS)
    name = next(iter(containers_of(sandbox.pid)))
    found = engine.inspect_container(name)
    engine.close()
    host = found["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["Memory"] == host["MemorySwap"] > 0
    assert host["PidsLimit"] > 0
    assert host["CpuQuota"] > 0
    assert host["Binds"] is None
    assert int(found["Config"]["User"].partition(":")[0]) > 0


async def test_nothing_is_left_of_jobs_and_of_the_service(runtime):
    async with sandbox_process(**SERVICE, SANDBOX_DOCKER_RUNTIME=runtime, SANDBOX_DOCKER_POOL="1") as service:
        pid = service.process.pid
        async with client(service.address, pid) as sandbox:
            seen = set(containers_of(pid).values())
            for code in ("print(1)", "import os; os._exit(1)", "import os; os.kill(1, 9); os.abort()"):
                await sandbox.python(code)
                seen |= set(containers_of(pid).values())
            call = sandbox.stream(SLEEP)
            assert (await call.read()).stdout_chunk == b"up\n"
            call.cancel()
            await until(lambda: len(containers_of(pid)) == 2, GONE_SECONDS)  # the warm ones: programs and tests
            seen |= set(containers_of(pid).values())
    assert containers_of(pid) == {}
    await until(lambda: not sandbox_processes(seen), GONE_SECONDS)


async def test_what_a_killed_service_left_is_gone_when_the_next_one_serves(runtime):
    async with sandbox_process(**SERVICE, SANDBOX_DOCKER_RUNTIME=runtime) as service:
        pid = service.process.pid
        async with client(service.address, pid) as sandbox:
            calls = [sandbox.stream(SLEEP) for _ in range(2)]
            for call in calls:
                assert (await call.read()).stdout_chunk == b"up\n"
            left = set(containers_of(pid).values())
            assert len(left) >= 2
            service.send(signal.SIGKILL)
            await service.ended()
    async with sandbox_process(**SERVICE, SANDBOX_DOCKER_RUNTIME=runtime):
        assert containers_of(pid) == {}
        await until(lambda: not sandbox_processes(left), GONE_SECONDS)


@pytest.mark.parametrize("reuse", [Reuse.SESSION, Reuse.TENANT])
async def test_jobs_of_one_lease_share_a_container_and_find_nothing_of_each_other(runtime, reuse):
    async with started(runtime, warm=1, reuse=reuse) as cells:
        ours, theirs = Lease("tenant", "one"), Lease("other", "two")
        assert await printed(cells, LEAVE, ours) == ""
        kept = cells.health()["kept_containers"]
        assert await printed(cells, LEFT, ours) == "[]\n0\n"
        assert (kept, cells.health()["kept_containers"]) == (1, 1)
        await printed(cells, "print(1)", theirs)
        assert cells.health()["kept_containers"] == 2


async def test_without_a_lease_no_two_jobs_share_a_container(runtime):
    async with started(runtime, warm=1, reuse=Reuse.SESSION) as cells:
        await printed(cells, "print(1)", Lease("tenant"))
        assert cells.health()["kept_containers"] == 0


async def test_no_two_jobs_get_one_container(runtime):
    code = (
        "import os, time\nopen('/dev/shm/%d' % os.getpid(), 'w')\ntime.sleep(0.5)\nprint(len(os.listdir('/dev/shm')))"
    )
    async with started(runtime, warm=2) as cells:
        answers = await asyncio.gather(*(printed(cells, code, Lease("tenant")) for _ in range(5)))
        assert answers == ["1\n"] * 5


async def test_the_pool_refills_after_a_warm_container_was_taken_or_died(runtime):
    async with started(runtime, warm=1) as cells:
        await until(lambda: cells.health()["warm_containers"] == 2, GONE_SECONDS)  # one for programs, one for tests
        await printed(cells, "print(1)", Lease())
        await until(lambda: cells.health()["warm_containers"] == 2, GONE_SECONDS)
        result = (await cells.run(script("import os\nos.kill(1, 9)\nos.abort()"))).result
        assert result.status in (Status.SIGNALED, Status.FAILED)
        await until(lambda: cells.health()["warm_containers"] == 2, GONE_SECONDS)
        assert cells.health()["container_failures"] == 0


async def test_a_job_larger_than_the_warm_containers_gets_one_of_its_size(runtime):
    large = replace(DEFAULT_LIMITS, memory_bytes=900 * MIB, disk_bytes=300 * MIB, wall_time=timedelta(seconds=60))
    code = "held = b'x' * (700 * 2 ** 20)\nopen('x', 'wb').write(b'x' * (60 * 2 ** 20))\nprint(len(held) >> 20)"
    async with started(runtime, warm=1) as cells:
        result = (await cells.run(script(code, limits=large))).result
        assert (result.status, result.stdout.head) == (Status.SUCCEEDED, b"700\n"), result


async def test_a_session_keeps_its_files_from_job_to_job(sandbox):
    made = await sandbox.stub.CreateSession(sessions_pb2.CreateSessionRequest())
    for code, out in (("open('kept', 'w').write('x')", b""), ("print(open('kept').read())", b"x\n")):
        program = pb.Program(files=[pb.File(path="main.py", content=code.encode())], entry="main.py")
        reply = await sandbox.stub.Execute(pb.ExecuteRequest(program=program, session=made.session.id))
        assert reply.result.stdout.head == out, reply


async def test_an_engine_that_stops_answering_makes_jobs_unavailable_and_never_holds_them(runtime, tmp_path):
    async with (
        passage(tmp_path / "engine") as way,
        sandbox_process(
            **SERVICE, SANDBOX_DOCKER_RUNTIME=runtime, SANDBOX_DOCKER_POOL="0", DOCKER_HOST=f"unix://{tmp_path}/engine"
        ) as service,
        client(service.address, service.process.pid) as sandbox,
    ):
        assert (await sandbox.python("print(1)")).out == b"1\n"
        way.block()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await sandbox.python("print(1)", seconds=60)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert error_detail(caught.value, error_details_pb2.RetryInfo) is not None
        way.unblock()
        for _try in range(200):  # as a caller retries: the service looks at such an engine again after two seconds
            try:
                ran = await sandbox.python("print(1)")
            except grpc.aio.AioRpcError as error:
                await asyncio.sleep(
                    error_detail(error, error_details_pb2.RetryInfo).retry_delay.ToTimedelta().total_seconds()
                )
            else:
                break
        assert ran.out == b"1\n"


async def test_a_service_without_an_engine_says_so_at_once(tmp_path):
    with pytest.raises(AssertionError, match=r"no container engine at unix://.*absent"):
        async with sandbox_process(**SERVICE, DOCKER_HOST=f"unix://{tmp_path}/absent"):
            pass


async def test_an_engine_that_never_answers_stops_the_start_in_time(runtime, tmp_path):
    async with passage(tmp_path / "engine") as way:
        way.block()
        cells = DockerCells(DockerOptions(runtime=runtime, image=IMAGE, host=f"unix://{tmp_path}/engine"))
        async with asyncio.timeout(30):
            with pytest.raises(CellUnavailable, match="did not answer in time"):
                await cells.start()


async def test_a_runtime_or_an_image_that_is_missing_is_named(runtime):
    for options, words in (
        ({"runtime": "none-such"}, "no runtime 'none-such'"),
        ({"image": "none-such:1"}, "no image"),
    ):
        cells = DockerCells(DockerOptions(**{"runtime": runtime, "image": IMAGE, **options}))
        with pytest.raises(CellUnavailable, match=words):
            await cells.start()


async def test_an_image_of_another_guest_is_refused(runtime):
    cells = DockerCells(DockerOptions(runtime=runtime, image=IMAGE.partition(":")[0] + "-base:bookworm"))
    with pytest.raises(CellUnavailable, match="rebuild it with make sandbox-image"):
        await cells.start()


async def test_tests_of_a_killed_container_are_no_pass(runtime):
    async with started(runtime, warm=0) as cells:
        run = Tests(
            DEFAULT_LIMITS,
            files=(File("solution.py", b"import os\nos.kill(1, 9)\nos._exit(0)\n"),),
            tests=(File("test_it.py", b"import solution\ndef test_it(): pass\n"),),
        )
        outcome_of = await cells.run(run)
        assert outcome_of.report is not None
        assert outcome_of.report.outcome != "PASSED"
