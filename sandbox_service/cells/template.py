"""The service's side of a template process.

Starts it apart from gRPC, gives it orders, and starts it again when it has died.
"""

import array
import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox_service.cells.filters import Filters
from sandbox_service.errors import CellUnavailable
from sandbox_service.guest.exchange import wire
from sandbox_service.languages import Installed, Packages, Template

_log = logging.getLogger(__name__)
_READY_TIMEOUT_S = 30.0
_ENTRY = "import sys; sys.path.insert(0, sys.argv.pop(2)); from sandbox_service.guest.template import main; main()"
_KEPT_LINES = 20


@dataclass(frozen=True, slots=True)
class Contents:
    """What the cells of a template hold beside the system's own: an environment, and what the languages need."""

    environment: str
    packages: Packages
    languages: Sequence[Installed]

    def config(self) -> Mapping[str, Any]:
        """As `guest.confinement.rootfs` and `guest.template` read it."""
        commands = {name: str(path) for language in self.languages for name, path in language.commands.items()}
        return {
            "packages": list(self.packages.paths),
            "preload": list(self.packages.preload),
            "commands": commands,
            "assets": [str(folder) for language in self.languages for folder in language.assets],
        }


def template_name(name: str, environment: str) -> str:
    """Name of a template in one environment: there is one of each kind for each environment."""
    return f"{name}@{environment}"


class TemplateProcess:
    """One template. `start` and `stop` are a pair; `order` starts a dead template again first."""

    def __init__(self, template: Template, contents: Contents, filters: Filters, *, unprivileged: bool) -> None:
        self.name = template_name(template.name, contents.environment)
        self._contents = contents.config()
        self._session = template.session
        self._filters = filters
        self._unprivileged = unprivileged
        self._process: asyncio.subprocess.Process | None = None
        self._orders: socket.socket | None = None
        self._stderr: asyncio.Task[None] | None = None
        self._last_lines: list[str] = []
        self._starting = asyncio.Lock()  # guards the three above against two callers that both found it dead
        self.walls: dict[str, str] = {}
        self.prepares = False
        """Whether it can make cells ahead of their jobs."""
        self.version = ""

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None

    async def has_died(self, *, within: float) -> bool:
        """Whether the process ends in the next `within` seconds, or has ended."""
        if self._process is None:
            return True
        try:
            await asyncio.wait_for(self._process.wait(), within)
        except TimeoutError:
            return False
        return True

    async def start(self) -> None:
        """Starts the process and waits until it takes orders.

        Raises:
            CellUnavailable: it did not come up; the message holds its last words.
        """
        async with self._starting:
            if self.alive:
                return
            await self._close()
            theirs: socket.socket
            self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._orders.setblocking(False)  # noqa: FBT003 - the socket API's own signature
            with theirs:
                await self._spawn(theirs.fileno())
            try:
                packet = await asyncio.wait_for(
                    asyncio.get_running_loop().sock_recv(self._orders, wire.MAX_PACKET_BYTES), _READY_TIMEOUT_S
                )
                ready = json.loads(packet)
            except (TimeoutError, OSError, ValueError) as error:
                await self._close()
                words = " / ".join(self._last_lines) or f"{type(error).__name__}"
                raise CellUnavailable(f"the template {self.name} did not start: {words}") from error
            self.walls, self.version, self.prepares = ready["walls"], ready["version"], ready["prepares"]

    async def _spawn(self, descriptor: int) -> None:
        executable = getattr(sys, "_base_executable", sys.executable)
        config = {
            "parent": os.getpid(),
            "executable": executable,
            "prefix": sys.base_prefix,
            **self._contents,
            "hidden": _site_folders(),
            "session": self._session,
            "filters": [self._filters.listening.hex(), self._filters.killing.hex()],
            "unprivileged": self._unprivileged,
            "keep_proc": self._unprivileged,
        }
        package_root = str(Path(__file__).parents[2])
        self._process = await asyncio.create_subprocess_exec(
            executable, "-S", "-s", "-P", "-B", "-c", _ENTRY, str(descriptor), package_root,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            pass_fds=(descriptor,), env={"LANG": "C.UTF-8"}, cwd="/", start_new_session=True,
        )  # fmt: skip
        self._last_lines.clear()
        self._stderr = asyncio.create_task(self._log_stderr(self._process))
        with contextlib.suppress(ConnectionError):
            await _write(self._process, config)

    async def _log_stderr(self, process: asyncio.subprocess.Process) -> None:
        if process.stderr is None:
            return
        with contextlib.suppress(ValueError):  # a line over the reader's limit
            async for line in process.stderr:
                text = line.decode("utf-8", "replace").rstrip()
                self._last_lines = [*self._last_lines, text][-_KEPT_LINES:]
                _log.warning("template %s: %s", self.name, text)

    async def order(self, header: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Sends one order with its descriptors.

        Raises:
            CellUnavailable: the template is dead and does not start again.
        """
        if not self.alive:
            await self.start()
        packet = [json.dumps(header).encode()]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        orders = self._orders
        if orders is None:
            raise CellUnavailable(f"the template {self.name} is stopped")
        while True:
            try:
                orders.sendmsg(packet, rights)
            except BlockingIOError:
                await _writable(orders)
            except OSError as error:
                raise CellUnavailable(f"the template {self.name} died: {error}") from error
            else:
                return

    async def stop(self) -> None:
        """Ends the process, and with it every job that it forked."""
        async with self._starting:
            await self._close()

    async def _close(self) -> None:
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None
        if self._stderr is not None:
            await self._stderr
            self._stderr = None


async def _write(process: asyncio.subprocess.Process, config: dict[str, Any]) -> None:
    if process.stdin is not None:
        process.stdin.write(json.dumps(config).encode())
        await process.stdin.drain()
        process.stdin.close()
        await process.stdin.wait_closed()


async def _writable(handle: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    free = asyncio.Event()
    loop.add_writer(handle, free.set)
    try:
        await free.wait()
    finally:
        loop.remove_writer(handle)


def _site_folders() -> list[str]:
    """Package folders of the interpreter itself, which are no part of any environment."""
    scheme = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_prefix})
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    debian = ["/usr/lib/python3/dist-packages", f"/usr/local/lib/python{version}/dist-packages"]
    return sorted({scheme["purelib"], scheme["platlib"], *debian})
