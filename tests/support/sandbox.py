"""A real sandbox service for tests: `python -m sandbox_service` in a process of its own, on a free port of loopback."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from support.service import ServiceProcess, service_process


def sandbox_process(address: str = "127.0.0.1:0", **env: str) -> AbstractAsyncContextManager[ServiceProcess]:
    """Starts a service, waits until it serves, and stops it at the end.

    Args:
        address: where it listens.
        env: its variables, such as SANDBOX_CONCURRENCY="1"; those of the tests' own process are not passed on.
    """
    return service_process("sandbox_service", ["--address", address], env, without=("SANDBOX_",))


@asynccontextmanager
async def running_sandbox(**env: str) -> AsyncIterator[str]:
    """The same, for tests that need the address alone."""
    async with sandbox_process(**env) as service:
        yield service.address
