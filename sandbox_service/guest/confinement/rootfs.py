"""The root that every job sees: a small read-only tree that the template builds once, in memory, and moves into.

It holds the system's programs and libraries, the interpreter, the packages of the environment and a handful of made-
up files in /etc; of the host's own files (home directories, /etc, /var, sockets, devices) nothing. No file is made on
the host for it.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from sandbox_service.guest.confinement import syscalls

JOB_UID = 1000
"""User and group id that a job sees as its own, inside its user namespace."""
PACKAGES = "/opt/codemend/packages"
BIN = "/opt/codemend/bin"
ASSETS = "/opt/codemend"
"""Where the folders of `assets` lie, by their own names."""
WORK, TESTS, HOME = "/work", "/tests", "/home/job"
WRITABLE = {"work": WORK, "tmp": "/tmp", "shm": "/dev/shm", "vartmp": "/var/tmp", "home": HOME}  # noqa: S108 - inside the cell
"""Name in the job's own memory file system -> where the job sees it."""
SCRATCH = "/.job"

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_COPIED = ("ld.so.cache", "mime.types", "services", "protocols", "localtime")
_COPIED_BYTES = 12 * 1024 * 1024
"""Larger package folders are mounted and not copied: a copy takes memory, a mount a few microseconds of every job."""
_READ_ONLY = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV
_ETC = {
    "passwd": "root:x:0:0:root:/:/bin/sh\n"
    f"job:x:{JOB_UID}:{JOB_UID}:job:{HOME}:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/:/bin/sh\n",
    "group": f"root:x:0:\njob:x:{JOB_UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 cell\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
    "hostname": "cell\n",
    "resolv.conf": "",
}


def build(config: dict[str, Any]) -> None:
    """Builds the tree and makes it this process's root, in a mount namespace of its own.

    Args:
        config: `executable` and `prefix` of the interpreter, `packages` (paths that PACKAGES shows), `commands` (name
            -> path of programs that BIN shows), `assets` (folders that ASSETS shows), `hidden` (folders shown empty:
            the interpreter's own site-packages), `keep_proc` (leave the host's /proc under the jobs' own: the kernel
            lets a process without real root mount /proc only where one is in sight), `place` (where the tree is built
            if there are no mount namespaces; see `chroots` for what follows then).

    Raises:
        OSError: a mount was refused; the text names it.
    """
    base = next(path for path in ("/sys", "/mnt", "/srv", "/media") if Path(path).is_dir())
    if syscalls.HAS_MOUNT_NAMESPACES:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    else:
        base = config["place"]
    syscalls.mount("tmpfs", base, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755,size=256m")
    root = Path(base)
    _system(root)
    _interpreter(root, Path(config["executable"]), Path(config["prefix"]))
    _commands(root, config["commands"])
    _packages(root, config["packages"], config["hidden"])
    for source in map(Path, config["assets"]):
        shutil.copytree(source, root / ASSETS.lstrip("/") / source.name)
    _etc(root)
    _devices(root)
    for place in (*WRITABLE.values(), TESTS, SCRATCH, "/proc", "/run", "/sys", "/.old"):
        (root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
    if config["keep_proc"]:
        syscalls.mount("/proc", f"{root}/proc", flags=syscalls.MS_BIND | syscalls.MS_REC)
    if syscalls.HAS_MOUNT_NAMESPACES:
        _move_into(root)


def _move_into(root: Path) -> None:
    syscalls.pivot_root(str(root), f"{root}/.old")
    os.chdir("/")
    syscalls.umount("/.old")
    Path("/.old").rmdir()
    syscalls.mount("none", "/", flags=syscalls.MS_REMOUNT | syscalls.MS_BIND | _READ_ONLY)


def _system(root: Path) -> None:
    for name in _SYSTEM:
        host, inside = Path("/") / name, root / name
        if host.is_symlink():
            inside.symlink_to(host.readlink())
        elif host.is_dir():
            inside.mkdir()
            syscalls.bind(str(host), str(inside), _READ_ONLY)


def _interpreter(root: Path, executable: Path, prefix: Path) -> None:
    if not prefix.is_relative_to("/usr"):
        inside = root / str(prefix).lstrip("/")
        inside.mkdir(parents=True, exist_ok=True)
        syscalls.bind(str(prefix), str(inside), _READ_ONLY)
    commands = root / BIN.lstrip("/")
    commands.mkdir(parents=True)
    for name in ("python", "python3"):
        (commands / name).symlink_to(executable)


def _commands(root: Path, commands: dict[str, str]) -> None:
    """Programs of the host by a name of their own: by a link where their place is seen here, else as a mount."""
    for name, executable in commands.items():
        inside = root / BIN.lstrip("/") / name
        if executable.lstrip("/").partition("/")[0] in _SYSTEM:
            inside.symlink_to(executable)
        else:
            inside.touch()
            syscalls.bind(executable, str(inside), _READ_ONLY)


def _packages(root: Path, sources: list[str], hidden: list[str]) -> None:
    nothing = root / "var/empty"
    nothing.mkdir(parents=True)
    for place in hidden:
        if (root / place.lstrip("/")).is_dir():
            syscalls.bind(str(nothing), str(root / place.lstrip("/")), _READ_ONLY)
    target = root / PACKAGES.lstrip("/")
    target.mkdir(parents=True)
    for source in map(Path, sources):
        if not source.is_dir():
            shutil.copy2(source, target / source.name)
        elif _bytes_below(source) <= _COPIED_BYTES:
            shutil.copytree(source, target / source.name)
        else:
            (target / source.name).mkdir()
            syscalls.bind(str(source), str(target / source.name), _READ_ONLY)


def _bytes_below(folder: Path) -> int:
    """Size of all files together, as far as it decides."""
    total = 0
    for parent, _folders, names in os.walk(folder):
        total += sum(os.lstat(f"{parent}/{name}").st_size for name in names)
        if total > _COPIED_BYTES:
            break
    return total


def _etc(root: Path) -> None:
    etc = root / "etc"
    etc.mkdir()
    for name, text in _ETC.items():
        (etc / name).write_text(text)
    for name in _COPIED:
        host = Path("/etc") / name
        if host.is_file():
            shutil.copyfile(host, etc / name)
    if Path("/etc/alternatives").is_dir():
        (etc / "alternatives").mkdir()
        syscalls.bind("/etc/alternatives", str(etc / "alternatives"), _READ_ONLY)


def _devices(root: Path) -> None:
    dev = root / "dev"
    dev.mkdir()
    for name in _DEVICES:
        (dev / name).touch()
        syscalls.bind(f"/dev/{name}", str(dev / name), syscalls.MS_NOSUID | syscalls.MS_NOEXEC)
    for name, target in {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        (dev / name).symlink_to(target)
