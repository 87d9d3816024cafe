"""Runs a command's coroutine on its own event loop, and turns SIGINT and SIGTERM into its cancellation.

The first signal cancels the command, which gets to cancel its run and stop its services; a second one does not wait
for that any longer.
"""

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any

from orchestrator.cli.errors import ExitCode, OutputClosed

_EXIT_CODES = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}


def run_to_exit(command: Coroutine[Any, Any, int]) -> int:
    """Runs `command` to its end; returns its exit code, or 130 (SIGINT) or 143 (SIGTERM) when it was interrupted.

    Raises:
        OutputClosed: the reader of this process's output has left.
    """
    received: list[signal.Signals] = []

    async def supervised() -> int:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(command)

        def interrupt(signum: signal.Signals) -> None:
            received.append(signum)
            if len(received) > 1:
                os._exit(_EXIT_CODES[signum])  # children die with this process
            task.cancel()

        for signum in _EXIT_CODES:
            loop.add_signal_handler(signum, interrupt, signum)
        try:
            return await task
        except asyncio.CancelledError:
            if received:
                return _EXIT_CODES[received[0]]
            raise

    try:
        return asyncio.run(supervised())
    except BrokenPipeError as error:
        raise OutputClosed("nobody reads the output any more") from error
