"""The walls around one job: its namespaces, its mounts, and the powers that are given up before its program starts.

Two steps, since the second needs what the first builds: `enter` and `lower` make process 1 of the cell, `confine`
makes the program's process.
"""

import contextlib
import os
import resource
import signal
import socket
from typing import Any

from sandbox_service.guest import rootfs, syscalls

_NAMESPACES = {
    "mount_namespace": syscalls.CLONE_NEWNS,
    "network_namespace": syscalls.CLONE_NEWNET,
    "ipc_namespace": syscalls.CLONE_NEWIPC,
    "uts_namespace": syscalls.CLONE_NEWUTS,
    "cgroup_namespace": syscalls.CLONE_NEWCGROUP,
}
_PROTECTED_SCORE, _FIRST_VICTIM_SCORE = -900, 900
"""oom_score_adj: the kernel's out-of-memory killer takes the program before its init."""
_HIDDEN_LISTS = ("/proc/keys", "/proc/key-users")
"""Keys belong to users, not to namespaces: what one job leaves readable there, another could find."""
_NO_SETUID = syscalls.MS_NOSUID | syscalls.MS_NODEV


def probe(*, unprivileged: bool) -> dict[str, str]:
    """Tries in a child each which namespaces a job can get here. Returns name -> how, for those that it can."""
    found = {"pid_namespace": "a new one for every job, which dies whole"}
    for name, flag in {"user_namespace": syscalls.CLONE_NEWUSER, **_NAMESPACES}.items():
        pid = os.fork()
        if pid == 0:
            try:
                if name == "user_namespace" and not unprivileged:
                    os.setresuid(rootfs.JOB_UID, rootfs.JOB_UID, rootfs.JOB_UID)
                syscalls.unshare(flag)
            except OSError:
                os._exit(1)
            os._exit(0)
        if os.waitpid(pid, 0)[1] == 0:
            found[name] = "a new one for every job"
    return found


def enter(job: dict[str, Any], have: frozenset[str]) -> None:
    """New namespaces and the job's own mounts.

    One memory file system of limited size behind all places that it may write to.

    Raises:
        OSError: the kernel refused a wall that `probe` had found; the job must not start.
    """
    flags = 0
    for name, flag in _NAMESPACES.items():
        if name in have:
            flags |= flag
    syscalls.unshare(flags)
    if "uts_namespace" in have:
        socket.sethostname("cell")
    if "network_namespace" in have:
        syscalls.raise_loopback()
    limits = job["limits"]
    options = f"mode=0755,size={limits['disk_bytes']},nr_inodes={limits['inodes']}"
    syscalls.mount("tmpfs", rootfs.SCRATCH, "tmpfs", _NO_SETUID, options)
    for name, place in rootfs.WRITABLE.items():
        inside = f"{rootfs.SCRATCH}/{name}"
        os.mkdir(inside)
        os.chown(inside, job["uid"], job["uid"])
        syscalls.mount(inside, place, flags=syscalls.MS_BIND)
    if job["tests"]:
        inside = f"{rootfs.SCRATCH}/tests"
        os.mkdir(inside)
        lay(inside, job["tests"])
        syscalls.bind(inside, rootfs.TESTS, syscalls.MS_RDONLY | _NO_SETUID)
    syscalls.umount(rootfs.SCRATCH)
    syscalls.mount("proc", "/proc", "proc", _NO_SETUID | syscalls.MS_NOEXEC, "hidepid=2")
    for name in _HIDDEN_LISTS:
        if os.path.exists(name):
            syscalls.mount("/dev/null", name, flags=syscalls.MS_BIND)


def lay(place: str, files: list[dict[str, Any]]) -> None:
    """Writes files of a job below `place`.

    Paths were checked by the service; here they cannot reach further than the cell.
    """
    made = {place}
    for entry in files:
        path = f"{place}/{entry['path']}"
        parent = path.rpartition("/")[0]
        if parent not in made:
            os.makedirs(parent, exist_ok=True)
            made.add(parent)
        with open(path, "xb", buffering=0) as stream:
            stream.write(entry["content"])
        if entry["executable"]:
            os.chmod(path, 0o755)  # noqa: S103 - inside the cell, for the job alone


def lower(job: dict[str, Any], *, unprivileged: bool) -> None:
    """Gives up root and every capability for good; process 1 keeps only what the kernel gives every init process."""
    _score(_PROTECTED_SCORE)
    syscalls.drop_capability_bounds()
    if not unprivileged:
        os.setgroups([])
        os.setresgid(job["uid"], job["uid"], job["uid"])
        os.setresuid(job["uid"], job["uid"], job["uid"])
    syscalls.drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.parent_death_signal(signal.SIGKILL)  # again: a change of user id clears it


def confine(job: dict[str, Any], have: frozenset[str]) -> None:
    """In the program's own process.

    A user namespace that owns none of the others, no capability in it, and the rlimits.
    """
    os.setsid()
    _score(_FIRST_VICTIM_SCORE)
    if "user_namespace" in have:
        uid, gid = os.geteuid(), os.getegid()
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else the files below /proc/self belong to root
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{rootfs.JOB_UID} {uid} 1")
        _write("/proc/self/gid_map", f"{rootfs.JOB_UID} {gid} 1")
        with contextlib.suppress(OSError):  # a further wall where the kernel has it: no user namespace below this one
            _write("/proc/sys/user/max_user_namespaces", "0")
        syscalls.drop_capability_bounds()
        syscalls.drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    limits = job["limits"]
    for kind, soft, hard in (
        (resource.RLIMIT_CORE, 1, 1),  # 0 would still start the host's core handler where core_pattern is a pipe
        (resource.RLIMIT_CPU, limits["cpu_seconds"], limits["cpu_seconds"] + 1),
        (resource.RLIMIT_FSIZE, limits["file_bytes"], limits["file_bytes"]),
        (resource.RLIMIT_NPROC, limits["rlimit_processes"], limits["rlimit_processes"]),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 65536, 65536),
    ):
        resource.setrlimit(kind, (soft, hard))
    if limits["address_space"]:
        with open("/proc/self/statm") as stream:
            ceiling = int(stream.read().split()[0]) * resource.getpagesize() + limits["address_space"]
        resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits["open_files"], limits["open_files"]))  # last: it may be very low


def _score(value: int) -> None:
    with contextlib.suppress(OSError):  # lowering needs a power that an unprivileged service does not have
        _write("/proc/self/oom_score_adj", str(value))


def _write(path: str, text: str) -> None:
    with open(path, "w") as stream:
        stream.write(text)
