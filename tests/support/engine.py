"""The container engine as tests see it: whether it is there, and what a service has in it."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import docker
from docker.errors import DockerException, ImageNotFound

from sandbox_service.cells.docker.owner import Owner
from sandbox_service.guest.exchange.frames import digest

ENGINE = "/var/run/docker.sock"
IMAGE = os.environ.get("SANDBOX_DOCKER_IMAGE") or f"codemend-sandbox:{version('codemend')}"
_LABEL = "codemend.owner"


@contextlib.contextmanager
def engine() -> Iterator[docker.APIClient]:
    """A client of the engine."""
    client = docker.APIClient(base_url=f"unix://{ENGINE}", version="auto", timeout=30)
    try:
        yield client
    finally:
        client.close()


def missing(runtime: str) -> str:
    """What docker cells of this runtime lack on this machine; empty: nothing."""
    try:
        with engine() as client:
            if runtime not in client.info()["Runtimes"]:
                return f"the container engine has no runtime {runtime}: .ci/engine sets it up"
            labels = client.inspect_image(IMAGE)["Config"].get("Labels") or {}
    except ImageNotFound:
        return f"no image {IMAGE}: make sandbox-image builds it"
    except DockerException as error:
        return f"no container engine: {error}"
    return "" if labels.get("codemend.guest") == digest() else f"image {IMAGE} is stale: make sandbox-image builds it"


def containers_of(pid: int) -> dict[str, str]:
    """Containers that the process `pid` owns, in whatever state: name -> id."""
    with engine() as client:
        listed = client.containers(all=True, filters={"label": _LABEL})
    owners = {entry["Id"]: Owner.parse(entry["Labels"][_LABEL]) for entry in listed}
    return {
        entry["Names"][0].lstrip("/"): entry["Id"]
        for entry in listed
        if (owner := owners[entry["Id"]]) is not None and owner.pid == pid
    }


def sandbox_processes(identities: set[str]) -> list[str]:
    """Command lines of processes on this machine that belong to one of these containers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if any(identity in line for identity in identities):
                found.append(line[:120])
    return found


class Passage:
    """A way to the engine that can be blocked: connections stay open, and nothing goes through."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def block(self) -> None:
        """From now on the engine does not answer."""
        self._open.clear()

    def unblock(self) -> None:
        """It answers again."""
        self._open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        writers = [writer]
        try:
            await self._open.wait()
            there_reader, there_writer = await asyncio.open_unix_connection(ENGINE)
            writers.append(there_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(reader, there_writer))
                both.create_task(self._pass(there_reader, writer))
        finally:
            for each in writers:
                each.close()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await source.read(65536):
                await self._open.wait()
                target.write(chunk)
                await target.drain()
        with contextlib.suppress(ConnectionError, RuntimeError, OSError):
            target.write_eof()


@asynccontextmanager
async def passage(path: Path) -> AsyncIterator[Passage]:
    """Opens one at `path`."""
    made = Passage()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(made.serve(reader, writer)))

    server = await asyncio.start_unix_server(accept, path)
    try:
        yield made
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def check_engine(require: Callable[[object, str], None], runtime: str) -> None:
    """Skips, or fails in CI, where docker cells cannot run here."""
    reason = missing(runtime)
    require(not reason, reason)
