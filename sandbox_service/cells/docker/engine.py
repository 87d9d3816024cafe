"""The container engine: every call to it, each in a bounded executor and within a time of its own.

The docker SDK blocks and has calls without an end; nothing of that reaches the event loop. An engine that is not there
or does not answer is `CellUnavailable`, never a wait. What containers are for is not known here.
"""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from sandbox_service.errors import CellUnavailable

_THREADS = 8
_CALL_S = 10
_LATER_S = 5
"""The SDK's own timeout follows ours by this, and frees the thread."""
_SILENCE_S = 2.0
"""After a call that was not answered, others fail at once for this long: each would hold a thread."""
_STOPPED_STATES = frozenset({"exited", "dead", "removing"})

T = TypeVar("T")


class Engine:
    """One engine, reached at `host` (unix:///path or tcp://host:port)."""

    def __init__(self, host: str, *, call_seconds: int = _CALL_S) -> None:
        self.host = host
        self._call_seconds = call_seconds
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="docker")
        self._local = threading.local()  # a client a thread: its connections are not made to be shared
        self._clients: list[docker.APIClient] = []
        self._silent_until = 0.0

    async def close(self) -> None:
        """Lets the connections and the executor go; calls that hang end by their own timeouts."""
        ended = asyncio.get_running_loop().run_in_executor(None, lambda: self._executor.shutdown(cancel_futures=True))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ended), _LATER_S)
        while self._clients:
            self._clients.pop().close()

    def _client(self) -> docker.APIClient:
        client: docker.APIClient | None = getattr(self._local, "client", None)
        if client is None:
            seconds = self._call_seconds + _LATER_S
            client = docker.APIClient(base_url=self.host, version="auto", timeout=seconds)
            self._local.client = client
            self._clients.append(client)
        return client

    async def _call(self, what: str, function: Callable[[docker.APIClient], T], seconds: float | None = None) -> T:
        """Runs `function` in the executor.

        Raises:
            CellUnavailable: the engine is not there, did not answer in time, or refused.
            NotFound: what the call is about does not exist.
        """
        if time.monotonic() < self._silent_until:
            raise CellUnavailable(f"the container engine at {self.host} does not answer")
        call = asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(self._client()))
        try:
            return await asyncio.wait_for(call, seconds or self._call_seconds)
        except NotFound:
            raise
        except (TimeoutError, requests.Timeout) as error:
            self._silent_until = time.monotonic() + _SILENCE_S
            raise CellUnavailable(f"the container engine at {self.host} did not answer in time: {what}") from error
        except APIError as error:
            raise CellUnavailable(f"the container engine refused to {what}: {error.explanation or error}") from error
        except (DockerException, requests.RequestException, OSError, ValueError) as error:
            raise CellUnavailable(f"no container engine at {self.host}: {str(error)[:500]}") from error

    async def info(self) -> Mapping[str, Any]:
        """What the engine says of itself: `Runtimes`, `ServerVersion`, …."""
        return await self._call("tell about itself", lambda client: dict(client.info()))

    async def ping(self) -> None:
        """Returns where the engine answers."""
        await self._call("answer", lambda client: client.ping())

    async def image_labels(self, image: str) -> Mapping[str, str] | None:
        """Labels of an image; None where the engine does not have it."""

        def look(client: docker.APIClient) -> Mapping[str, str] | None:
            try:
                return dict(client.inspect_image(image)["Config"].get("Labels") or {})  # type: ignore[no-untyped-call]
            except ImageNotFound:
                return None

        return await self._call(f"look at image {image}", look)

    async def create(self, name: str, image: str, command: Sequence[str], host: Mapping[str, Any], **more: Any) -> str:  # noqa: ANN401 - the SDK's own
        """Makes a container and returns its id; `host` and `more` are those of the SDK's create_container."""

        def make(client: docker.APIClient) -> str:
            config = client.create_host_config(**host)
            return str(client.create_container(image, list(command), name=name, host_config=config, **more)["Id"])

        return await self._call("make a container", make)

    async def start(self, container: str, seconds: float) -> None:
        """Starts a container."""
        await self._call("start a container", lambda client: client.start(container), seconds)

    async def attach(self, container: str) -> socket.socket:
        """A socket on which a container's output comes, in the engine's own framing; the caller closes it."""
        params = {"stdout": 1, "stderr": 1, "stream": 1}
        return await self._call(
            "attach to a container", lambda client: _raw(client.attach_socket(container, params=params))
        )

    async def execute(self, container: str, command: Sequence[str], user: str, seconds: float) -> socket.socket:
        """Starts a further process in a container and returns the socket of its standard streams."""

        def run(client: docker.APIClient) -> socket.socket:
            made = client.exec_create(container, list(command), stdin=True, user=user, workdir="/")
            return _raw(client.exec_start(made["Id"], socket=True))

        return await self._call("start a process in a container", run, seconds)

    async def state(self, container: str) -> Mapping[str, Any]:
        """State of a container: `Status`, `OOMKilled`, `ExitCode`, …."""
        return await self._call(
            "look at a container", lambda client: dict(client.inspect_container(container)["State"])
        )

    async def remove(self, container: str) -> None:
        """Kills and removes a container; one that is gone already is no error."""

        def drop(client: docker.APIClient) -> None:
            try:
                client.remove_container(container, force=True, v=True)
            except APIError as error:
                if error.status_code != requests.codes.conflict:  # being removed already
                    raise

        with contextlib.suppress(NotFound):
            await self._call("remove a container", drop, max(self._call_seconds, 30))

    async def labelled(self, label: str) -> Sequence[Mapping[str, Any]]:
        """All containers, running or not, that have a label: `Id`, `Names`, `Labels`, `State`, `Created`."""
        found = await self._call(
            "list containers", lambda client: list(client.containers(all=True, filters={"label": label}))
        )
        return [entry for entry in found if isinstance(entry, dict)]


def has_stopped(state: str) -> bool:
    """Whether a container in this state runs nothing and will not run anything."""
    return state in _STOPPED_STATES


def _raw(stream: Any) -> socket.socket:  # noqa: ANN401 - which type, the SDK decides by version and transport
    """A socket of our own out of what the SDK hands over, which may be closed with its response."""
    handle = socket.socket(fileno=os.dup(stream.fileno()))
    handle.setblocking(False)  # noqa: FBT003 - the socket API's own signature
    whole = getattr(stream, "_sock", None)  # the file-like object's close leaves the SDK's socket to the collector
    stream.close()
    if isinstance(whole, socket.socket):
        whole.close()
    return handle
