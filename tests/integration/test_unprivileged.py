"""A service without root: fewer walls, told as such, and the same answers to jobs that harm."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent

import pytest
from support import looking, nasty
from support.footprint import alive, footprint, processes
from support.jobs import client, limits, outcome
from support.looking import seen
from support.service import ServiceProcess
from support.waiting import until

ROOT = Path(__file__).parents[2]
NOBODY = 65534
START_SECONDS = 30
AS_NOBODY = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
NOT_WITHOUT_ROOT = {"own_uid", "memory_cgroup", "pids_cgroup", "cpu_cgroup"}
USABLE = """
import grpc, google.protobuf, pydantic_settings, pytest, sandbox_service, codemend.sandbox.v1.sandbox_pb2
import os, sys
assert os.access(sys._base_executable, os.X_OK) and os.access(sys.base_prefix, os.R_OK)
"""


def environment() -> dict[str, str]:
    """Variables that let an interpreter of the system find the checkout and the packages that the tests run with."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "protos"), *packages]), "PYTHONDONTWRITEBYTECODE": "1"}


def interpreter() -> str:
    """An interpreter of this version that another user may start and that can import the service; empty: none."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        if not Path(candidate).exists():
            continue
        try:
            tried = subprocess.run(
                [*AS_NOBODY, candidate, "-c", USABLE],
                env=environment(),
                capture_output=True,
                timeout=60,
                check=False,
                cwd="/",
            )
        except OSError:
            continue
        if tried.returncode == 0:
            return candidate
    return ""


@pytest.fixture(scope="module")
def python(require) -> str:
    require(os.geteuid() == 0, "only root can start a service as somebody else")
    require(shutil.which("setpriv"), "setpriv (util-linux)")
    found = interpreter()
    require(found, f"a python of this version that user {NOBODY} may start, such as /usr/bin/python3.11")
    return found


@pytest.fixture(scope="module")
async def service(python):
    with tempfile.TemporaryDirectory(prefix="codemend-nobody-") as name:
        folder = Path(name)
        os.chown(folder, NOBODY, NOBODY)
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(*AS_NOBODY, python, "-m", "sandbox_service", "--address", "127.0.0.1:0"),
                *("--ready-file", str(folder / "address")),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**environment(), "SANDBOX_CONCURRENCY": "2", "TMPDIR": name, "PATH": os.environ["PATH"]},
            )
        try:
            address = folder / "address"
            await until(lambda: address.exists() or process.returncode is not None, START_SECONDS)
            assert address.exists(), (folder / "log").read_text()
            yield ServiceProcess(address.read_text(), process, folder)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), START_SECONDS)


@pytest.fixture(scope="module")
async def sandbox(service):
    async with client(service.address, service.process.pid) as made:
        yield made


@pytest.fixture(scope="module")
async def at_start(sandbox):
    assert (await sandbox.python("print('first')")).out == b"first\n"
    return footprint(sandbox.pid)


async def test_capabilities_and_replies_say_what_is_not_in_force(sandbox):
    ran = await sandbox.python("pass")
    in_force = await sandbox.in_force()
    assert not in_force & NOT_WITHOUT_ROOT
    assert in_force >= {"user_namespace", "mount_namespace", "pid_namespace", "network_namespace", "no_capabilities"}
    assert set(ran.result.isolation.protections) == in_force


async def test_the_log_warns_of_each_wall_that_is_missing(service):
    assert all(f'"protection": "{name}"' in service.log() for name in NOT_WITHOUT_ROOT)


@pytest.mark.parametrize("case", [case for case in nasty.ALL if not case.needs], ids=lambda case: case.name)
async def test_a_harmful_job_ends_in_time_with_its_status_and_nothing_is_left(sandbox, at_start, case):
    ran = await sandbox.python(case.code, limits=limits(**case.limits), **case.fields)
    assert ran.status in case.statuses, ran.told()
    assert case.check(ran), ran.told()
    assert ran.wall_seconds <= case.wall_seconds + 1, ran.told()
    assert ran.seconds <= case.wall_seconds + 3, ran.told()
    await until(lambda: not footprint(sandbox.pid).beyond(at_start), 2)
    following = await sandbox.python("import os; print(os.listdir('.'), os.listdir('/tmp'), os.listdir('/dev/shm'))")
    assert following.out == b"['main.py'] [] []\n", following.told()


@pytest.mark.parametrize(
    ("bomb", "status"),
    [
        ("import os\nwhile True: os.fork()", {"FAILED", "PROCESS_LIMIT", "TIMED_OUT"}),
        ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", {"TIMED_OUT"}),
    ],
)
async def test_a_fork_bomb_is_held_by_the_rlimit(sandbox, at_start, bomb, status):
    ran = await sandbox.python(bomb, limits=limits(wall_time=2))
    assert ran.status in status, ran.told()
    assert ran.seconds < 5
    await until(lambda: not footprint(sandbox.pid).beyond(at_start), 2)


async def test_there_is_no_network(sandbox, tmp_path):
    code = looking.NETWORK.format(port=9, abstract="none", path=str(tmp_path / "none"), host="192.0.2.1")
    found = await seen(sandbox, code)
    assert (found.pop("own loopback"), found.pop("localhost")) == ("'connected'", "'127.0.0.1'")
    assert set(found.values()) <= {"ECONNREFUSED", "ENETUNREACH", "ENOENT", "gaierror"}, found


async def test_the_host_is_out_of_sight(sandbox):
    paths = [
        "/etc/shadow",
        "/root/.bashrc",
        str(ROOT / "pyproject.toml"),
        f"/proc/{sandbox.pid}/environ",
        "/proc/1/environ",
    ]
    found = await seen(sandbox, looking.FILES.format(paths=paths))
    assert set(found.values()) <= {"FileNotFoundError", "ENOENT", "EACCES", "EPERM"}, found
    status = await seen(sandbox, looking.STATUS)
    assert {int(value, 16) for name, value in status["status"].items() if name.startswith("Cap")} == {0}
    assert status["status"]["NoNewPrivs"] == "1"
    assert len(status["processes"]) <= 2
    assert status["interfaces"] == ["lo"]
    assert status["uid"] == 1000


async def test_nothing_outside_the_places_for_writing_can_be_written(sandbox):
    found = await seen(sandbox, looking.WRITES)
    refused = {"EPERM", "EACCES", "EROFS", "ENOENT", "EINVAL"}
    assert {place for place, what in found.items() if what not in refused} == {"/tmp", "/work"}, found


async def test_no_power_is_left(sandbox):
    found = await seen(sandbox, looking.POWERS)
    assert set(found.values()) <= {"EPERM", "EACCES", "EROFS", "EINVAL", "ENOSPC", "ValueError", "EAFNOSUPPORT"}, found


async def test_memory_that_nobody_would_count_cannot_be_had(sandbox):
    found = await seen(sandbox, "found['file in memory'] = attempt(os.memfd_create, 'x')")
    assert found == {"file in memory": "ENOSYS"}


async def test_no_process_can_hide_from_the_one_that_sums_up_memory(sandbox):
    code = """
prctl = ctypes.CDLL(None).prctl
prctl.argtypes = [ctypes.c_ulong] * 5
found['asked'] = prctl(4, 0, 0, 0, 0), prctl((1 << 32) + 4, 0, 0, 0, 0)
found['dumpable'] = prctl(3, 0, 0, 0, 0)
found['other options'] = prctl(15, ctypes.addressof(ctypes.create_string_buffer(b'name')), 0, 0, 0)
"""
    assert await seen(sandbox, code) == {"asked": [0, 0], "dumpable": 1, "other options": 0}


async def test_nothing_is_kept_and_another_job_is_out_of_reach(sandbox):
    kept = await seen(sandbox, looking.KEEP)
    assert all(kept.values()), kept
    found = await seen(sandbox, looking.FIND_KEPT)
    assert found.pop("/work") == ["main.py"]
    assert not any(found.values()), found


async def test_tests_report_as_they_do_with_root(sandbox):
    tests = dedent("""
        from solution import f
        def test_a(): assert f(1) == 2
        def test_b(): assert f(1) == 3
    """)
    reply = await sandbox.tests(tests, "def f(x): return x + 1\n")
    assert outcome(reply) == "FAILED"
    assert (reply.report.counts.passed, reply.report.counts.failed) == (1, 1)


async def test_a_cancelled_call_s_job_is_gone_within_a_second(sandbox, at_start):
    call = sandbox.stream("import os\nos.fork()\nprint('up', flush=True)\nwhile True: pass")
    assert b"up\n" in (await call.read()).stdout_chunk
    call.cancel()
    await until(lambda: not footprint(sandbox.pid).beyond(at_start), 1)


@pytest.mark.parametrize(
    "code",
    [
        "const kept = []; for (;;) kept.push(Buffer.alloc(1 << 20, 1));",
        "const kept = []; for (;;) kept.push([kept.length]);",
    ],
)
async def test_node_runs_and_its_memory_is_limited_without_a_control_group(sandbox, require, code):
    require(shutil.which("node"), "node is not installed: apt-get install nodejs")
    ran = await sandbox.run({"a.js": "console.log(6 * 7)"}, "a.js", language="node")
    assert (ran.status, ran.out) == ("SUCCEEDED", b"42\n"), ran.told()
    ran = await sandbox.run({"a.js": code}, "a.js", language="node", limits=limits(memory_bytes=256 << 20))
    assert ran.status == "MEMORY_LIMIT", ran.told()
    tests = {"a.test.js": "require('node:test')('a', () => require('node:assert').equal(require('./code').x, 1));"}
    reply = await sandbox.tests(tests, {"code.js": "exports.x = 1"}, language="node")
    assert outcome(reply) == "PASSED", reply


async def test_a_killed_service_takes_its_jobs_with_it(service, sandbox):  # last: no test after it has a service
    call = sandbox.stream("print('up', flush=True)\nimport time\ntime.sleep(100)")
    assert (await call.read()).stdout_chunk == b"up\n"
    started = processes(sandbox.pid)
    assert len(started) >= 6
    service.send(signal.SIGKILL)
    await until(lambda: not alive(started), 2)
