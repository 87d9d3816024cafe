"""The two services as child processes of a command: started on unix sockets, watched, and stopped with it.

Each lives in a process group of its own, so that Ctrl-C reaches this command first and it can cancel its run, and
dies with this process however that ends. Their sockets and logs lie in a private directory that is removed at the
end.
"""

import asyncio
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.cli.errors import ServiceDied, ServiceFault

T = TypeVar("T")

START_TIMEOUT = timedelta(seconds=60)
STOP_TIMEOUT = timedelta(seconds=10)  # for a service of one command, whose grace is `_EMBEDDED_GRACE`
_EMBEDDED_GRACE = "2"  # seconds; nothing worth waiting for runs when its command ends
_LOG_TAIL_LINES = 20
_LOG_TAIL_BYTES = 16 * 1024
_SOCKET_PATH_LIMIT = 90  # bytes; the kernel's is 107, and gRPC adds a little
_LAUNCHER = Path(__file__).with_name("child_launcher.py")


@dataclass(slots=True)
class _Child:
    name: str
    process: asyncio.subprocess.Process
    ready_file: Path
    log: Path | None


class Services:
    """Child services of one command.

    Args:
        directory: private directory for sockets, ready files and logs.
        inherit_output: the services write to this process's stderr instead of a log file.
    """

    def __init__(self, directory: Path, *, inherit_output: bool = False) -> None:
        self._directory = directory
        self._inherit_output = inherit_output
        self._children: list[_Child] = []

    @property
    def sandbox_socket(self) -> str:
        """Where a sandbox service is started that is given no address; known before it serves."""
        return f"unix:{self._directory / 'sandbox.sock'}"

    async def start_sandbox(self, address: str = "", *, environment: Mapping[str, str] | None = None) -> str:
        """Starts a sandbox service; returns the address it serves at (a unix socket unless `address` is given).

        Raises:
            ServiceDied: it ended before it served.
            ServiceFault: it did not serve within a minute.
        """
        where = address or self.sandbox_socket
        grace = {} if address else {"SANDBOX_GRACE": _EMBEDDED_GRACE}
        return await self._start("sandbox_service", ["--address", where], {**grace, **(environment or {})})

    async def start_orchestrator(
        self, sandbox_address: str, address: str = "", *, environment: Mapping[str, str] | None = None
    ) -> str:
        """Starts an orchestrator that uses the sandbox at `sandbox_address`; returns its address.

        Raises:
            ServiceDied: it ended before it served.
            ServiceFault: it did not serve within a minute.
        """
        where = address or f"unix:{self._directory / 'orchestrator.sock'}"
        added = {} if address else {"CODEMEND_GRACE": _EMBEDDED_GRACE}
        if not address and "CODEMEND_DATA_DIR" not in os.environ:
            # Its runs end with this command; a directory of its own keeps two commands off one database.
            added["CODEMEND_DATA_DIR"] = str(self._directory / "data")
            added["CODEMEND_DATABASE_URL"] = ""
        if not address:  # beside a service that stays, on the same data, it is another replica
            added["CODEMEND_REPLICA_ID"] = f"cli-{secrets.token_hex(8)}"
        arguments = ["--address", where, "--sandbox", sandbox_address]
        return await self._start("orchestrator", arguments, {**added, **(environment or {})})

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Does `work` while the services live; a service that ends by itself ends the work.

        Raises:
            ServiceDied: a service ended.
        """
        task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self.first_death())
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise await watch
            return task.result()
        finally:
            task.cancel()
            watch.cancel()
            await asyncio.gather(task, watch, return_exceptions=True)

    async def first_death(self) -> ServiceDied:
        """Waits until one of the services ends; returns the error that tells of it."""
        if not self._children:
            await asyncio.get_running_loop().create_future()
        waits = {asyncio.ensure_future(child.process.wait()): child for child in self._children}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self._death(waits[done.pop()])

    async def stop(self, timeout: timedelta = STOP_TIMEOUT) -> None:  # noqa: ASYNC109 - one bound for all, then SIGKILL
        """Asks the services to end, the youngest first, and kills what has not ended within `timeout`."""
        for child in reversed(self._children):
            if child.process.returncode is not None:
                continue
            child.process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(timeout.total_seconds()):
                    await child.process.wait()
            except TimeoutError:
                self.kill()
                await child.process.wait()

    def kill(self) -> None:
        """Kills every service that has not ended."""
        for child in self._children:
            if child.process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.process.pid, signal.SIGKILL)

    @property
    def exit_codes(self) -> dict[str, int | None]:
        """Exit code of each service by its name; None while it lives."""
        return {child.name: child.process.returncode for child in self._children}

    async def _start(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> str:
        ready_file = self._directory / f"{name}.ready"
        log = None if self._inherit_output else self._directory / f"{name}.log"
        # -P: modules of the caller's working directory must not stand in for ours.
        program = [sys.executable, "-P", "-m", name, *arguments, "--ready-file", str(ready_file)]
        output = sys.stderr.fileno() if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", str(_LAUNCHER), str(os.getpid()), *program,
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, **environment}, start_new_session=True,
            )  # fmt: skip
        finally:
            if log is not None:
                os.close(output)
        child = _Child(name, process, ready_file, log)
        self._children.append(child)
        return await self._ready(child)

    async def _ready(self, child: _Child) -> str:
        try:
            async with asyncio.timeout(START_TIMEOUT.total_seconds()):
                while not child.ready_file.exists():
                    if child.process.returncode is not None:
                        raise self._death(child)
                    await asyncio.sleep(0.02)
        except TimeoutError:
            seconds = START_TIMEOUT.total_seconds()
            raise ServiceFault(f"{child.name} did not serve within {seconds:.0f} s{_tail(child.log)}") from None
        return child.ready_file.read_text(encoding="utf-8").strip()

    def _death(self, child: _Child) -> ServiceDied:
        code = child.process.returncode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        return ServiceDied(f"{child.name} {how}{_tail(child.log)}")


@asynccontextmanager
async def child_services(*, inherit_output: bool = False) -> AsyncIterator[Services]:
    """Services in a private directory; all stopped and the directory removed at the end."""
    directory = private_directory()
    services = Services(directory, inherit_output=inherit_output)
    try:
        yield services
    finally:
        try:
            await services.stop()
        finally:
            services.kill()
            shutil.rmtree(directory, ignore_errors=True)


async def with_sandbox(address: str, work: Callable[[str], Coroutine[Any, Any, T]]) -> T:
    """Does `work` with the sandbox service at `address`, or with one of its own where that is empty.

    Raises:
        ServiceFault: the own service did not start, or ended before the work did.
    """
    if address:
        return await work(address)
    async with child_services() as services:
        return await services.guard(work(await services.start_sandbox()))


async def with_orchestrator(
    address: str, sandbox_address: str, environment: Mapping[str, str], work: Callable[[str], Coroutine[Any, Any, T]]
) -> T:
    """Does `work` with the orchestrator at `address`, or with one of its own where that is empty.

    Args:
        address: of an orchestrator that runs already.
        sandbox_address: of a sandbox that runs already, for an orchestrator of its own; empty: that gets a sandbox of
            its own too.
        environment: settings of the own orchestrator.
        work: is given the orchestrator's address.

    Raises:
        ServiceFault: an own service did not start, or ended before the work did.
    """
    if address:
        return await work(address)
    async with child_services() as services:
        if sandbox_address:
            return await services.guard(
                work(await services.start_orchestrator(sandbox_address, environment=environment))
            )
        _, orchestrator = await asyncio.gather(
            services.start_sandbox(),
            services.start_orchestrator(services.sandbox_socket, environment=environment),
        )
        return await services.guard(work(orchestrator))


def private_directory() -> Path:
    """A new directory that only this user can enter, with a path short enough for a socket in it."""
    directory = Path(tempfile.mkdtemp(prefix="codemend-"))
    if len(os.fsencode(directory)) <= _SOCKET_PATH_LIMIT:
        return directory
    directory.rmdir()
    return Path(tempfile.mkdtemp(prefix="codemend-", dir="/tmp"))


def _tail(log: Path | None) -> str:
    if log is None:
        return ""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        lines = stream.read().decode("utf-8", "replace").splitlines()[-_LOG_TAIL_LINES:]
    return "; its log ends with:\n" + "\n".join(f"  {line}" for line in lines) if lines else "; its log is empty"
