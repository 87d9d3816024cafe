"""What a sandbox service has on the machine, seen from outside: processes, control groups, mounts, files of its jobs.

Other services may run on the same machine: theirs are told apart by the control group's name, which holds the pid.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

JOB_UIDS = range(790_000_000, 791_000_000)
"""User ids on the host that jobs have."""
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")
_READY = "codemend-ready"
"""Name of the processes of a cell that waits for its job: such cells come and go with the jobs."""
_OF_ENGINES = ("/var/lib/docker/", "/run/docker/")
"""Where a container engine of this machine mounts what is its own, at any time."""
_ANY_SERVICE = re.compile(r"/codemend-([0-9]+)-")


@dataclass(frozen=True)
class Footprint:
    """What there is at one moment. Two are equal when the service has the same things on the machine."""

    processes: dict[int, str] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    mounts: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()

    def beyond(self, before: "Footprint") -> dict[str, list[str]]:
        """What has come since, by kind; empty where nothing has."""
        new = {
            "processes": [f"{pid} {name}" for pid, name in self.processes.items() if pid not in before.processes],
            "groups": sorted(self.groups - before.groups),
            "mounts": sorted(self.mounts - before.mounts),
            "files": sorted(self.files - before.files),
        }
        return {kind: found for kind, found in new.items() if found}


def footprint(service: int, folder: Path | None = None) -> Footprint:
    """Looks at the machine; `folder` is the service's TMPDIR."""
    shared = [path for place in _SHARED for path in Path(place).iterdir() if _owner(path) in JOB_UIDS]
    own = list(folder.rglob("*")) if folder else []
    mounts = _read(Path(f"/proc/{service}/mountinfo")).splitlines()
    return Footprint(
        processes={pid: _name(pid) for pid in processes(service)},
        groups=frozenset(map(str, groups(service))),
        mounts=frozenset(line for line in mounts if not any(f" {place}" in line for place in _OF_ENGINES)),
        files=frozenset(map(str, [*shared, *own])),
    )


def groups(service: int) -> list[Path]:
    """Directories of the service and of its jobs in all control group hierarchies; not those of waiting cells."""
    tops = [top for place in _group_roots() for top in place.glob(f"codemend-{service}-*/")]
    found = [*tops, *(path for top in tops for path in _folders(top))]
    return sorted(path for path in found if not _is_of_waiting_cell(path))


def _folders(group: Path) -> list[Path]:
    """Groups below one; none where it goes just now."""
    try:
        return [path for path in group.iterdir() if path.is_dir()]
    except OSError:
        return []


def _is_of_waiting_cell(group: Path) -> bool:
    members = {int(pid) for pid in _read(group / "cgroup.procs").split()}
    return bool(members) and all(is_waiting(pid) for pid in members)


def is_waiting(pid: int) -> bool:
    """Whether a process is part of a cell that waits for its job."""
    return _read(Path(f"/proc/{pid}/comm")).strip() == _READY


def _group_roots() -> set[Path]:
    """Places where a service of this machine may have its own directory: below this process's groups, or at the top."""
    roots = set()
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _number, names, path = line.split(":", 2)
        for name in names.split(","):
            top = Path("/sys/fs/cgroup") / name
            roots |= {top, top / path.lstrip("/")}
    return {root for root in roots if root.is_dir()}


def processes(service: int) -> set[int]:
    """Every process that a service has started, directly or not, and every process with a job's user id or group.

    Those of another living service are left out, and those of cells that wait for their jobs.
    """
    parents = dict(_parents())
    found = set()
    for pid in parents:
        groups_of_it = _read(Path(f"/proc/{pid}/cgroup"))
        owners = {int(match) for match in _ANY_SERVICE.findall(groups_of_it)}
        stray = not owners and host_uid(pid) in JOB_UIDS
        if (service in owners or stray or _descends(pid, service, parents)) and not is_waiting(pid):
            found.add(pid)
    return found


def waiting(service: int) -> set[int]:
    """Processes of a service's cells that wait for their jobs."""
    parents = dict(_parents())
    return {pid for pid in parents if _descends(pid, service, parents) and is_waiting(pid)}


def children(pid: int) -> set[int]:
    """Direct children."""
    return {child for child, parent in _parents() if parent == pid}


def alive(pids: set[int]) -> set[int]:
    """Those that still run; a zombie does not."""
    return {pid for pid in pids if _state(pid) not in ("", "Z", "X")}


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            yield int(entry.name), int(fields[1])


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; empty where the process is gone."""
    return _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()


def _state(pid: int) -> str:
    return next(iter(_stat(pid)), "")


def _name(pid: int) -> str:
    return _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ")[:80] or f"[{_state(pid)}]"


def host_uid(pid: int) -> int:
    """Real user id of a process as the host sees it; -1 where it is gone."""
    match = re.search(r"^Uid:\s+([0-9]+)", _read(Path(f"/proc/{pid}/status")), re.MULTILINE)
    return int(match[1]) if match else -1


def _owner(path: Path) -> int:
    try:
        return path.lstat().st_uid
    except OSError:
        return -1


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
