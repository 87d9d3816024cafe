"""Who owns a container, told by its label, and what to do with those whose owner is gone.

A service that was killed cannot remove its containers: the next one does, and every living one looks now and then.
"""

import asyncio
import logging
import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import NotFound

from sandbox_service.cells.docker.container import OWNER_LABEL
from sandbox_service.cells.docker.engine import Engine, has_stopped
from sandbox_service.cells.docker.leaks import kill_sandboxes, without_bundle
from sandbox_service.errors import CellUnavailable

_log = logging.getLogger(__name__)
_IN_THE_MAKING_S = 180.0
"""A container of this service that is younger may be on its way into the pool."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, named for good.

    Attributes:
        machine: boot id of its kernel and number of its pid namespace: where its pid means something.
        pid: its process id there.
        started: its start time in clock ticks since boot.
    """

    machine: str
    pid: int
    started: str

    @classmethod
    def this_process(cls) -> "Owner":
        """The owner of what this process makes."""
        return cls(_machine(), os.getpid(), _start_time(os.getpid()))

    @classmethod
    def parse(cls, label: str) -> "Owner | None":
        """The owner that a label names; None where it names none."""
        machine, _, rest = label.rpartition("/")
        pid, _, started = rest.partition(":")
        return cls(machine, int(pid), started) if machine and pid.isdigit() else None

    def __str__(self) -> str:
        return f"{self.machine}/{self.pid}:{self.started}"

    @property
    def is_dead(self) -> bool | None:
        """Whether that process is gone; None where it cannot be seen from here."""
        return _start_time(self.pid) != self.started if self.machine == _machine() else None


def _machine() -> str:
    """Boot id and pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 - a magic link, followed


def _start_time(pid: int) -> str:
    """Field 22 of /proc/PID/stat; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


async def sweep(engine: Engine, own: Owner, known: Collection[str]) -> int:
    """Removes containers whose owner is dead, and own ones that nobody here knows of. Returns how many.

    One whose owner cannot be seen from here (another machine's, or another pid namespace's) is removed once it has
    stopped, which it does by itself when its service goes away.

    Args:
        engine: the engine.
        own: this service.
        known: names of this service's containers, those being made included.
    """
    removed = 0
    for entry in await engine.labelled(OWNER_LABEL):
        if _is_orphan(entry, own, known):
            with suppress(CellUnavailable, NotFound):
                await engine.remove(str(entry["Id"]))
                removed += 1
                await asyncio.to_thread(kill_sandboxes, {str(entry["Id"])})
    if removed:
        _log.info("removed containers that a dead service had left", extra={"containers": removed})
    for identity in await asyncio.to_thread(without_bundle):
        try:
            await engine.state(identity)
        except NotFound:
            await asyncio.to_thread(kill_sandboxes, {identity})
    return removed


def _is_orphan(entry: Mapping[str, Any], own: Owner, known: Collection[str]) -> bool:
    owner = Owner.parse(str((entry.get("Labels") or {}).get(OWNER_LABEL, "")))
    if owner == own:
        is_known = any(str(name).lstrip("/") in known for name in entry.get("Names") or ())
        return not is_known and time.time() - float(entry.get("Created") or 0) > _IN_THE_MAKING_S
    is_dead = owner.is_dead if owner else None
    return has_stopped(str(entry.get("State"))) if is_dead is None else is_dead
