"""What a job sees of the machine, of the service and of other jobs: nothing."""

import asyncio
import secrets
import socket
import threading
from pathlib import Path

import pytest
from support import looking
from support.footprint import JOB_UIDS, host_uid, processes
from support.jobs import client
from support.looking import seen
from support.sandbox import sandbox_process
from support.waiting import until

SECRET = f"service-{secrets.token_hex(16)}"
CHECKOUT = Path(__file__).parents[2]
REFUSED = {"EPERM", "EACCES", "EROFS", "ENOENT", "ENOTDIR", "EINVAL", "ENOSPC", "EUSERS", "ENODEV", "EISDIR"}


@pytest.fixture(scope="module")
async def sandbox():
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="2", SERVICE_SECRET=SECRET) as service,
        client(service.address, service.process.pid) as made,
    ):
        yield made


async def test_files_of_the_host_are_not_there(sandbox, tmp_path):
    marker = tmp_path / "marker"
    marker.write_text("host")
    marker.chmod(0o644)
    paths = [
        "/etc/shadow",
        "/root/.bashrc",
        "/root/.profile",
        "/etc/machine-id",
        "/var/log/dpkg.log",
        "/etc/ssl/openssl.cnf",
    ]
    paths += ["/proc/1/environ", "/proc/kcore", "/dev/mem", "/dev/kmsg", "/dev/sda", "/run/docker.sock", str(marker)]
    paths += [str(CHECKOUT / "pyproject.toml"), f"/proc/{sandbox.pid}/environ", str(Path.home() / ".gitconfig")]
    found = await seen(sandbox, looking.FILES.format(paths=paths))
    assert set(found.values()) <= {"FileNotFoundError", "ENOENT", "EACCES", "EPERM"}, found


async def test_the_root_holds_the_system_and_nothing_of_its_owner(sandbox):
    found = await seen(sandbox, looking.TREE)
    assert found["home"] == ["job"]
    assert found["run"] == []
    assert set(found["devices"]) == {
        "null",
        "zero",
        "full",
        "random",
        "urandom",
        "shm",
        "fd",
        "stdin",
        "stdout",
        "stderr",
    }
    assert not {"shadow", "ssh", "ssl", "cron.d", "machine-id", "sudoers"} & set(found["etc"])
    assert not {"boot", "mnt", "media", ".old"} & set(found["root"])


async def test_nothing_outside_the_places_for_writing_can_be_written(sandbox):
    found = await seen(sandbox, looking.WRITES)
    writable = {place for place, what in found.items() if what not in REFUSED}
    assert writable == {"/tmp", "/work"}, found


async def test_the_places_for_writing_can_be_written(sandbox):
    code = "for place in ('/work', '/tmp', '/var/tmp', '/dev/shm', '/home/job'): open(f'{place}/x', 'w').close()"
    assert await seen(sandbox, code) == {}


async def test_no_power_is_left(sandbox):
    found = await seen(sandbox, looking.POWERS)
    assert set(found.values()) <= REFUSED | {"ValueError", "EAFNOSUPPORT"}, found


async def test_identity_capabilities_descriptors_and_processes_are_the_job_s_own(sandbox):
    found = await seen(sandbox, looking.STATUS)
    status = found["status"]
    assert {name: int(status[name], 16) for name in status if name.startswith("Cap")} == dict.fromkeys(
        ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0
    )
    assert status["NoNewPrivs"] == "1"
    assert (found["uid"], found["gid"]) == (1000, 1000)
    assert 0 not in found["groups"]
    assert found["host"] == "cell" != socket.gethostname()
    assert len(found["processes"]) <= 2
    assert found["descriptors"] == [0, 1, 2]
    assert set(found["parent"].values()) <= {"EACCES", "ENOENT", "EPERM"}
    assert found["parent root"] in {"EACCES", "ENOENT", "EPERM"}
    assert found["interfaces"] == ["lo"]
    assert found["session"]


async def test_the_environment_is_the_cell_s_own_and_what_was_given(sandbox):
    environment = (await seen(sandbox, looking.STATUS, env={"GIVEN": "yes", "HOME": "/tmp"}))["environment"]
    assert {name: environment.pop(name) for name in ("GIVEN", "HOME", "USER", "LANG", "TMPDIR", "MPLBACKEND")} == {
        "GIVEN": "yes", "HOME": "/tmp", "USER": "job", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "MPLBACKEND": "Agg",
    }  # fmt: skip
    threads = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"}
    assert set(environment) == {"PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", *threads}


async def test_the_environment_of_an_exec_ed_program_is_as_clean(sandbox):
    ran = await sandbox.command("env")
    names = {line.partition("=")[0] for line in ran.out.decode().splitlines()}
    assert names <= {
        "PATH",
        "HOME",
        "USER",
        "LANG",
        "TMPDIR",
        "MPLBACKEND",
        "PYTHONPATH",
        "PYTHONDONTWRITEBYTECODE",
    } | {name for name in names if name.endswith("_NUM_THREADS")}


@pytest.fixture
def listeners(tmp_path):
    """A host's services: on loopback, on an abstract socket and on a socket file. Counts who comes."""
    tcp = socket.create_server(("127.0.0.1", 0))
    abstract, path = f"codemend-{secrets.token_hex(8)}", str(tmp_path / "socket")
    sockets = [tcp]
    for address in (f"\0{abstract}", path):
        sockets.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sockets[-1].bind(address)
        sockets[-1].listen()
    yield {"port": tcp.getsockname()[1], "abstract": abstract, "path": path, "sockets": sockets}
    for opened in sockets:
        opened.close()


async def test_there_is_no_network_but_the_job_s_own_loopback(sandbox, listeners):
    opened = listeners.pop("sockets")
    for listener in opened:
        listener.settimeout(0)
    found = await seen(sandbox, looking.NETWORK.format(**listeners, host=_address_of_host()))
    assert (found.pop("own loopback"), found.pop("localhost")) == ("'connected'", "'127.0.0.1'")
    assert set(found.values()) <= {"ECONNREFUSED", "ENETUNREACH", "ENOENT", "gaierror"}, found
    for listener in opened:
        with pytest.raises(BlockingIOError):
            listener.accept()


def _address_of_host() -> str:
    """An address of this machine that is not loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            handle.connect(("192.0.2.1", 9))  # sends nothing: it only chooses the address
        except OSError:
            return "127.0.0.2"
        return handle.getsockname()[0]


def test_the_listeners_can_be_reached_from_the_host(listeners):
    opened = listeners["sockets"]
    for listener, family, address in zip(
        opened,
        (socket.AF_INET, socket.AF_UNIX, socket.AF_UNIX),
        (("127.0.0.1", listeners["port"]), f"\0{listeners['abstract']}", listeners["path"]),
        strict=True,
    ):
        taken: list[object] = []
        thread = threading.Thread(target=lambda found=taken, server=listener: found.append(server.accept()[0].close()))
        thread.start()
        with socket.socket(family, socket.SOCK_STREAM) as handle:
            handle.connect(address)
        thread.join(5)
        assert taken == [None]


async def test_neither_the_service_s_secrets_nor_another_job_s_are_in_its_memory(sandbox):
    other = f"job-{secrets.token_hex(16)}"
    own = f"own-{secrets.token_hex(16)}"
    holding = f"secret = {other!r}\nprint('up', flush=True)\nimport time\ntime.sleep(20)"
    call = sandbox.stream(holding, env={"OTHER": other})
    assert (await call.read()).stdout_chunk == b"up\n"
    nowhere = f"none-{secrets.token_hex(16)}"  # found where the search itself holds it, and no more often
    marks = [mark[::-1] for mark in (SECRET, other, own, nowhere)]
    search = looking.MEMORY_SEARCH.format(reversed_marks=marks)
    found = await seen(sandbox, f"mine = {own[::-1]!r}[::-1]\n{search}")
    call.cancel()
    service, of_other, of_own, of_nowhere = found["hits"]
    assert (service, of_other) == (of_nowhere, of_nowhere)
    assert of_own > of_nowhere  # the search does find what is there


async def test_nothing_is_kept_from_one_job_to_the_next(sandbox):
    kept = await seen(sandbox, looking.KEEP)
    assert all(kept.values()), kept
    found = await seen(sandbox, looking.FIND_KEPT)
    assert found.pop("/work") == ["main.py"]
    assert not any(found.values()), found


async def test_a_running_job_is_out_of_reach_of_another(sandbox):
    name = f"mark-{secrets.token_hex(8)}"
    holding = f"""
import time
for place in ('/work', '/tmp', '/dev/shm', '/home/job'): open(f'{{place}}/{name}', 'w').write('x')
print('up', flush=True)
time.sleep(1)
print('still here')"""
    call = sandbox.stream(holding)
    assert (await call.read()).stdout_chunk == b"up\n"
    found = await seen(sandbox, looking.FIND_OTHER)
    assert found == {"files": [], "processes": [], "killed": "ESRCH"}
    assert (await call.read()).stdout_chunk == b"still here\n"
    assert (await call.read()).result.exit_code == 0


async def test_on_the_host_each_running_job_has_a_user_id_of_its_own(sandbox, require):
    require("own_uid" in await sandbox.in_force(), "own_uid not in force here")
    calls = [sandbox.stream("print('up', flush=True)\nimport time\ntime.sleep(20)") for _ in range(2)]
    for call in calls:
        assert (await call.read()).stdout_chunk == b"up\n"
    owners = lambda: {host_uid(pid) for pid in processes(sandbox.pid)} & set(JOB_UIDS)  # noqa: E731 - asked repeatedly
    await until(lambda: len(owners()) == 2)  # cells of earlier jobs may still be ending
    for call in calls:
        call.cancel()


async def test_a_job_cannot_reach_its_init_process(sandbox):
    code = """
for number in (1, 2, 9, 15, 19):
    found[f'signal {number}'] = attempt(os.kill, 1, number)
found['readable'] = attempt(lambda: os.listdir('/proc/1/fd'))
"""
    found = await seen(sandbox, code)
    assert found["readable"] in {"EACCES", "EPERM", "ENOENT"}


@pytest.mark.parametrize("limit", ["RLIMIT_CPU", "RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_AS"])
async def test_a_job_that_starves_its_init_process_gets_a_result_that_is_no_lie(sandbox, limit):
    code = "import resource, sys, time\nopen('x.txt', 'w').write('x')\n"
    code += f"resource.prlimit(1, resource.{limit}, (0, 0))\ntime.sleep(0.05)\nsys.exit(3)"
    ran = await sandbox.python(code, collect=["*.txt"])
    assert ran.status in {"FAILED", "SIGNALED"}, ran.told()
    assert (await sandbox.python("print('next')")).out == b"next\n"


async def test_many_jobs_at_once_do_not_mix(sandbox):
    code = "import os, time\nopen('n', 'w').write('{0}')\ntime.sleep(0.05)\n"
    code += "print(open('n').read(), sorted(os.listdir('/work')))"
    replies = await asyncio.gather(*(sandbox.python(code.format(number)) for number in range(12)))
    assert [reply.out.decode() for reply in replies] == [f"{number} ['main.py', 'n']\n" for number in range(12)]
