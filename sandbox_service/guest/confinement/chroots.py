"""Cells where the kernel has no mount namespaces, as gVisor before 2023: every job gets a root of its own by chroot.

The tree of `rootfs` is built in a folder, and the template moves into it by chroot; below its `CELLS` each job
has a memory file system with the template's folders shown in it. Mounts are seen by all here, but nobody's root leads
to another's, and a process without capabilities cannot leave its root. What a job leaves mounted its keeper unmounts.
"""

import contextlib
import os
from dataclasses import dataclass
from typing import Any

from sandbox_service.guest.confinement import rootfs, syscalls

CELLS = "/cells"
_PLACE = "codemend-root-"
_PLACES = ("/dev/shm", "/run", "/tmp")  # noqa: S108 - a folder made with mkdir, for its owner alone
_SHOWN_EMPTY = ("run", "sys", "proc")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
_USERS = "var/empty/users"
_NO_SETUID = syscalls.MS_NOSUID | syscalls.MS_NODEV
INIT_UID_OFFSET = 100_000_000
"""Process 1 has this much above its job's user id as its real and saved one: so the job cannot signal or trace it,
which such a kernel lets every process of the same user do to an init process too. Its effective one is the job's."""


def make_place() -> str:
    """A folder for a template's tree; what dead templates have left is removed first.

    Raises:
        OSError: nothing can be written in any of the usual places.
    """
    for parent in _PLACES:
        with contextlib.suppress(OSError):
            for name in os.listdir(parent):
                if name.startswith(_PLACE) and not os.path.exists(f"/proc/{name.removeprefix(_PLACE)}"):
                    remove_place(f"{parent}/{name}")
            place = f"{parent}/{_PLACE}{os.getpid()}"
            os.mkdir(place, 0o755)
            return place
    raise OSError(f"no folder can be made in {', '.join(_PLACES)}")


def remove_place(place: str) -> None:
    """Unmounts and removes a template's folder, with all that lies mounted in it."""
    for mounted in reversed(_mounted_below(place)):
        with contextlib.suppress(OSError):
            syscalls.umount(mounted)
    with contextlib.suppress(OSError):
        os.rmdir(place)


def move_into(root: str) -> tuple[str, ...]:
    """Makes `root` this process's root. Returns what is mounted inside: the paths that each job is to be shown."""
    os.mkdir(f"{root}{CELLS}", 0o700)
    shown = tuple(path.removeprefix(root) for path in _mounted_below(root) if path != root)
    os.chroot(root)
    os.chdir("/")
    return shown


def _mounted_below(place: str) -> list[str]:
    with open("/proc/mounts") as mounts:
        paths = [line.split()[1] for line in mounts]
    return [path for path in paths if path == place or path.startswith(f"{place}/")]


@dataclass(frozen=True, slots=True)
class Box:
    """The root of one job.

    Attributes:
        path: the folder that it is mounted on, in the template's tree.
        shown: what is mounted in that tree.
        masked: files and folders of /proc to be hidden.
    """

    path: str
    shown: tuple[str, ...]
    masked: tuple[str, ...]

    def make(self) -> None:
        """Makes the folder; for the keeper, which stays outside."""
        os.mkdir(self.path, 0o755)

    def enter(self, job: dict[str, Any]) -> None:
        """Builds the root and moves this process into it.

        Raises:
            OSError: the kernel refused a mount; the text names it.
        """
        box = self.path
        syscalls.mount("tmpfs", box, "tmpfs", _NO_SETUID, f"mode=0755,size={job['limits']['disk_bytes']}")
        for source in self._sources():
            os.makedirs(f"{box}{source}", exist_ok=True)
            syscalls.mount(source, f"{box}{source}", flags=syscalls.MS_BIND)
        for name in os.listdir("/"):
            if os.path.islink(f"/{name}"):
                os.symlink(os.readlink(f"/{name}"), f"{box}/{name}")
        for name in (*_SHOWN_EMPTY, rootfs.TESTS.lstrip("/"), "var/empty", "dev"):
            os.makedirs(f"{box}/{name}")
        for place in rootfs.WRITABLE.values():
            os.makedirs(f"{box}{place}")
            os.chown(f"{box}{place}", job["uid"], job["uid"])
        _devices(box)
        _name(box, job["uid"])
        syscalls.mount("proc", f"{box}/proc", "proc", _NO_SETUID | syscalls.MS_NOEXEC)
        for path in self.masked:
            nothing = "run" if os.path.isdir(f"{box}{path}") else "dev/null"
            syscalls.mount(f"{box}/{nothing}", f"{box}{path}", flags=syscalls.MS_BIND)
        os.chroot(box)
        os.chdir("/")

    def leave_nothing(self) -> None:
        """Unmounts and removes all that was made, as far as it came; for the keeper."""
        devices = [f"/dev/{name}" for name in _DEVICES]
        for path in (*reversed([*self._sources(), *devices, "/etc/passwd", "/proc", *self.masked]), ""):
            with contextlib.suppress(OSError):
                syscalls.umount(f"{self.path}{path}")
        with contextlib.suppress(OSError):
            os.rmdir(self.path)

    def _sources(self) -> list[str]:
        """Folders of the template's root that jobs see as they are, and the mounts below them."""
        own = {CELLS, rootfs.TESTS, rootfs.SCRATCH, "/dev", *(f"/{name}" for name in _SHOWN_EMPTY)}
        own |= {f"/{place.split('/')[1]}" for place in rootfs.WRITABLE.values()}
        entries = [entry.path for entry in os.scandir("/") if entry.is_dir(follow_symlinks=False)]
        tops = sorted(set(entries) - own)
        return tops + [path for path in self.shown if any(path.startswith(f"{top}/") for top in tops)]


def _devices(box: str) -> None:
    for name in _DEVICES:
        with open(f"{box}/dev/{name}", "x"):
            syscalls.mount(f"/dev/{name}", f"{box}/dev/{name}", flags=syscalls.MS_BIND)
    for name, target in _LINKS.items():
        os.symlink(target, f"{box}/dev/{name}")


def _name(box: str, uid: int) -> None:
    """Without a user namespace the job sees its user id as it is; its name must be found by it."""
    with open("/etc/passwd") as stream:
        text = stream.read().replace(f"job:x:{rootfs.JOB_UID}:{rootfs.JOB_UID}:", f"job:x:{uid}:{uid}:")
    with open(f"{box}/{_USERS}", "w") as stream:
        stream.write(text)
    syscalls.mount(f"{box}/{_USERS}", f"{box}/etc/passwd", flags=syscalls.MS_BIND)
