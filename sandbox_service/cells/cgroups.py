"""Control groups of jobs, version 1 or 2, behind one small interface: what a job may use, and what it did use.

Groups live below the service's own, in a directory named after the service's process, so that a later service can
tell the leftovers of a dead one and remove them.
"""

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sandbox_service.domain import Limits

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "codemend-"
_PERIOD_US = 100_000
_REMOVE_DEADLINE_S = 2.0
"""A group can be removed once its last process is gone, which follows the kill by some milliseconds."""


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """What the processes of one group used."""

    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0
    out_of_memory_kills: int = 0
    process_limit_hits: int = 0


class Cgroups(Protocol):
    """A hierarchy that this service may write to."""

    controllers: frozenset[str]
    """Those of "memory", "pids" and "cpu" that bite here."""
    version: int

    def create(self, name: str, limits: Limits) -> "Group":
        """Makes the group of one job."""

    def close(self) -> None:
        """Removes what the service made for itself."""


@dataclass(slots=True)
class Group:
    """One job's group: directories to read from, descriptors for its first process to join by."""

    directories: dict[str, Path]
    version: int
    descriptors: list[int] = field(default_factory=list)

    @property
    def counts_cpu(self) -> bool:
        """Whether `usage` knows the processor time."""
        return self.version == 2 or "cpuacct" in self.directories  # noqa: PLR2004

    def usage(self) -> GroupUsage:
        """What was used so far; zero for what is not counted here."""
        if self.version == 2:  # noqa: PLR2004
            cpu = _table(self.directories["unified"] / "cpu.stat").get("usage_usec", 0) / 1e6
            peak = _number(self.directories["unified"] / "memory.peak")
            kills = _table(self.directories["unified"] / "memory.events").get("oom_kill", 0)
            hits = _table(self.directories["unified"] / "pids.events").get("max", 0)
            return GroupUsage(cpu, peak, kills, hits)
        cpu = _number(self.directories["cpuacct"] / "cpuacct.usage") / 1e9 if "cpuacct" in self.directories else 0.0
        peak = kills = hits = 0
        if "memory" in self.directories:
            peak = _number(self.directories["memory"] / "memory.max_usage_in_bytes")
            kills = _table(self.directories["memory"] / "memory.oom_control").get("oom_kill", 0)
        if "pids" in self.directories:
            hits = _table(self.directories["pids"] / "pids.events").get("max", 0)
        return GroupUsage(cpu, peak, kills, hits)

    def close_descriptors(self) -> None:
        """Closes the service's copies once the job has its own."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def remove(self) -> bool:
        """Removes the group; False while processes are still in it."""
        self.close_descriptors()
        for name, directory in list(self.directories.items()):
            try:
                directory.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                continue
            del self.directories[name]
        return not self.directories


class CgroupsV1:
    """One directory a controller, below the one that the service itself is in."""

    version = 1

    def __init__(self, parents: dict[str, Path]) -> None:
        self._parents = parents
        self.controllers = frozenset(parents) & {"memory", "pids", "cpu"}

    def create(self, name: str, limits: Limits) -> Group:
        """Makes the group of one job."""
        group = Group({}, self.version)
        for controller, parent in self._parents.items():
            directory = parent / name
            directory.mkdir()
            group.directories[controller] = directory
            for file, value in _v1_values(controller, limits).items():
                with contextlib.suppress(FileNotFoundError):  # memsw is there only where swap is accounted
                    (directory / file).write_text(str(value))
            group.descriptors.append(os.open(directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        return group

    def close(self) -> None:
        """Removes the service's own directories."""
        for parent in self._parents.values():
            with contextlib.suppress(OSError):
                parent.rmdir()


class CgroupsV2:
    """One directory in the unified hierarchy."""

    version = 2

    def __init__(self, parent: Path, controllers: frozenset[str]) -> None:
        self._parent = parent
        self.controllers = controllers

    def create(self, name: str, limits: Limits) -> Group:
        """Makes the group of one job."""
        directory = self._parent / name
        directory.mkdir()
        group = Group({"unified": directory}, self.version)
        values: dict[str, object] = {}
        if "memory" in self.controllers:
            values |= {"memory.max": limits.memory_bytes, "memory.swap.max": 0, "memory.oom.group": 0}
        if "pids" in self.controllers:
            values["pids.max"] = limits.processes + 1
        if "cpu" in self.controllers:
            values["cpu.max"] = f"{_PERIOD_US} {_PERIOD_US}"
        for file, value in values.items():
            with contextlib.suppress(FileNotFoundError):
                (directory / file).write_text(str(value))
        group.descriptors.append(os.open(directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        return group

    def close(self) -> None:
        """Removes the service's own directory."""
        with contextlib.suppress(OSError):
            self._parent.rmdir()


def _v1_values(controller: str, limits: Limits) -> dict[str, object]:
    match controller:
        case "memory":
            return {"memory.limit_in_bytes": limits.memory_bytes, "memory.memsw.limit_in_bytes": limits.memory_bytes}
        case "pids":
            return {"pids.max": limits.processes + 1}  # and the cell's own first process
        case "cpu":
            return {"cpu.cfs_period_us": _PERIOD_US, "cpu.cfs_quota_us": _PERIOD_US}  # one core a job
        case _:
            return {}


def find() -> Cgroups | None:
    """The control groups that this process may make here, or None. Removes leftovers of services that are dead."""
    lines = Path("/proc/self/cgroup").read_text().splitlines() if Path("/proc/self/cgroup").exists() else []
    own = {names: path for _number_, names, path in (line.split(":", 2) for line in lines)}
    parents = {}
    for names, path in own.items():
        for controller in set(names.split(",")) & {"memory", "pids", "cpu", "cpuacct"}:
            parent = _own_directory(_ROOT / controller, path)
            if parent:
                parents[controller] = parent
    if parents:
        return CgroupsV1(parents)
    return _find_v2(own.get("", "/"))


def _find_v2(path: str) -> Cgroups | None:
    if not (_ROOT / "cgroup.controllers").exists():
        return None
    parent = _own_directory(_ROOT, path)
    if parent is None:
        return None
    available = frozenset((parent / "cgroup.controllers").read_text().split()) & {"memory", "pids", "cpu"}
    enabled = set()
    for controller in available:
        with contextlib.suppress(OSError):
            (parent / "cgroup.subtree_control").write_text(f"+{controller}")
            enabled.add(controller)
    if not enabled:
        parent.rmdir()
        return None
    return CgroupsV2(parent, frozenset(enabled))


def _own_directory(root: Path, path: str) -> Path | None:
    """Makes `codemend-PID-STARTTIME` below the service's own group (or at the top, in a container), or returns None."""
    name = f"{_PREFIX}{os.getpid()}-{_start_time(os.getpid())}"
    for base in (root / path.lstrip("/"), root):
        try:
            _remove_leftovers(base)
            (base / name).mkdir(exist_ok=True)
        except OSError:
            continue
        return base / name
    return None


def _remove_leftovers(base: Path) -> None:
    for directory in base.glob(f"{_PREFIX}*-*"):
        pid, _, started = directory.name.removeprefix(_PREFIX).partition("-")
        if pid.isdigit() and _start_time(int(pid)) == started:
            continue
        deadline = time.monotonic() + _REMOVE_DEADLINE_S
        for group in [path for path in directory.iterdir() if path.is_dir()] + [directory]:
            while time.monotonic() < deadline:
                try:
                    group.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)
                else:
                    break


def _start_time(pid: int) -> str:
    """Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat).

    With the pid, it names a process for good.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _table(path: Path) -> dict[str, int]:
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}  # noqa: PLR2004
    except OSError:
        return {}
