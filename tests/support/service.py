"""Starts `python -m SERVICE` in a process of its own, waits until it serves, and stops it when the tests end."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.cli import child_launcher

START_SECONDS = 40
STOP_SECONDS = 30


@dataclass(frozen=True)
class ServiceProcess:
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
async def service_process(
    module: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    without: tuple[str, ...],
    through: Sequence[str] = (),
) -> AsyncIterator[ServiceProcess]:
    """Starts a service, waits until it serves, and stops it at the end.

    Args:
        module: what `python -m` runs.
        arguments: its arguments beside --ready-file.
        env: variables, added to the tests' own; `{folder}` in them is a folder that lives as long as the service.
        without: prefixes of the tests' own variables that are not passed on.
        through: a command that takes the rest of its arguments for the service's, and becomes it.
    """
    with tempfile.TemporaryDirectory(prefix="codemend-test-") as name:
        folder = Path(name)
        variables = {key: value.format(folder=folder) for key, value in env.items()}
        process = await _start([*through, sys.executable, "-m", module, *arguments], variables, folder, without)
        try:
            yield ServiceProcess(await _ready(folder, process), process, folder)
        finally:
            await _stop(folder, process)


async def _start(
    command: Sequence[str], env: Mapping[str, str], folder: Path, without: tuple[str, ...]
) -> asyncio.subprocess.Process:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    launcher = (sys.executable, "-I", str(child_launcher.__file__), str(os.getpid()))
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        return await asyncio.create_subprocess_exec(
            *(*launcher, *command, "--ready-file", str(folder / "address")),
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
            while not (folder / "address").exists():
                if process.returncode is not None:
                    raise AssertionError(f"the service ended with {process.returncode}:\n{_log(folder)}")
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"the service was not ready in {START_SECONDS} s:\n{_log(folder)}") from None
    return (folder / "address").read_text()


async def _stop(folder: Path, process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise AssertionError(f"the service did not stop in {STOP_SECONDS} s:\n{_log(folder)}") from None


def _log(folder: Path) -> str:
    return (folder / "log").read_text()
