"""Before it serves, the service proves on itself that limits and walls bite: machines where one does not."""

import asyncio
import os
import shutil
import signal
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from codemend.sandbox.v1 import sandbox_pb2 as pb
from support import looking
from support.jobs import client
from support.looking import seen
from support.service import service_process

from sandbox_service import cells
from sandbox_service.cells import ProcessCells, canaries
from sandbox_service.domain import DEFAULT_LIMITS, NO_LEASE, File, Program, Protection, Status
from sandbox_service.errors import CellUnavailable

REFUSED = {"EPERM", "EACCES", "EINVAL", "EROFS", "ENOSPC", "EUSERS", "ENOENT"}


def elsewhere(controller: str) -> tuple[str, ...]:
    """A command that starts the service where a controller's files are another's, so that its limits do nothing."""
    hide = f"mount --bind /sys/fs/cgroup/freezer /sys/fs/cgroup/{controller}"
    return (
        str(shutil.which("unshare")),
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-ec",
        f'{hide}\nexec "$@"',
        "sh",
    )


@asynccontextmanager
async def started(*through: str, **env: str):
    address = ["--address", "127.0.0.1:0"]
    async with (
        service_process("sandbox_service", address, env, without=("SANDBOX_",), through=through) as service,
        client(service.address, service.process.pid) as sandbox,
    ):
        yield service, sandbox


@pytest.fixture
def deaf_memory(require) -> tuple[str, ...]:
    """A machine whose memory limits are taken and never bite."""
    if not Path("/sys/fs/cgroup/freezer/tasks").exists():
        pytest.skip("only control groups of version 1 can be mistaken for one another")
    require(os.geteuid() == 0 and shutil.which("unshare"), "root and unshare (util-linux)")
    return elsewhere("memory")


async def test_a_limit_that_does_not_bite_keeps_the_service_from_serving(deaf_memory):
    with pytest.raises(AssertionError) as caught:
        async with started(*deaf_memory):
            pass
    assert "the start-up proof failed: memory_limit: MEMORY_LIMIT was expected, seen was SUCCEEDED" in str(caught.value)


async def test_unless_the_operator_allows_it_and_then_every_reply_says_so(deaf_memory):
    async with started(*deaf_memory, SANDBOX_ALLOW_DEGRADED="memory_cgroup") as (service, sandbox):
        reply = await sandbox.stub.GetCapabilities(pb.GetCapabilitiesRequest(), timeout=10)
        told = {wall.name: wall for wall in reply.protections}["memory_cgroup"]
        assert not told.in_force
        assert "failed its start-up proof" in told.detail
        isolation = (await sandbox.python("pass")).result.isolation.protections
        assert "memory_cgroup" not in isolation
        assert set(isolation) == await sandbox.in_force()
        assert "a canary lived" in service.log()


async def test_what_is_required_cannot_be_allowed_away(deaf_memory):
    with pytest.raises(AssertionError, match="required, and not in force here: memory_cgroup"):
        async with started(*deaf_memory, SANDBOX_ALLOW_DEGRADED="memory_limit", SANDBOX_REQUIRE="memory_cgroup"):
            pass


async def test_an_unknown_name_among_the_allowed_ones_is_an_error():
    with pytest.raises(AssertionError, match=r"SANDBOX_ALLOW_DEGRADED: unknown: memry; known: .*memory_limit"):
        async with started(SANDBOX_ALLOW_DEGRADED="memry"):
            pass


@pytest.fixture
async def unfiltered(tmp_path):
    """A service on a machine that lacks the binding of libseccomp."""
    (tmp_path / "pyseccomp.py").write_text("raise RuntimeError('Unable to find libseccomp')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    async with started(PYTHONPATH=path) as (_service, sandbox):
        yield sandbox


async def test_without_libseccomp_it_says_so_and_how_to_mend_it(unfiltered):
    reply = await unfiltered.stub.GetCapabilities(pb.GetCapabilitiesRequest(), timeout=10)
    told = {wall.name: wall for wall in reply.protections}["seccomp"]
    assert not told.in_force
    assert "libseccomp2" in told.detail


async def test_without_a_filter_the_other_walls_still_refuse_every_power(unfiltered):
    found = await seen(unfiltered, looking.FORBIDDEN_POWERS)
    assert set(found.values()) <= REFUSED, found
    found = await seen(unfiltered, looking.INSIDE_A_NEW_USER_NAMESPACE)
    found.pop("user")  # whether one can be made is the kernel's setting; what matters is what it gives
    assert set(found.values()) <= REFUSED, found


async def test_a_program_that_ends_itself_by_sigsys_is_no_violation():
    async with started() as (_service, sandbox):
        ran = await sandbox.python("import os, signal\nos.kill(os.getpid(), signal.SIGSYS)")
        assert (ran.status, ran.result.signal) == ("SIGNALED", signal.SIGSYS)


class Boasting(ProcessCells):
    """Cells that claim more than they have."""

    def protections(self):
        return [replace(wall, in_force=True) for wall in super().protections()]


@pytest.fixture
async def boasting(monkeypatch):
    """Cells without a filter of system calls and without control groups, which claim both."""
    monkeypatch.setattr("sandbox_service.cells.filters.build", lambda **_: cells.filters.Filters(missing="not built"))
    monkeypatch.setattr("sandbox_service.cells.cgroups.find", lambda: None)
    kind = Boasting()
    await kind.start()
    yield kind
    await kind.stop()


async def test_claims_are_not_believed(boasting):
    with pytest.raises(CellUnavailable) as caught:
        await cells.prove(boasting)
    assert "forbidden_call: VIOLATION was expected, seen was" in str(caught.value)


async def test_what_was_allowed_to_fail_is_taken_back(boasting):
    missing = await cells.prove(boasting, frozenset({"seccomp", "pids_cgroup"}))
    assert set(missing) == {"seccomp"}, "the number of processes is held without a control group too"
    boasting.degrade(missing)
    told = {wall.name: wall for wall in ProcessCells.protections(boasting)}
    assert not told["seccomp"].in_force
    assert "VIOLATION was expected" in told["seccomp"].detail
    program = Program(DEFAULT_LIMITS, files=(File("main.py", b"pass"),), entry="main.py")
    assert "seccomp" not in (await boasting.run(program)).result.isolation.protections


class Leaking(ProcessCells):
    """Cells whose jobs leave a daemon on the host."""

    left: list[asyncio.subprocess.Process]

    async def run(self, job, sink=None, *, lease=NO_LEASE):
        if isinstance(job, Program) and b"setsid" in job.files[0].content:
            marker = job.files[0].content.decode().partition('"sleep", "')[2].partition('"')[0]
            self.left.append(await asyncio.create_subprocess_exec("sleep", marker))
        return await super().run(job, sink, lease=lease)


async def test_a_daemon_that_outlives_its_job_is_found(monkeypatch):
    monkeypatch.setattr(canaries, "_GONE_S", 0.2)
    kind = Leaking()
    kind.left = []
    await kind.start()
    try:
        with pytest.raises(CellUnavailable, match="clean_up: a daemon of a job was expected to end with it"):
            await cells.prove(kind)
    finally:
        for process in kind.left:
            process.kill()
            await process.wait()
        await kind.stop()


@pytest.fixture(scope="module")
async def kind():
    made = ProcessCells()
    await made.start()
    yield made
    await made.stop()


async def test_an_honest_kind_passes(kind):
    assert await cells.prove(kind) == {}


def test_protections_that_nobody_knew_are_told_as_missing():
    found = cells.protections.without([Protection("seccomp", True, "a list")], {"clean_up": "why", "seccomp": "broken"})
    assert found == (Protection("seccomp", False, "broken"), Protection("clean_up", False, "why"))


@pytest.mark.parametrize("canary", canaries.CANARIES, ids=lambda canary: canary.name)
async def test_each_canary_dies_as_it_should(kind, canary):
    claimed = {wall.name for wall in kind.protections() if wall.in_force}
    program = Program(canary.limits, files=(File("main.py", canary.code.encode()),), entry="main.py")
    status = (await kind.run(program)).result.status
    assert status in {canary.expected, canary.without}
    if canary.guard in claimed:
        assert status is canary.expected
    assert status is not Status.SUCCEEDED
