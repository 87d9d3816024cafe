"""The list of all protections of a process cell, and which of them this machine gives."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sandbox_service.cells.cgroups import Cgroups
from sandbox_service.cells.filters import Filters
from sandbox_service.domain import Protection

_ALWAYS = {
    "read_only_root": "system programs and libraries; writable are only /work, /tmp, /var/tmp, /dev/shm and the home",
    "no_capabilities": "all sets empty, the bounding set too",
    "no_new_privs": "set; and no set-uid file is honoured on any mount",
    "rlimits": "processor time, file size, open files, processes, locked memory, no core files",
    "hidden_processes": "/proc is the job's own and shows its own processes only",
    "masked_kernel_files": "files of /proc about the whole machine (kallsyms, cmdline, keys, …) are empty",
}
_NAMESPACES = (
    "user_namespace", "mount_namespace", "pid_namespace", "network_namespace", "ipc_namespace", "uts_namespace",
    "cgroup_namespace",
)  # fmt: skip
_NO_NAMESPACE = {"mount_namespace": "this kernel has none: each job has a root of its own instead, by chroot"}
_WITHOUT_MOUNT_NAMESPACE = {
    "hidden_processes": "this kernel cannot: a job sees the number of its cell's process 1, and nothing else of it",
}
_GROUPS = {"memory_cgroup": "memory", "pids_cgroup": "pids", "cpu_cgroup": "cpu"}
_WITHOUT_GROUPS = {
    "memory_cgroup": "no control group can be made here: the cell's process 1 adds up what the job holds, and ends it",
    "pids_cgroup": "no control group can be made here: an rlimit holds the number, and process 1 counts",
    "cpu_cgroup": "no control group can be made here: process 1 adds up the processor time, and ends the job",
}
_KERNEL = {
    "seccomp": "this kernel takes no filter of system calls",
    "landlock": "this kernel has no Landlock, or too old a one (at least version 2, Linux 5.19)",
}
"""Name -> why it is missing."""
NAMES: tuple[str, ...] = (*_NAMESPACES, *_ALWAYS, "own_uid", *_KERNEL, *_GROUPS)


def protections(
    walls: Mapping[str, str], groups: Cgroups | None, filters: Filters, *, unprivileged: bool
) -> tuple[Protection, ...]:
    """Every protection by what the template found (`walls`), and the filters and control groups that can be made."""
    found = [
        Protection(
            name, name in walls, walls.get(name, _NO_NAMESPACE.get(name, "this kernel or container does not allow it"))
        )
        for name in _NAMESPACES
    ]
    reasons = {} if "mount_namespace" in walls else _WITHOUT_MOUNT_NAMESPACE
    found += [
        Protection(name, in_force=name not in reasons, detail=reasons.get(name, detail))
        for name, detail in _ALWAYS.items()
    ]
    own_uid = (
        "a user id of the host that nothing else has, mapped to 1000"
        if not unprivileged
        else "needs root: jobs have the service's own user id"
    )
    found.append(Protection("own_uid", not unprivileged, own_uid))
    absent = _KERNEL | ({"seccomp": filters.missing} if filters.missing else {})
    found += [Protection(name, name in walls, walls.get(name, reason)) for name, reason in absent.items()]
    for name, controller in _GROUPS.items():
        if groups and controller in groups.controllers:
            found.append(Protection(name, in_force=True, detail=f"control groups version {groups.version}"))
        else:
            found.append(Protection(name, in_force=False, detail=_WITHOUT_GROUPS[name]))
    return tuple(found)


def without(found: Iterable[Protection], missing: Mapping[str, str]) -> tuple[Protection, ...]:
    """The same protections, of which those named in `missing` (name -> why) are not in force; unknown ones follow."""
    kept = tuple(
        replace(wall, in_force=False, detail=missing[wall.name]) if wall.name in missing else wall for wall in found
    )
    known = {wall.name for wall in kept}
    return kept + tuple(
        Protection(name, in_force=False, detail=why) for name, why in missing.items() if name not in known
    )
