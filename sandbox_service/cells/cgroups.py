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
_NO_LIMIT = 2**63
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

    directories: dict[str, str]
    version: int
    descriptors: list[int] = field(default_factory=list)
    _written: dict[str, str] = field(default_factory=dict)

    @property
    def counts_cpu(self) -> bool:
        """Whether `cpu_seconds` knows the processor time."""
        return self.version == 2 or "cpuacct" in self.directories  # noqa: PLR2004

    def limit(self, limits: Limits) -> None:
        """Sets the limits, where they are not set like this already.

        Raises:
            OSError: the kernel refused one: of a group in use, a memory limit below what it uses, for one.
        """
        for controller, directory in self.directories.items():
            values = _v2_values(limits) if controller == "unified" else _v1_values(controller, limits)
            files = list(values)
            is_memory = controller == "memory"
            if is_memory and int(self._written.get(f"{directory}/{files[0]}", _NO_LIMIT)) < limits.memory_bytes:
                files.reverse()  # memory alone may never have a higher limit than memory and swap together
            for file in files:
                self._set(f"{directory}/{file}", values[file])

    def _set(self, path: str, value: str) -> None:
        if self._written.get(path) != value:
            with contextlib.suppress(FileNotFoundError):  # there only where the controller, or swap, is accounted
                _write(path, value)
            self._written[path] = value

    def cpu_seconds(self) -> float:
        """Processor time so far; zero where it is not counted."""
        if self.version == 2:  # noqa: PLR2004
            return _table(f"{self.directories['unified']}/cpu.stat").get("usage_usec", 0) / 1e6
        return _number(f"{self.directories['cpuacct']}/cpuacct.usage") / 1e9 if "cpuacct" in self.directories else 0.0

    def usage(self) -> GroupUsage:
        """What was used so far; zero for what is not counted here."""
        if self.version == 2:  # noqa: PLR2004
            directory = self.directories["unified"]
            peak = _number(f"{directory}/memory.peak")
            kills = _table(f"{directory}/memory.events").get("oom_kill", 0)
            hits = _table(f"{directory}/pids.events").get("max", 0)
            return GroupUsage(self.cpu_seconds(), peak, kills, hits)
        peak = kills = hits = 0
        if "memory" in self.directories:
            peak = _number(f"{self.directories['memory']}/memory.max_usage_in_bytes")
            kills = _table(f"{self.directories['memory']}/memory.oom_control").get("oom_kill", 0)
        if "pids" in self.directories:
            hits = _table(f"{self.directories['pids']}/pids.events").get("max", 0)
        return GroupUsage(self.cpu_seconds(), peak, kills, hits)

    def close_descriptors(self) -> None:
        """Closes the service's copies once the job has its own."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def remove(self) -> bool:
        """Removes the group; False while processes are still in it."""
        self.close_descriptors()
        for name, directory in list(self.directories.items()):
            try:
                os.rmdir(directory)  # noqa: PTH106
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
        """Makes the group of one job.

        Its first process joins by `tasks` and not by `cgroup.procs`: it has one thread, and for a thread that moves
        itself the kernel need not wait until every processor has passed a quiet state (10 to 30 ms).
        """
        return _made({controller: f"{parent}/{name}" for controller, parent in self._parents.items()}, "tasks", limits)

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
        return _made({"unified": f"{self._parent}/{name}"}, "cgroup.procs", limits)

    def close(self) -> None:
        """Removes the service's own directory."""
        with contextlib.suppress(OSError):
            self._parent.rmdir()


def _made(directories: dict[str, str], entrance: str, limits: Limits) -> Group:
    """Makes the directories; plain system calls, since this is on the way of every job."""
    group = Group({}, 2 if "unified" in directories else 1)
    try:
        for controller, directory in directories.items():
            os.mkdir(directory)  # noqa: PTH102
            group.directories[controller] = directory
            group.descriptors.append(os.open(f"{directory}/{entrance}", os.O_WRONLY | os.O_CLOEXEC))
        group.limit(limits)
    except BaseException:
        group.remove()
        raise
    return group


def _v2_values(limits: Limits) -> dict[str, str]:
    return {
        "memory.max": str(limits.memory_bytes),
        "memory.swap.max": "0",
        "memory.oom.group": "0",
        "pids.max": str(limits.processes + 1),
        "cpu.max": f"{_PERIOD_US} {_PERIOD_US}",
    }


def _v1_values(controller: str, limits: Limits) -> dict[str, str]:
    match controller:
        case "memory":
            return dict.fromkeys(("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), str(limits.memory_bytes))
        case "pids":
            return {"pids.max": str(limits.processes + 1)}  # and the cell's own first process
        case "cpu":
            return {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(_PERIOD_US)}  # one core a job
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


def _write(path: str, value: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _read(path: str) -> bytes:
    """A file's content as far as the kernel gives it at once; empty where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _number(path: str) -> int:
    try:
        return int(_read(path))
    except ValueError:
        return 0


def _table(path: str) -> dict[str, int]:
    pairs = (line.split() for line in _read(path).decode("ascii", "replace").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}  # noqa: PLR2004
