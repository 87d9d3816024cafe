"""The system calls that Python 3.11's `os` lacks, through libc: namespaces, mounts, capabilities, process control.

Numbers are those of the kernel's own headers (linux/sched.h, linux/mount.h, linux/prctl.h, linux/capability.h), the
same on every architecture; the numbers of calls that libc does not wrap are not, and have a table.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MS_NOATIME, MS_RELATIME = 1024, 1 << 21
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 4, 24, 38, 47
PR_SET_NAME, PR_GET_NAME = 15, 16
PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_X86, _GENERIC = ("x86_64",), ("aarch64", "riscv64", "loongarch64")
_NUMBERS = {
    "pivot_root": dict.fromkeys(_X86, 155) | dict.fromkeys(_GENERIC, 41),
    "seccomp": dict.fromkeys(_X86, 317) | dict.fromkeys(_GENERIC, 277),
    "landlock_create_ruleset": dict.fromkeys((*_X86, *_GENERIC), 444),
    "landlock_add_rule": dict.fromkeys((*_X86, *_GENERIC), 445),
    "landlock_restrict_self": dict.fromkeys((*_X86, *_GENERIC), 446),
}
_MACHINE = os.uname().machine

HAS_MOUNT_NAMESPACES = os.path.exists("/proc/self/ns/mnt")
"""False on gVisor before 2023, which takes the flag and shares all mounts nevertheless; nor does it know remounts."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def _check(result: int, call: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Moves this process (for CLONE_NEWPID: its future children) into new namespaces."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(descriptor: int, kind: int) -> None:
    """Joins the namespace that `descriptor` names."""
    _check(_libc.setns(descriptor, kind), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Attaches a file system, or changes how one is attached."""
    result = _libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None)
    _check(result, f"mount({source} on {target})")


def bind(source: str, target: str, flags: int = 0) -> None:
    """Shows `source` at `target`, then adds `flags` (MS_RDONLY, MS_NOSUID, …) to the ones that it has already.

    Without mount namespaces there is no way to add any: there a job is kept from writing by its user id.
    """
    mount(source, target, flags=MS_BIND)
    if not flags or not HAS_MOUNT_NAMESPACES:
        return
    inherited = os.statvfs(target).f_flag
    kept = {os.ST_NOSUID: MS_NOSUID, os.ST_NODEV: MS_NODEV, os.ST_NOEXEC: MS_NOEXEC, os.ST_RDONLY: MS_RDONLY}
    kept |= {os.ST_NOATIME: MS_NOATIME, os.ST_RELATIME: MS_RELATIME}
    for seen, flag in kept.items():
        if inherited & seen:
            flags |= flag
    mount("none", target, flags=MS_REMOUNT | MS_BIND | flags)


def umount(target: str) -> None:
    """Detaches a mount at once; it goes away when its last user does."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount({target})")


def pivot_root(new_root: str, put_old: str) -> None:
    """Changes the root of this mount namespace."""
    first, second = ctypes.create_string_buffer(new_root.encode()), ctypes.create_string_buffer(put_old.encode())
    call("pivot_root", ctypes.addressof(first), ctypes.addressof(second))


def call(name: str, *arguments: int) -> int:
    """Makes one of the system calls in the table above, with integers or addresses.

    Raises:
        OSError: the kernel refused it, or its number on this architecture is not known.
    """
    return Prepared(name, *arguments)()


class Prepared:
    """A system call of the table above, ready to be made: a job's process pays for every page that it touches first.

    Arguments are integers, addresses, or boxes (`ctypes.c_ulong`) whose content may change until the call.
    """

    def __init__(self, name: str, *arguments: "int | ctypes.c_ulong") -> None:
        number = _NUMBERS[name].get(_MACHINE)
        if number is None:
            raise OSError(errno.ENOSYS, f"{name}: unknown architecture {_MACHINE}")
        self._name = name
        boxed = (value if isinstance(value, ctypes.c_ulong) else ctypes.c_ulong(value) for value in arguments)
        self._arguments = (ctypes.c_long(number), *boxed)

    def __call__(self) -> int:
        """Makes the call and returns what it gives.

        Raises:
            OSError: the kernel refused it.
        """
        result: int = _libc.syscall(*self._arguments)
        _check(result, self._name)
        return result


def prctl(option: int, argument: int = 0, *rest: int) -> None:
    """Changes a property of this process."""
    arguments = [argument, *rest, 0, 0, 0][:4]
    _check(_libc.prctl(option, *arguments), f"prctl({option})")


def drop_capability_bounds() -> None:
    """Empties the bounding set, so that no exec of any file can give a capability back."""
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == 22:  # EINVAL: the kernel has no capability of this number, nor a higher one  # noqa: PLR2004
                return
            raise


def drop_capabilities() -> None:
    """Empties the effective, permitted, inheritable and ambient sets of this process."""
    try:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel, as gVisor, that has no ambient set
            raise
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, bytes(24)), "capset")


def raise_loopback() -> None:
    """Brings `lo` up in this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
        except OSError as error:
            if error.errno != errno.ENOTTY:  # gVisor: it is up from the beginning
                raise


def parent_death_signal(signal_number: int) -> None:
    """Asks the kernel to send a signal to this process when its parent dies."""
    prctl(PR_SET_PDEATHSIG, signal_number)
