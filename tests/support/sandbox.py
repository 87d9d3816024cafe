"""A real sandbox service for tests: `python -m sandbox_service` in a process of its own, on a free port of loopback."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 30
STOP_SECONDS = 20


@dataclass(frozen=True)
class SandboxProcess:
    """A service that serves: its address, its process, and the folder that holds its log and its ready file."""

    address: str
    process: asyncio.subprocess.Process
    folder: Path

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Waits for the end, within a bound, and returns the exit code."""
        return await asyncio.wait_for(self.process.wait(), STOP_SECONDS)

    def log(self) -> str:
        """What it has logged so far."""
        return _log(self.folder)


@asynccontextmanager
async def sandbox_process(address: str = "127.0.0.1:0", **env: str) -> AsyncIterator[SandboxProcess]:
    """Starts a service, waits until it serves, and stops it at the end.

    Args:
        address: where it listens.
        env: its variables, such as SANDBOX_CONCURRENCY="1"; those of the tests' own process are not passed on.
    """
    with tempfile.TemporaryDirectory(prefix="codemend-test-") as name:
        folder = Path(name)
        process = await _start(address, folder, env)
        try:
            yield SandboxProcess(await _ready(folder, process), process, folder)
        finally:
            await _stop(folder, process)


@asynccontextmanager
async def running_sandbox(**env: str) -> AsyncIterator[str]:
    """The same, for tests that need the address alone."""
    async with sandbox_process(**env) as service:
        yield service.address


async def _start(address: str, folder: Path, env: dict[str, str]) -> asyncio.subprocess.Process:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")}
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sandbox_service", "--address", address, "--ready-file", str(folder / "address")),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**clean, **env},
        )
    finally:
        os.close(log)


async def _ready(folder: Path, process: asyncio.subprocess.Process) -> str:
    try:
        async with asyncio.timeout(START_SECONDS):
            while not (address := _address(folder)):
                if process.returncode is not None:
                    raise AssertionError(f"the service ended with {process.returncode}:\n{_log(folder)}")
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"the service was not ready in {START_SECONDS} s:\n{_log(folder)}") from None
    return address


async def _stop(folder: Path, process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise AssertionError(f"the service did not stop in {STOP_SECONDS} s:\n{_log(folder)}") from None


def _address(folder: Path) -> str:
    try:
        return (folder / "address").read_text()
    except FileNotFoundError:
        return ""


def _log(folder: Path) -> str:
    return (folder / "log").read_text()
