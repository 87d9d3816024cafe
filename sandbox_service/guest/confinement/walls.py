"""The walls around one job: its namespaces, its mounts, and the powers that are given up before its program starts.

Two steps, since the second needs what the first builds: `enter` and `lower` make process 1 of the cell, `confine`
makes the program's process.
"""

import contextlib
import os
import resource
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sandbox_service.guest.confinement import chroots, landlock, masks, rootfs, syscalls
from sandbox_service.guest.confinement import filter as calls
from sandbox_service.guest.confinement.landlock import Ruleset

_NAMESPACES = {
    "mount_namespace": syscalls.CLONE_NEWNS,
    "network_namespace": syscalls.CLONE_NEWNET,
    "ipc_namespace": syscalls.CLONE_NEWIPC,
    "uts_namespace": syscalls.CLONE_NEWUTS,
    "cgroup_namespace": syscalls.CLONE_NEWCGROUP,
}
_NOT_IN_A_CHROOT = ("user_namespace", "mount_namespace", "cgroup_namespace")
"""A process in a chroot gets no user namespace; the other two gVisor says it makes, and does not."""
_PROTECTED_SCORE, _FIRST_VICTIM_SCORE = -900, 900
"""oom_score_adj: the kernel's out-of-memory killer takes the program before its init."""
_THREADS_BYTES = 128 * 1024 * 1024
"""Stacks of the threads that such a program starts at once: they count as data and are not used."""
_ANY_SIZE = "size=1m,nr_inodes=64"
"""Of a file system that is resized later: one without a limit could not get one any more."""
_NO_SETUID = syscalls.MS_NOSUID | syscalls.MS_NODEV


@dataclass(frozen=True, slots=True)
class Have:
    """What can be had on this machine, found out once for all jobs.

    Attributes:
        namespaces: name -> how, of those that a job can get.
        filter: the filter of system calls; None: this machine takes none.
        landlock: the rules of Landlock; None: this kernel has none.
        masked: files and folders of /proc to be hidden.
        box: a job's root where there are no mount namespaces.
    """

    namespaces: dict[str, str] = field(default_factory=dict)
    filter: calls.Filter | None = None
    landlock: Ruleset | None = None
    masked: tuple[str, ...] = ()
    box: chroots.Box | None = None

    def described(self) -> dict[str, str]:
        """Name of every protection -> how it is had here."""
        found = dict(self.namespaces)
        if self.filter is not None:
            found["seccomp"] = self.filter.describe()
        if self.landlock is not None:
            found["landlock"] = self.landlock.describe()
        return found


def probe(filters: tuple[bytes, bytes], *, unprivileged: bool) -> Have:
    """Tries in a child each what a job can get here. To be called while a whole /proc is in sight.

    Args:
        filters: the filter of system calls that listens, and the one that kills; empty: there is none.
        unprivileged: whether this process is root of a user namespace only.
    """
    found = {"pid_namespace": "a new one for every job, which dies whole"}
    for name, flag in {"user_namespace": syscalls.CLONE_NEWUSER, **_NAMESPACES}.items():
        if not syscalls.HAS_MOUNT_NAMESPACES and name in _NOT_IN_A_CHROOT:
            continue
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
    return Have(found, calls.probe(*filters), landlock.probe(), masks.probe(unprivileged=unprivileged))


def enter(job: dict[str, Any], have: Have) -> None:
    """New namespaces and the job's own mounts.

    One memory file system of limited size behind all places that it may write to.

    Raises:
        OSError: the kernel refused a wall that `probe` had found; the job must not start.
    """
    _separate(have)
    if have.box is not None:
        have.box.enter(job)
        lay(rootfs.TESTS, job["tests"])
        link(rootfs.TESTS, job["start"].get("links", {}) if job["tests"] else {})
    else:
        _mount(job["uid"], have, _size(job))
        _mount_tests(job)


def prepare(uid: int, have: Have) -> None:
    """What `enter` does, as far as it is the same for every job; `fit` does the rest once the job is known.

    Raises:
        OSError: as `enter`.
    """
    _separate(have)
    _mount(uid, have, _ANY_SIZE)


def fit(job: dict[str, Any]) -> None:
    """What is left of `enter` after `prepare`: the size of the file system, and the tests.

    Raises:
        OSError: as `enter`.
    """
    syscalls.mount("none", rootfs.SCRATCH, flags=syscalls.MS_REMOUNT | _NO_SETUID, options=_size(job))
    _mount_tests(job)


def _separate(have: Have) -> None:
    flags = 0
    for name, flag in _NAMESPACES.items():
        if name in have.namespaces:
            flags |= flag
    syscalls.unshare(flags)
    if "uts_namespace" in have.namespaces:
        socket.sethostname("cell")
    if "network_namespace" in have.namespaces:
        syscalls.raise_loopback()


def _size(job: dict[str, Any]) -> str:
    return f"size={job['limits']['disk_bytes']},nr_inodes={job['limits']['inodes']}"


def _mount(uid: int, have: Have, size: str) -> None:
    syscalls.mount("tmpfs", rootfs.SCRATCH, "tmpfs", _NO_SETUID, f"mode=0755,{size}")
    for name, place in rootfs.WRITABLE.items():
        inside = f"{rootfs.SCRATCH}/{name}"
        os.mkdir(inside)
        os.chown(inside, uid, uid)
        syscalls.mount(inside, place, flags=syscalls.MS_BIND)
    syscalls.mount("proc", "/proc", "proc", _NO_SETUID | syscalls.MS_NOEXEC, "hidepid=2")
    masks.lay(have.masked)


def _mount_tests(job: dict[str, Any]) -> None:
    if job["tests"]:
        inside = f"{rootfs.SCRATCH}/tests"
        os.mkdir(inside)
        lay(inside, job["tests"])
        link(inside, job["start"].get("links", {}))
        syscalls.bind(inside, rootfs.TESTS, syscalls.MS_RDONLY | _NO_SETUID)
    syscalls.umount(rootfs.SCRATCH)


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


def link(place: str, links: dict[str, str]) -> None:
    """Makes symbolic links below `place` (path -> target), by which code under test appears beside its tests."""
    for path, target in links.items():
        os.symlink(target, f"{place}/{path}")


def settle() -> None:
    """The first step of giving up power, which needs nothing of the job: no exec can give a capability back."""
    _score(_PROTECTED_SCORE)
    syscalls.drop_capability_bounds()


def lower(uid: int, outputs: Sequence[int], *, unprivileged: bool) -> None:
    """After `settle`: gives up root and every capability for good.

    Process 1 keeps only what the kernel gives every init process. The pipes of the program's output become the job's,
    so that it can open them by name (/dev/stderr).
    """
    if not unprivileged:
        for pipe in outputs:
            with contextlib.suppress(PermissionError):  # gVisor: a pipe keeps its owner
                os.fchown(pipe, uid, uid)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        other = uid + (0 if syscalls.HAS_MOUNT_NAMESPACES else chroots.INIT_UID_OFFSET)
        os.setresuid(other, uid, other)
    syscalls.drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.parent_death_signal(signal.SIGKILL)  # again: a change of user id clears it


def give_up(have: Have) -> None:
    """In the program's own process: a user namespace that owns none of the others, and no capability in it."""
    os.setsid()
    _score(_FIRST_VICTIM_SCORE)
    os.setresuid(os.geteuid(), os.geteuid(), os.geteuid())  # process 1 may have others: see `lower`
    if "user_namespace" in have.namespaces:
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


def restrict(have: Have, handover: socket.socket) -> None:
    """After `give_up`: Landlock and the filter of system calls, whose listener goes to process 1 over `handover`."""
    if have.landlock is not None:
        have.landlock.restrict()
    if have.filter is not None:
        have.filter.install(handover)
    handover.close()


def limit(job: dict[str, Any]) -> None:
    """The program's rlimits; `job` holds its `limits` and its `start`."""
    limits = job["limits"]
    for kind, soft, hard in (
        (resource.RLIMIT_CORE, 1, 1),  # 0 would still start the host's core handler where core_pattern is a pipe
        (resource.RLIMIT_CPU, limits["cpu_seconds"], limits["cpu_seconds"] + 1),
        (resource.RLIMIT_FSIZE, limits["file_bytes"], limits["file_bytes"]),
        (resource.RLIMIT_NPROC, limits["rlimit_processes"], limits["rlimit_processes"]),
        (resource.RLIMIT_MEMLOCK, 0, 0),
    ):
        resource.setrlimit(kind, (soft, hard))
    with contextlib.suppress(ValueError):  # gVisor has neither such queues nor the limit
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (65536, 65536))
    if limits["address_space"]:
        _limit_memory(limits["address_space"], reserves=job["start"].get("reserves_address_space", False))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits["open_files"], limits["open_files"]))  # last: it may be very low


def _limit_memory(size: int, *, reserves: bool) -> None:
    """Limits the process itself, where no control group counts: its address space, or its data where it reserves more.

    Args:
        size: bytes that the program may take beyond what this process has already.
        reserves: whether the program reserves address space that it does not use.
    """
    kind = resource.RLIMIT_DATA if reserves else resource.RLIMIT_AS
    if reserves:
        ceiling = _THREADS_BYTES + size
    else:
        with open("/proc/self/statm") as stream:
            ceiling = int(stream.read().split()[0]) * resource.getpagesize() + size
    resource.setrlimit(kind, (ceiling, ceiling))


def _score(value: int) -> None:
    with contextlib.suppress(OSError):  # lowering needs a power that an unprivileged service does not have
        _write("/proc/self/oom_score_adj", str(value))


def _write(path: str, text: str) -> None:
    with open(path, "w") as stream:
        stream.write(text)
