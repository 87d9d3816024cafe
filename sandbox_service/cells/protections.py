"""The list of all protections of a process cell, and which of them this machine gives."""

from collections.abc import Mapping

from sandbox_service.cells.cgroups import Cgroups
from sandbox_service.domain import Protection

_ALWAYS = {
    "read_only_root": "system programs and libraries; writable are only /work, /tmp, /var/tmp, /dev/shm and the home",
    "no_capabilities": "all sets empty, the bounding set too",
    "no_new_privs": "set; and no set-uid file is honoured on any mount",
    "rlimits": "processor time, file size, open files, processes, locked memory, no core files",
    "hidden_processes": "/proc is the job's own and shows its own processes only",
}
_NAMESPACES = (
    "user_namespace", "mount_namespace", "pid_namespace", "network_namespace", "ipc_namespace", "uts_namespace",
    "cgroup_namespace",
)  # fmt: skip
_GROUPS = {"memory_cgroup": "memory", "pids_cgroup": "pids", "cpu_cgroup": "cpu"}
_WITHOUT_GROUPS = {
    "memory_cgroup": "no control group can be made here: each process is limited by itself, by its address space",
    "pids_cgroup": "no control group can be made here: an rlimit holds the number, but PROCESS_LIMIT is not recognised",
    "cpu_cgroup": "no control group can be made here: processor time is limited for each process by itself",
}
NAMES: tuple[str, ...] = (*_NAMESPACES, *_ALWAYS, "own_uid", *_GROUPS)


def protections(walls: Mapping[str, str], groups: Cgroups | None, *, unprivileged: bool) -> tuple[Protection, ...]:
    """Every protection by what the template found (`walls`) and the control groups that can be made."""
    found = [
        Protection(name, name in walls, walls.get(name, "this kernel or container does not allow it"))
        for name in _NAMESPACES
    ]
    found += [Protection(name, in_force=True, detail=detail) for name, detail in _ALWAYS.items()]
    own_uid = (
        "a user id of the host that nothing else has, mapped to 1000"
        if not unprivileged
        else "needs root: jobs have the service's own user id"
    )
    found.append(Protection("own_uid", not unprivileged, own_uid))
    for name, controller in _GROUPS.items():
        if groups and controller in groups.controllers:
            found.append(Protection(name, in_force=True, detail=f"control groups version {groups.version}"))
        else:
            found.append(Protection(name, in_force=False, detail=_WITHOUT_GROUPS[name]))
    return tuple(found)
