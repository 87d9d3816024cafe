"""The orchestrator as a process that is there at once: forked from one that has imported it and done nothing else.

For tests that start it dozens of times, where the imports alone would take minutes. What is forked has made no gRPC
object, no thread and no event loop; from `main` on it is what `python -m orchestrator` is.
"""

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_START_SECONDS, _STOP_SECONDS = 40.0, 40.0
_PR_SET_PDEATHSIG = 1
_OWN = ("CODEMEND_", "OPENAI_")  # variables of the tests' own process that are not passed on

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["orchestrator.__main__", "orchestrator.server"])


class ForkedOrchestrator:
    """A service that serves. Made by `start`."""

    def __init__(self, process: ForkServerProcess, folder: "tempfile.TemporaryDirectory[str]") -> None:
        self._process = process
        self._folder = folder

    @classmethod
    async def start(cls, arguments: Sequence[str], env: Mapping[str, str]) -> "ForkedOrchestrator":
        """Starts one and waits until it serves."""
        folder = tempfile.TemporaryDirectory(prefix="codemend-test-")
        given = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
        process = _context.Process(target=_serve, args=(list(arguments), {**given, **env}, folder.name))
        process.start()
        service = cls(process, folder)
        try:
            async with asyncio.timeout(_START_SECONDS):
                while not (Path(folder.name) / "address").exists():
                    assert process.exitcode is None, f"the service ended with {process.exitcode}:\n{service.log()}"
                    await asyncio.sleep(0.01)
        except BaseException:
            await service.kill()
            raise
        return service

    @property
    def pid(self) -> int:
        """Id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        os.kill(self.pid, number)

    def log(self) -> str:
        """What it has logged so far."""
        return (Path(self._folder.name) / "log").read_text()

    async def ended(self) -> int:
        """Waits for the end, within a bound, and returns the exit code; its folder is gone then."""
        await asyncio.to_thread(self._process.join, _STOP_SECONDS)
        code = self._process.exitcode
        if code is None:
            log = self.log()
            await self.kill()
            raise AssertionError(f"the service did not stop in {_STOP_SECONDS:g} s:\n{log}")
        self._folder.cleanup()
        return code

    async def kill(self) -> None:
        """Ends it as a machine's end does."""
        self._process.kill()
        await self.ended()


def _serve(arguments: list[str], env: dict[str, str], folder: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.environ.clear()
    os.environ.update(env)
    log = os.open(Path(folder) / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    from orchestrator.__main__ import main  # noqa: PLC0415 - only what was forked may need it

    sys.exit(main([*arguments, "--ready-file", str(Path(folder) / "address")]))
