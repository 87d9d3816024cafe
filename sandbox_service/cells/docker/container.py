"""One container: made, started, spoken to and removed. What it is made of is decided by its `Plan`.

Two processes serve in it: the guest's `container` as process 1, and its `relay` as another user, which alone has a
channel to the service.
"""

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from docker.errors import NotFound

from sandbox_service.cells.docker.engine import Engine, has_stopped
from sandbox_service.cells.docker.leaks import kill_sandboxes
from sandbox_service.cells.docker.streams import OnFrame, Streams
from sandbox_service.domain import MIB
from sandbox_service.errors import CellFailure, CellUnavailable
from sandbox_service.guest.confinement import rootfs
from sandbox_service.guest.exchange import frames
from sandbox_service.guest.exchange.frames import FromGuest, ToGuest

PLAIN_RUNTIME = "runc"
"""Containers of this runtime share the host's kernel."""
OWNER_LABEL, LEASE_LABEL = "codemend.owner", "codemend.lease"
_START_S = 60.0
_RUN = ("/usr/bin/env", "-i", "/usr/bin/python3", "-S", "-s", "-P", "-B", "/opt/codemend/guest/run")
_TESTS_BYTES = 64 * MIB
_OVERHEAD_BYTES = 256 * MIB
"""Memory of a container beside its job: the guest's two processes, and the kernel of gVisor itself."""
_SANDBOX_PIDS = 1024
"""Of a gVisor container: its own threads count, and at 64 it dies by itself; jobs are counted inside."""
_PLAIN_USERS = 780_000_000
"""First of the user ids for containers that share the host's kernel, where a limit on processes counts for a user."""
_PERIOD_US = 100_000
_STATE_FOLLOWS_S, _STATE_PAUSE_S = 5.0, 0.05
"""The engine notes the end of a container a little after its streams have closed."""


@dataclass(frozen=True, slots=True)
class Size:
    """What a container can hold of one job: the sizes that are fixed when it is made."""

    memory_bytes: int
    disk_bytes: int
    inodes: int
    processes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a container is made of.

    Attributes:
        image: its image.
        runtime: the engine's runtime.
        owner: value of OWNER_LABEL.
        session: a guest module whose session its process 1 keeps warm; empty: a bare interpreter.
        preload: modules that its process 1 imports ahead of the jobs.
        size: of the jobs that it can hold.
        filters: forms of the filter of system calls, as hexadecimal bytes.
    """

    image: str
    runtime: str
    owner: str
    session: str
    preload: tuple[str, ...]
    size: Size
    filters: tuple[str, str]

    @property
    def is_plain(self) -> bool:
        """Whether it shares the host's kernel."""
        return self.runtime == PLAIN_RUNTIME


_numbers = itertools.count()


def _users(plan: Plan) -> tuple[int, int]:
    """User ids of the jobs and of the relay."""
    if not plan.is_plain:
        return rootfs.JOB_UID, rootfs.JOB_UID + 1
    first = _PLAIN_USERS + 2 * ((os.getpid() * 1009 + next(_numbers)) % 4_000_000)
    return first, first + 1


def _host_config(plan: Plan, job_user: int, relay_user: int) -> dict[str, Any]:
    size = plan.size
    options = f"rw,exec,nosuid,nodev,size={size.disk_bytes},nr_inodes={size.inodes},mode=0700"
    places = dict.fromkeys(rootfs.WRITABLE.values(), f"{options},uid={job_user},gid={job_user}")
    shared_memory = places.pop("/dev/shm")  # noqa: S108 - inside the cell; the engine mounts it by itself
    tests = f"rw,noexec,nosuid,nodev,size={_TESTS_BYTES},mode=0755,uid={relay_user},gid={relay_user}"
    return {
        "runtime": plan.runtime,
        "network_mode": "none",
        "read_only": True,
        "tmpfs": {**places, "/dev/shm": shared_memory, rootfs.TESTS: tests},  # noqa: S108
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "pids_limit": size.processes + 16 if plan.is_plain else _SANDBOX_PIDS,
        "mem_limit": size.memory_bytes + _OVERHEAD_BYTES,
        "memswap_limit": size.memory_bytes + _OVERHEAD_BYTES,
        "cpu_period": _PERIOD_US,
        "cpu_quota": _PERIOD_US if plan.is_plain else 2 * _PERIOD_US,  # gVisor's own threads need some of it
        "init": False,
        "ipc_mode": "private",
        "log_config": {"Type": "none"},
    }


class Container:
    """One running container. `open` makes it; `destroy` removes it, and may be awaited often.

    Attributes:
        plan: what it is made of.
        name: its name in the engine.
        identity: its id there.
        have: protections that its guest found: name -> how.
        versions: of the languages in it.
        lost: done when it has ended, or its channel is gone: no job can be followed in it any more.
    """

    def __init__(self, engine: Engine, plan: Plan, name: str, identity: str) -> None:
        self._engine = engine
        self.plan, self.name, self.identity = plan, name, identity
        self.have: Mapping[str, str] = {}
        self.versions: Mapping[str, str] = {}
        self._main: Streams | None = None
        self._relay: Streams | None = None
        self._removal: asyncio.Task[None] | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, engine: Engine, plan: Plan) -> "Container":
        """Makes, starts and greets a container.

        Raises:
            CellUnavailable: the engine did not do its part, or the guest did not answer; nothing is left.
        """
        name = f"codemend-{os.getpid()}-{secrets.token_hex(6)}"
        job_user, relay_user = _users(plan)
        command = [*_RUN, "container", plan.session, *plan.preload]
        making = asyncio.ensure_future(
            engine.create(
                name,
                plan.image,
                command,
                _host_config(plan, job_user, relay_user),
                user=f"{job_user}:{job_user}",
                hostname="cell",
                labels={OWNER_LABEL: plan.owner, LEASE_LABEL: name},
            )
        )
        try:
            identity = await asyncio.shield(making)
        except NotFound as error:
            raise CellUnavailable(f"the engine has no image {plan.image}: make sandbox-image builds it") from error
        except BaseException:
            await asyncio.shield(_unmake(engine, making, name))
            raise
        container = cls(engine, plan, name, identity)
        try:
            await container._begin(f"{relay_user}:{relay_user}")
        except BaseException as error:
            await asyncio.shield(container.destroy())
            await asyncio.to_thread(kill_sandboxes, {identity})
            if isinstance(error, (NotFound, TimeoutError)):
                raise CellUnavailable(f"a container did not come up within {_START_S:g} s") from error
            raise
        return container

    async def _begin(self, relay_user: str) -> None:
        self._main = await Streams.over(await self._engine.attach(self.identity), framed=False)
        await self._engine.start(self.identity, _START_S)
        handle = await self._engine.execute(self.identity, [*_RUN, "relay"], relay_user, _START_S)
        self._relay = await Streams.over(handle, framed=True)
        for stream in (self._main, self._relay):
            stream.closed.add_done_callback(lambda _closed: None if self.lost.done() else self.lost.set_result(None))
        ready: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def take(kind: int, body: bytes) -> None:
            if kind != FromGuest.READY or ready.done():
                raise ValueError(f"a frame of kind {kind} instead of the greeting")
            ready.set_result(body)

        self._relay.on_frame = take
        self._relay.send(frames.pack_json(ToGuest.HELLO, filters=self.plan.filters))
        async with asyncio.timeout(_START_S):
            await asyncio.wait((ready, self.lost), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            words = self.words or self._relay.fault or "no word"
            raise CellUnavailable(f"the guest in a new container did not answer: {words}")
        self._take_greeting(ready.result())

    def _take_greeting(self, body: bytes) -> None:
        try:
            message = json.loads(body)
            protocol = int(message["protocol"])
            self.versions = {str(name)[:64]: str(text)[:64] for name, text in dict(message["versions"]).items()}
            self.have = {str(name)[:64]: str(how)[:256] for name, how in dict(message["have"]).items()}
        except (ValueError, TypeError, KeyError) as error:
            raise CellFailure(f"the guest in a container greets in a form that cannot be read: {error}") from error
        if protocol != frames.PROTOCOL:
            raise CellUnavailable(
                f"image {self.plan.image} speaks version {protocol} of the protocol, this service {frames.PROTOCOL}: "
                "rebuild it with make sandbox-image"
            )

    @property
    def is_alive(self) -> bool:
        """Whether it can take a job, as far as is known."""
        streams = (self._main, self._relay)
        return self._removal is None and all(streams) and not self.lost.done()

    @property
    def fault(self) -> str:
        """What was wrong with its frames; empty: nothing."""
        return self._relay.fault if self._relay else ""

    def listen(self, on_frame: OnFrame) -> None:
        """Sets who gets its frames."""
        if self._relay is not None:
            self._relay.on_frame = on_frame

    def send(self, frame: bytes) -> None:
        """Sends one frame."""
        if self._relay is not None:
            self._relay.send(frame)

    async def was_out_of_memory(self) -> bool | None:
        """Whether it was killed for the memory that it used; None where it still runs.

        Raises:
            CellUnavailable: the engine does not say.
        """
        deadline = time.monotonic() + _STATE_FOLLOWS_S
        while True:
            try:
                state = await self._engine.state(self.identity)
            except NotFound:
                return False
            if has_stopped(str(state.get("Status"))):
                return bool(state.get("OOMKilled"))
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(_STATE_PAUSE_S)

    @property
    def words(self) -> str:
        """The last words of its two processes, for an error or a log; not to be trusted."""
        return " / ".join(stream.words for stream in (self._main, self._relay) if stream and stream.words)

    def begin_destroying(self) -> "asyncio.Task[None]":
        """Starts the removal, once; the task ends when the container is gone."""
        if self._removal is None:
            self._removal = asyncio.create_task(self._remove())
        return self._removal

    async def destroy(self) -> None:
        """Kills and removes it, with all that runs in it.

        Raises:
            CellUnavailable: the engine did not; a sweep will try again.
        """
        await asyncio.shield(self.begin_destroying())

    async def _remove(self) -> None:
        try:
            await self._engine.remove(self.identity)
        finally:
            for stream in (self._main, self._relay):
                if stream is not None:
                    stream.close()


async def _unmake(engine: Engine, making: "asyncio.Future[str]", name: str) -> None:
    """Removes what a call that was given up has made, once it is over: it cannot be called back."""
    await asyncio.wait({making})
    with contextlib.suppress(CellUnavailable, NotFound):
        await engine.remove(name)
