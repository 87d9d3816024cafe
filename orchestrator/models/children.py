"""Runs a child process to its end, line by line, for the downloads. Cancellation or a lack of time kills it."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

_REAP_SECONDS = 10.0


async def run_child(argv: Sequence[str], on_line: Callable[[str], None], seconds: float) -> int:
    """Runs `argv` and hands every line of its stdout and stderr to `on_line`.

    Returns:
        The exit code.

    Raises:
        TimeoutError: it ran for longer than `seconds`.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    try:
        async with asyncio.timeout(seconds):
            async for line in process.stdout:
                on_line(line.decode(errors="replace").strip())
            return await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            async with asyncio.timeout(_REAP_SECONDS):
                await process.wait()
