"""Files of /proc that tell about the whole machine rather than about the job: hidden behind an empty file or folder.

What a job could not open anyway, by its permissions, is left alone: each mount costs every job some microseconds.
"""

import os

from sandbox_service.guest.confinement import rootfs, syscalls

_SENSITIVE = (
    "acpi", "asound", "cmdline", "config.gz", "interrupts", "kallsyms", "kcore", "key-users", "keys", "kmsg",
    "latency_stats", "locks", "modules", "sched_debug", "scsi", "slabinfo", "sysrq-trigger", "timer_list",
    "timer_stats",
)  # fmt: skip
"""Keys and locks belong to users and files, not to namespaces: what one job has there, another could find. The rest is
the kernel's configuration, addresses, command line, hardware and timing. Files that many programs read for good reason
(cpuinfo, meminfo, stat, loadavg, …) stay: without them psutil, node and java fail."""
_FOLDERS = frozenset({"/proc/acpi", "/proc/asound", "/proc/scsi"})
_EMPTY_FILE, _EMPTY_FOLDER = "/dev/null", "/run"


def probe(*, unprivileged: bool) -> tuple[str, ...]:
    """Paths to be hidden here: those that a job's user can open. To be called while a whole /proc is in sight."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if not unprivileged:
                os.setgroups([])
                os.setresgid(rootfs.JOB_UID, rootfs.JOB_UID, rootfs.JOB_UID)
                os.setresuid(rootfs.JOB_UID, rootfs.JOB_UID, rootfs.JOB_UID)
            found = [path for path in (f"/proc/{name}" for name in _SENSITIVE) if _opens(path)]
            os.write(writer, "\n".join(found).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as stream:
        listed = stream.read().decode().split()
    os.waitpid(pid, 0)
    return tuple(listed)


def _opens(path: str) -> bool:
    """Whether it can be opened for reading or for writing, and is no empty folder."""
    if path in _FOLDERS and os.path.isdir(path) and not os.listdir(path):
        return False
    for how in (os.O_RDONLY, os.O_WRONLY):
        try:
            os.close(os.open(path, how | os.O_NONBLOCK))
        except OSError:
            continue
        return True
    return False


def lay(paths: tuple[str, ...]) -> None:
    """Hides them below the /proc that has just been mounted.

    Raises:
        OSError: the kernel refused it.
    """
    for path in paths:
        source = _EMPTY_FOLDER if path in _FOLDERS else _EMPTY_FILE
        syscalls.mount(source, path, flags=syscalls.MS_BIND)
