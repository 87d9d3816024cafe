"""The system calls that a program in a cell may make, as a seccomp filter that libseccomp builds.

Three lists and a default: allowed; refused quietly, for what honest programs try and do without; a violation, for what
no honest program tries here; and "no such call" for everything else, also for calls that are yet to be invented.
Installing the filter is the guest's part (`guest.confinement.filter`).
"""

import errno
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

ALLOWED = {
    "files": (
        "access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 "
        "fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fdatasync fgetxattr flistxattr "
        "flock fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr "
        "inotify_add_watch inotify_init inotify_init1 inotify_rm_watch ioctl lchown lgetxattr link linkat "
        "listxattr llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat newfstatat open "
        "openat openat2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv "
        "removexattr rename renameat renameat2 rmdir sendfile setxattr splice stat statfs statx symlink symlinkat "
        "sync_file_range tee truncate umask unlink unlinkat utime utimensat utimes write writev"
    ),
    "memory": (
        "brk cachestat get_mempolicy madvise membarrier memfd_create mincore mlock mlock2 mlockall mmap mprotect "
        "mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect"
    ),
    "processes and threads": (
        "arch_prctl capget capset execve execveat exit exit_group fork get_robust_list get_thread_area getcpu "
        "getegid geteuid getgid getgroups getpgid getpgrp getpid getppid getpriority getresgid getresuid "
        "getrlimit getrusage getsid gettid getuid ioprio_get ioprio_set kill pidfd_open pidfd_send_signal prctl "
        "rseq sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam "
        "sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam "
        "sched_setscheduler sched_yield set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid "
        "setgroups setpgid setregid setresgid setresuid setreuid setrlimit setsid setuid sysinfo "
        "tgkill times tkill uname vfork wait4 waitid"
    ),
    "signals": (
        "alarm getitimer pause restart_syscall rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo "
        "rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo setitimer sigaltstack signalfd signalfd4"
    ),
    "time": (
        "clock_getres clock_gettime clock_nanosleep gettimeofday nanosleep time timer_create timer_delete "
        "timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime"
    ),
    "waiting and locks": (
        "epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 futex "
        "futex_requeue futex_wait futex_waitv futex_wake poll ppoll pselect6 select"
    ),
    "sockets, pipes and messages": (
        "accept accept4 bind connect getpeername getsockname getsockopt listen mq_getsetattr mq_notify mq_open "
        "mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd pipe pipe2 recvfrom recvmmsg recvmsg "
        "semctl semget semop semtimedop sendmmsg sendmsg sendto setsockopt shmat shmctl shmdt shmget shutdown"
    ),
    "machine": "getrandom riscv_flush_icache riscv_hwprobe",
}
"""Names of calls by what they are for."""

VIOLATIONS = {
    "other processes": "kcmp pidfd_getfd process_vm_readv process_vm_writev ptrace",
    "the kernel": (
        "bpf create_module delete_module finit_module init_module kexec_file_load kexec_load lookup_dcookie "
        "perf_event_open query_module syslog uselib userfaultfd vmsplice"
    ),
    "keys": "add_key keyctl request_key",
    "namespaces and mounts": (
        "chroot fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree pivot_root setns umount "
        "umount2 unshare"
    ),
    "the machine": (
        "acct clock_settime ioperm iopl quotactl quotactl_fd reboot setdomainname sethostname settimeofday stime "
        "swapoff swapon vhangup"
    ),
    "files behind others' backs": "fanotify_init fanotify_mark open_by_handle_at",
}
"""Calls that end the job: programs do their work without them, and whoever makes one is trying the walls."""

QUIET = {
    errno.EPERM: "adjtimex clock_adjtime mbind migrate_pages move_pages set_mempolicy set_mempolicy_home_node",
    errno.EOPNOTSUPP: "name_to_handle_at",
    0: "sync syncfs",  # its own files are in memory, and the host's disks are not its business
}
"""Calls that give an error (0: that claim success) and do nothing. What is in no list at all gives ENOSYS: clone3, so
that libraries fall back to `clone`, whose flags can be looked at; io_uring, which runs calls past every filter."""

_NEW_NAMESPACES = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
"""CLONE_NEWTIME, -NEWNS, -NEWCGROUP, -NEWUTS, -NEWIPC, -NEWUSER, -NEWPID, -NEWNET."""
_INT = 0xFFFFFFFF
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0
_TYPE, _STREAM, _DATAGRAM, _RAW, _SEQUENCED = 0xF, 1, 2, 3, 5
_PROTOCOLS = (0, 6, 17)
"""The default one of a socket's type, TCP, UDP: every other may make the kernel load a module."""
_PERSONALITIES = (0xFFFFFFFF, 0, 0x40000)
"""Asking for it, the usual one, and the one without random addresses."""
_KIND, _KINDS_OF_FILES, _KINDS_OF_DEVICES = 0xF000, (0, 0x8000, 0x1000, 0xC000), (0x2000, 0x6000)
"""S_IFMT; regular files, FIFOs and sockets; character and block devices, for which gVisor asks for no power."""
_NEGATIVE = 0x80000000
_LATE_COMMANDS, _SETLEASE, _NOTIFY = 0x400, 1024, 1026
_OTHER_LATE_COMMANDS = (1025, 1028, 1029, 1030, 1031, 1032, 1033, 1034, 1035, 1036, 1037, 1038)
"""fcntl's from F_GETLEASE to F_SET_FILE_RW_HINT; the commands without the bit _LATE_COMMANDS are all allowed."""
_SUMMED_UP = {"memfd_create", "prctl", "setsockopt"}
"""What is not, or not simply, allowed where process 1 sums up the memory of its job."""
_SET_DUMPABLE = 4
_SOL_SOCKET = 1
_SIZES_OF_BUFFERS = {7: 0, 8: 0, 32: errno.EPERM, 33: errno.EPERM}
"""SO_SNDBUF, SO_RCVBUF and their forms for those with powers: what to answer."""
_LOW_BITS, _OTHER_OPTIONS = 0x7F, (
    (0x7C, 0), (0x7E, 4), (0x7F, 6), (0x7F, 9), (0x7E, 10), (0x7C, 12), (0x70, 16),
    (0x7E, 34), (0x7C, 36), (0x78, 40), (0x70, 48), (0x40, 0x40),
)  # fmt: skip
"""Mask and value: together all numbers whose low bits are none of `_SIZES_OF_BUFFERS`."""
_OPTIMIZE_AS_TREE = 2
_NEWEST_API = 6
_INSTALL = "libseccomp is needed: install the system package libseccomp2 and the python package pyseccomp"


@dataclass(frozen=True, slots=True)
class Filters:
    """One filter in two forms, as programs for the kernel's BPF machine (arrays of `struct sock_filter`).

    Attributes:
        listening: a violation waits for whoever listens; for kernels that have a listener.
        killing: a violation kills its process with SIGSYS; for those that have none.
        missing: why there is no filter; empty: there is one.
    """

    listening: bytes = b""
    killing: bytes = b""
    missing: str = ""


def build(*, memory_counted: bool = True) -> Filters:
    """Builds the filter for this machine's architecture; all 32-bit ABIs are violations. Takes some 40 milliseconds.

    Args:
        memory_counted: whether a control group counts all memory of a job. Where process 1 of the cell sums it up
            instead, nothing can be made that it would not see: no files in memory, no process that hides from it.
    """
    try:
        binding = _binding()
        binding.set_api(_NEWEST_API)  # what this kernel takes is found out in the template: gVisor does not tell
    except (ImportError, RuntimeError, OSError):
        return Filters(missing=_INSTALL)
    return Filters(
        listening=_program(binding, binding.NOTIFY, memory_counted),
        killing=_program(binding, binding.KILL_PROCESS, memory_counted),
    )


def call_name(number: int, architecture: int) -> str:
    """Name of the system call with this number under this ABI (an AUDIT_ARCH_ value), as a reader should see it."""
    try:
        binding = _binding()
        x32 = architecture == binding.Arch.X86_64 and number & 0x40000000
        known = binding.Arch.X32 if x32 else architecture
        name = str(binding.resolve_syscall(known, number).decode())
        return name if known == binding.system_arch() else f"{name} (of the 32-bit ABI)"
    except (ImportError, RuntimeError, OSError, ValueError):
        return f"number {number}"


def _binding() -> ModuleType:
    return importlib.import_module("pyseccomp")  # its import fails where libseccomp is not installed


def _program(binding: ModuleType, violation: int, memory_counted: bool) -> bytes:  # noqa: FBT001 - private
    rules = binding.SyscallFilter(binding.ERRNO(errno.ENOSYS))
    rules.set_attr(binding.Attr.ACT_BADARCH, violation)
    rules.set_attr(binding.Attr.CTL_OPTIMIZE, _OPTIMIZE_AS_TREE)
    allowed = {name for names in ALLOWED.values() for name in names.split()} - (set() if memory_counted else _SUMMED_UP)
    plain = [
        *((name, binding.ALLOW) for name in sorted(allowed)),
        *((name, violation) for names in VIOLATIONS.values() for name in names.split()),
        *((name, binding.ERRNO(code)) for code, names in QUIET.items() for name in names.split()),
    ]
    depending = [
        (name, binding.ALLOW if error is None else binding.ERRNO(error), *(binding.Arg(*each) for each in conditions))
        for name, error, *conditions in (*_by_arguments(binding), *(() if memory_counted else _in_plain_sight(binding)))
    ]
    for name, action, *conditions in [*plain, *depending]:
        number = binding.resolve_syscall(binding.Arch.NATIVE, name)
        if number >= 0:  # negative: no such call on this architecture
            rules.add_rule(action, number, *conditions)
    with os.fdopen(os.memfd_create("codemend-filter", os.MFD_CLOEXEC), "w+b") as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _by_arguments(binding: ModuleType) -> Iterator[tuple[Any, ...]]:
    """Calls that depend on what they are given: name, error (None: allowed), conditions.

    A condition is the argument's index, the comparison and its one or two values. No two rules of one call fit the same
    arguments; what fits none gives ENOSYS.
    """
    equal, other, masked = binding.EQ, binding.NE, binding.MASKED_EQ
    yield "clone", None, (0, masked, sum(_NEW_NAMESPACES), 0)
    for flag in _NEW_NAMESPACES:
        yield "clone", errno.EPERM, (0, masked, flag, flag)
    yield "prlimit64", None, (0, equal, 0)
    yield "prlimit64", None, (0, other, 0), (2, equal, 0)
    yield "prlimit64", errno.EPERM, (0, other, 0), (2, other, 0)
    for name, place in (("mknod", 1), ("mknodat", 2)):
        for kind in _KINDS_OF_FILES:
            yield name, None, (place, masked, _KIND, kind)
        for kind in _KINDS_OF_DEVICES:
            yield name, errno.EPERM, (place, masked, _KIND, kind)
    yield "setpriority", None, (2, masked, _NEGATIVE, 0)
    yield "setpriority", errno.EPERM, (2, masked, _NEGATIVE, _NEGATIVE)
    for value in _PERSONALITIES:
        yield "personality", None, (0, masked, _INT, value)
    yield "fcntl", None, (1, masked, _LATE_COMMANDS, 0)
    for command in _OTHER_LATE_COMMANDS:
        yield "fcntl", None, (1, masked, _INT, command)
    for command in (_SETLEASE, _NOTIFY):
        yield "fcntl", errno.EPERM, (1, masked, _INT, command)
    yield from _sockets(binding)


def _in_plain_sight(binding: ModuleType) -> Iterator[tuple[Any, ...]]:
    """A process that is not dumpable is out of sight in /proc: asking for it is answered, and not done.

    So is asking for larger buffers of a socket: where the kernel does not tell what lies in them, each counts with its
    usual size. Linux, too, makes no buffer larger than it allows, and does not say so.

    The kernel looks at the lower half of an option alone, so the other options are told apart by each of its bits.
    """
    masked = binding.MASKED_EQ
    for bit in (1 << number for number in range(32)):
        yield "setsockopt", None, (1, masked, bit, 0 if bit == _SOL_SOCKET else bit)
        if bit > _LOW_BITS:
            yield "setsockopt", None, (1, masked, _INT, _SOL_SOCKET), (2, masked, bit, bit)
    for mask, value in _OTHER_OPTIONS:
        yield "setsockopt", None, (1, masked, _INT, _SOL_SOCKET), (2, masked, mask, value)
    for option, error in _SIZES_OF_BUFFERS.items():
        yield "setsockopt", error, (1, masked, _INT, _SOL_SOCKET), (2, masked, _INT, option)
    for bit in (1 << number for number in range(32)):
        yield "prctl", None, (0, masked, bit, 0 if bit == _SET_DUMPABLE else bit)
    yield "prctl", 0, (0, masked, _INT, _SET_DUMPABLE), (1, binding.EQ, 0)
    yield "prctl", None, (0, masked, _INT, _SET_DUMPABLE), (1, binding.NE, 0)


def _sockets(binding: ModuleType) -> Iterator[tuple[Any, ...]]:
    equal, other, masked = binding.EQ, binding.NE, binding.MASKED_EQ
    yield "socketpair", None, (0, equal, _AF_UNIX)
    yield "socketpair", errno.EAFNOSUPPORT, (0, other, _AF_UNIX)
    yield "socket", None, (0, equal, _AF_UNIX)
    for family in (_AF_INET, _AF_INET6):
        for kind in (_STREAM, _DATAGRAM):
            for protocol in _PROTOCOLS:
                yield "socket", None, (0, equal, family), (1, masked, _TYPE, kind), (2, equal, protocol)
        yield "socket", errno.EPERM, (0, equal, family), (1, masked, _TYPE, _RAW)
        yield "socket", errno.ESOCKTNOSUPPORT, (0, equal, family), (1, masked, _TYPE, _SEQUENCED)
    yield "socket", None, (0, equal, _AF_NETLINK), (2, equal, _NETLINK_ROUTE)
    yield "socket", errno.EPROTONOSUPPORT, (0, equal, _AF_NETLINK), (2, other, _NETLINK_ROUTE)
    for family in set(range(_AF_NETLINK)) - {_AF_UNIX, _AF_INET, _AF_INET6}:
        yield "socket", errno.EAFNOSUPPORT, (0, equal, family)
    yield "socket", errno.EAFNOSUPPORT, (0, binding.GT, _AF_NETLINK)
