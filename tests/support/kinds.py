"""Every kind of cell, each as one running service with all that a test needs to attack it and to look at what it left.

Starting a kind fails with `MissingError` where this machine lacks what it needs. The service inside a gVisor pod is
started by `support.pods`.
"""

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sandbox_service.languages import LANGUAGES
from support import engine, pods
from support.footprint import Footprint, alive, footprint, processes
from support.jobs import Sandbox, client
from support.sandbox import sandbox_process
from support.scraped import Families, families, metrics_address
from support.waiting import until

ROOT = Path(__file__).parents[2]
START_SECONDS = 60
NOBODY = 65534
PLACES = 4
"""Jobs that such a service runs at one time, where the test says nothing else."""
_COMMON = {"SANDBOX_CONCURRENCY": str(PLACES), "SANDBOX_METRICS_ADDRESS": "127.0.0.1:0"}
_SCRAPE = """python3 -c "
from http.client import HTTPConnection
there = HTTPConnection('{0}', {1}, timeout=20)
there.request('GET', '/metrics')
print(there.getresponse().read().decode())" """
_KEPT = 32
"""The most containers that are kept for the next job of their tenant."""
_WARM = 3
"""Containers of each template that a service with docker cells keeps ready here."""
_AS_NOBODY = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
_USABLE = "import grpc, pydantic_settings, pytest, sandbox_service, codemend.sandbox.v1.sandbox_pb2, os, sys\n"
_USABLE += "assert os.access(sys._base_executable, os.X_OK) and os.access(sys.base_prefix, os.R_OK)"

Leftovers = dict[str, list[str]]


class MissingError(Exception):
    """This machine lacks what a kind of cell needs; the text says what."""


@dataclass(frozen=True)
class Canary:
    """What belongs to the host and no job may reach.

    Attributes:
        told: where the host's own services listen and where its files lie, for programs that look for them.
        hits: visitors that those services have had so far.
        secret: what the service has in its environment.
    """

    told: Mapping[str, object]
    hits: Callable[[], list[str]]
    secret: str


@dataclass(frozen=True)
class Running:
    """One service of one kind.

    Attributes:
        canary: what no job may reach.
        beyond: what is there beside what was there when the service had started, by kind of thing.
        kill: ends the service with SIGKILL, and returns when it has ended.
        traces: what is on this machine of the service and its jobs, whether it lives or not.
        shell: runs a command line on the service's own machine (in its pod, where it has one) and returns the output.
        log: what the service has logged so far.
    """

    kind: str
    sandbox: Sandbox
    canary: Canary
    beyond: Callable[[], Leftovers]
    kill: Callable[[], Awaitable[None]]
    traces: Callable[[], Leftovers]
    shell: Callable[[str], str]
    log: Callable[[], str]

    def metrics(self) -> Families:
        """What a scraper on the service's own machine reads."""
        return families(self.shell(_SCRAPE.format(*metrics_address(self.log()))))

    async def leftovers(self, seconds: float = 4) -> Leftovers:
        """What is left once everything that ends by itself has had the time to."""
        try:
            await until(lambda: not self.beyond(), seconds)
        except TimeoutError:
            return self.beyond()
        return {}


@asynccontextmanager
async def canaries(folder: Path, secret: str) -> AsyncIterator[Canary]:
    """Starts services on this machine that no job may reach."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "support.canary", str(folder), env={**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    )
    try:
        told = folder / "canary.json"
        await until(lambda: told.exists() or process.returncode is not None, START_SECONDS)
        yield _canary(folder, secret)
    finally:
        process.kill()
        await process.wait()


def _canary(folder: Path, secret: str) -> Canary:
    told = json.loads((folder / "canary.json").read_text())
    return Canary(told, lambda: (folder / "hits").read_text().split("\n")[:-1], secret)


@asynccontextmanager
async def process_cells(**env: str) -> AsyncIterator[Running]:
    """Process cells of a service that is root on this machine."""
    if os.geteuid() != 0:
        raise MissingError("only root can start a service with all its walls")
    secret = _mark("service")
    with tempfile.TemporaryDirectory(prefix="codemend-canary-") as place, tempfile.TemporaryDirectory() as temporary:
        settings = {**_COMMON, "SERVICE_SECRET": secret, "TMPDIR": temporary, **env}
        async with (
            canaries(Path(place), secret) as canary,
            sandbox_process(**settings) as service,
            client(service.address, service.process.pid) as sandbox,
        ):
            kill = partial(_kill, service.process)
            yield await _on_this_machine("process", sandbox, Path(temporary), canary, (kill, service.log))


@asynccontextmanager
async def unprivileged_cells(**env: str) -> AsyncIterator[Running]:
    """Process cells of a service that is nobody on this machine."""
    python = _interpreter_for_nobody()
    secret = _mark("service")
    with tempfile.TemporaryDirectory(prefix="codemend-nobody-") as name:
        folder = Path(name)
        temporary, place = folder / "tmp", folder / "canary"
        for path in (folder, temporary, place):
            path.mkdir(exist_ok=True)
            os.chown(path, NOBODY, NOBODY)
            path.chmod(0o755)
        async with canaries(place, secret) as canary:
            settings = {**_COMMON, "SERVICE_SECRET": secret, "TMPDIR": str(temporary), **env}
            process = await _start_as_nobody(python, folder, settings)
            try:
                address = await ready_address(folder, process)
                async with client(address, process.pid) as sandbox:
                    kill = partial(_kill, process)
                    log = (folder / "log").read_text
                    yield await _on_this_machine("unprivileged", sandbox, temporary, canary, (kill, log))
            finally:
                await stop(process)


@asynccontextmanager
async def pod_cells(**env: str) -> AsyncIterator[Running]:
    """Process cells of a service inside a gVisor pod."""
    if lacking := pods.lacking():
        raise MissingError(lacking)
    secret = _mark("service")
    settings = {**_COMMON, "SERVICE_SECRET": secret, **env}
    async with pods.running_pod(settings) as pod:
        await ready_address(pod.shared, pod.process)
        told = pod.shared / "canary" / "canary.json"
        await until(told.exists, START_SECONDS)
        async with client(f"unix:{pod.shared / 'socket'}", 1) as sandbox:
            assert (await sandbox.python("print('first')")).out == b"first\n"
            before = pod.footprint()
            yield Running(
                "pod",
                sandbox,
                _canary(pod.shared / "canary", secret),
                lambda: pod.footprint().beyond(before),
                pod.kill,
                pod.traces,
                lambda line: pod.run("/bin/sh", "-c", line),
                (pod.shared / "log").read_text,
            )


@asynccontextmanager
async def docker_cells(**env: str) -> AsyncIterator[Running]:
    """Docker cells under gVisor, of a service on this machine.

    Where `env` does not say otherwise, jobs of one tenant may follow each other in one container, so that what wipes it
    is attacked as well.
    """
    runtime = env.setdefault("SANDBOX_DOCKER_RUNTIME", "runsc")
    if lacking := engine.missing(runtime):
        raise MissingError(lacking)
    secret = _mark("service")
    with tempfile.TemporaryDirectory(prefix="codemend-canary-") as place, tempfile.TemporaryDirectory() as temporary:
        settings = {
            **_COMMON,
            "SANDBOX_CELL": "docker",
            "SANDBOX_DOCKER_IMAGE": engine.IMAGE,
            "SANDBOX_DOCKER_POOL": str(_WARM),
            "SANDBOX_DOCKER_REUSE": "tenant",
            **env,
        }
        async with (
            canaries(Path(place), secret) as canary,
            sandbox_process(SERVICE_SECRET=secret, TMPDIR=temporary, **settings) as service,
            client(service.address, service.process.pid) as sandbox,
        ):
            assert (await sandbox.python("print('first')")).out == b"first\n"
            pid = service.process.pid
            warm = int(settings["SANDBOX_DOCKER_POOL"]) * sum(
                len(language.templates) for language in LANGUAGES.values()
            )
            await until(lambda: len(engine.containers_of(pid)) >= warm, START_SECONDS)
            most = warm if settings["SANDBOX_DOCKER_REUSE"] == "job" else warm + _KEPT
            beyond = partial(_of_docker, pid, footprint(pid, Path(temporary)), Path(temporary), most)
            traces = partial(_traces_of_docker, pid, Path(temporary), set(), set())
            kill = partial(_kill, service.process)
            yield Running("docker", sandbox, canary, beyond, kill, traces, _shell, service.log)


def _of_docker(pid: int, before: Footprint, folder: Path, most: int) -> Leftovers:
    """Containers where there are more than `most`, and what the service itself has beside what it had."""
    found = footprint(pid, folder).beyond(before)
    containers = sorted(engine.containers_of(pid))
    return {**found, **({"containers": containers} if len(containers) > most else {})}


async def _on_this_machine(
    kind: str,
    sandbox: Sandbox,
    folder: Path,
    canary: Canary,
    means: tuple[Callable[[], Awaitable[None]], Callable[[], str]],
) -> Running:
    """A service whose processes, groups, mounts and files can be looked at from here; `means`: its end and its log."""
    assert (await sandbox.python("print('first')")).out == b"first\n"
    before = footprint(sandbox.pid, folder)
    beyond = lambda: footprint(sandbox.pid, folder).beyond(before)  # noqa: E731 - one expression, used once
    traces = partial(_traces, sandbox.pid, folder, set())
    kill, log = means
    return Running(kind, sandbox, canary, beyond, kill, traces, _shell, log)


def _traces(pid: int, folder: Path, known: set[int]) -> Leftovers:
    """Processes that belong to the service or did at an earlier look, its groups, mounts, and files of its jobs."""
    known |= processes(pid)
    seen = footprint(pid, folder)
    found = {
        "processes": [str(process) for process in sorted(alive(known))],
        "groups": sorted(seen.groups),
        "mounts": _mounts_with({str(folder)}),
        "files": sorted(seen.files),
    }
    return {kind: things for kind, things in found.items() if things}


def _traces_of_docker(pid: int, folder: Path, known: set[int], known_containers: set[str]) -> Leftovers:
    containers = engine.containers_of(pid)
    known_containers |= set(containers.values())
    found = _traces(pid, folder, known) | {
        "containers": sorted(containers),
        "sandboxes": engine.sandbox_processes(known_containers),
        "mounts of containers": _mounts_with(known_containers),
    }
    return {kind: things for kind, things in found.items() if things}


def _mounts_with(words: set[str]) -> list[str]:
    """Mounts on this machine that name one of these."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if any(word in line for word in words)]


async def _kill(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


def _shell(line: str) -> str:
    return subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=60, check=True).stdout


def _mark(name: str) -> str:
    return f"{name}-{secrets.token_hex(16)}"


def _environment_for_nobody() -> dict[str, str]:
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "protos"), *packages]), "PYTHONDONTWRITEBYTECODE": "1"}


def _interpreter_for_nobody() -> str:
    """An interpreter of this version that another user may start and that can import the service."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        raise MissingError("only root can start a service as somebody else, by setpriv (util-linux)")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        command = [*_AS_NOBODY, candidate, "-c", _USABLE]
        try:
            ran = subprocess.run(
                command, env=_environment_for_nobody(), capture_output=True, timeout=60, check=False, cwd="/"
            )
        except OSError:
            continue
        if ran.returncode == 0:
            return candidate
    raise MissingError(f"a {version} that user {NOBODY} may start, such as /usr/bin/{version}")


async def _start_as_nobody(python: str, folder: Path, settings: Mapping[str, str]) -> asyncio.subprocess.Process:
    command = (*_AS_NOBODY, python, "-m", "sandbox_service", "--address", "127.0.0.1:0")
    with (folder / "log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *command, "--ready-file", str(folder / "address"),
            stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
            env={**_environment_for_nobody(), "PATH": os.environ["PATH"], **settings},
        )  # fmt: skip


async def ready_address(folder: Path, process: asyncio.subprocess.Process) -> str:
    """The address in FOLDER/address, as soon as the service has written it; its log is in FOLDER/log."""
    address = folder / "address"
    await until(lambda: address.exists() or process.returncode is not None, START_SECONDS)
    assert address.exists(), (folder / "log").read_text()
    return address.read_text()


async def stop(process: asyncio.subprocess.Process) -> None:
    """Ends a process, asking first."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), START_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


Start = Callable[..., AbstractAsyncContextManager[Running]]
KINDS: Mapping[str, Start] = {
    "process": process_cells,
    "unprivileged": unprivileged_cells,
    "pod": pod_cells,
    "docker": docker_cells,
}
"""How each kind of cell is started; keyword arguments are variables of the service."""
