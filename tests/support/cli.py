"""The real command `codemend` for tests: a process of its own, as a person starts it, with a clean environment."""

import asyncio
import contextlib
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLI_SECONDS = 60  # of one command, services included
_OURS = ("CODEMEND_", "SANDBOX_", "OPENAI_")


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json_lines(self) -> list[dict[str, Any]]:
        """Stdout, one object a line."""
        return [json.loads(line) for line in self.out.splitlines()]


def command_line(*arguments: str) -> list[str]:
    """How the command is started."""
    return [sys.executable, "-P", "-c", "from orchestrator.cli import main; main()", *arguments]


def environment(**env: str) -> dict[str, str]:
    """This process's environment without anything that codemend reads, and with `env`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**clean, "COLUMNS": "120", "TERM": "dumb", **env}


@asynccontextmanager
async def started_cli(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command under way, with pipes for its streams; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *command_line(*arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env=environment(**(env or {})),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


async def run_cli(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, stdin: bytes = b"", within: float = CLI_SECONDS
) -> Outcome:
    """Runs a command to its end."""
    async with started_cli(*arguments, cwd=cwd, env=env) as process, asyncio.timeout(within):
        return await outcome_of(process, stdin)


async def run_on_terminal(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, within: float = CLI_SECONDS
) -> tuple[int, str]:
    """Runs a command on a terminal of its own; returns its exit code and all that the terminal got."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *command_line(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=environment(**(env or {}))
    )
    os.close(theirs)
    try:
        screen = await asyncio.wait_for(asyncio.to_thread(_read_terminal, ours), within)
        return await asyncio.wait_for(process.wait(), within), screen
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)


def _read_terminal(descriptor: int) -> str:
    content = b""
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while chunk := os.read(descriptor, 65536):
            content += chunk
    return content.decode()


async def outcome_of(process: asyncio.subprocess.Process, stdin: bytes = b"") -> Outcome:
    """Waits for a command's end."""
    out, err = await process.communicate(stdin)
    assert process.returncode is not None
    return Outcome(process.returncode, out.decode(), err.decode())
