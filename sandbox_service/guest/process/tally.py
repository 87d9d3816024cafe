"""Adds up what a process cell's job uses, where no control group counts it.

Pages of processes, files in the job's memory file system, shared memory segments and what lies in socket buffers. Pages
that several processes share are counted once, by looking closely at them where a first sum is over the limit.
"""

import contextlib
import ctypes
import itertools
import os
import re
import resource
import socket
import struct

from sandbox_service.guest.confinement import rootfs
from sandbox_service.guest.process.watch import Watch

_DIAGNOSE, _ALL, _MEMORY, _DONE, _ERROR = 20, 0xFFFFFFFF, 0x20, 3, 2
"""Of linux/sock_diag.h, linux/unix_diag.h and linux/netlink.h: SOCK_DIAG_BY_FAMILY, all states, UDIAG_SHOW_MEMINFO."""
_REQUEST_DUMP = 0x301
_MEMORY_ATTRIBUTE = 5
_SOCK_DIAG = 4
_REPLY_BYTES = 1 << 18
_UNIX_SOCKET_BYTES = 212_992
"""What one unix socket holds at most by default; counted for each where the kernel does not tell."""
_SHM_INFO, _SHM_INFO_STRUCT = 14, struct.Struct("@iLLL")
"""Of linux/shm.h: segments, their pages, those of them that are resident, and swapped."""
_ROLLUP = re.compile(rb"^Pss_(Anon|Shmem): +([0-9]+) kB", re.MULTILINE)


class Usage:
    """One job's; `look` when `due` seconds have passed."""

    def __init__(self, limits: dict[str, int], apart: frozenset[int] = frozenset()) -> None:
        """Begins.

        Args:
            limits: of the job's header.
            apart: processes in sight that are no part of it.
        """
        self._inodes, self._disk_bytes, self._files = limits["inodes"], limits["disk_bytes"], False
        self._limits = {
            "memory_bytes": limits["address_space"],
            "processes": limits["processes"],
            "cpu_seconds": limits["cpu_seconds"],
        }
        self._watch = Watch(self._limits, apart=apart, held=held_bytes)

    @property
    def due(self) -> float:
        """Seconds until the next look."""
        return self._watch.due

    @property
    def met(self) -> list[str]:
        """Names of the limits that were seen met, of `memory_bytes`, `processes`, `cpu_seconds` and `disk`."""
        return sorted(self._watch.met | ({"disk"} if self._files else set()))

    def look(self) -> bool:
        """Takes a look; True where the job is to be ended for a limit."""
        self.look_at_files()
        return self._watch.look() or self._files

    def look_at_files(self) -> None:
        """Takes a look at those alone: all that a job without a process holds."""
        held = files_bytes()
        self._files = self._files or held > self._disk_bytes or has_too_many_files(self._inodes)
        if held > self._limits["memory_bytes"]:
            self._watch.met.add("memory_bytes")

    def look_after_the_end(self) -> None:
        """Takes a last look, once the program itself is gone: what it has met may have come between two looks."""
        self._limits["processes"] -= 1
        self.look()


def held_bytes(pids: list[int], resident_bytes: int, limit: int) -> int:
    """What the job holds.

    Args:
        pids: its processes.
        resident_bytes: the sum of what each has resident, shared pages counted for each.
        limit: above which it is worth a closer look.
    """
    files = files_bytes() + _segments_bytes()
    sockets = _unix_sockets_bytes() + _inet_sockets_bytes()
    total = resident_bytes + files + sockets
    if total <= limit:
        return total
    anonymous = shared = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as stream:
                sizes = {name: int(size) * 1024 for name, size in _ROLLUP.findall(stream.read())}
        except ProcessLookupError:
            continue  # it is ending, and holds nothing any more
        except FileNotFoundError:  # the process has ended, or the kernel has no such file
            if os.path.exists(f"/proc/{pid}"):
                return total
        except OSError:
            return total
        else:
            anonymous += sizes.get(b"Anon", 0)
            shared += sizes.get(b"Shmem", 0)
    return anonymous + max(shared, files) + sockets


def has_too_many_files(limit: int) -> bool:
    """Whether the job has more files and folders than this; where the file system itself counts, it never has."""
    if os.statvfs(rootfs.WORK).f_files:
        return False
    count = 0
    try:
        for place in rootfs.WRITABLE.values():
            os.chdir(place)
            waiting = [_folders_here(limit)]
            while waiting and count <= limit:
                count += waiting[-1].pop("", 0)
                if waiting[-1]:
                    name, _none = waiting[-1].popitem()
                    with contextlib.suppress(OSError):  # it is gone, or closed to everybody
                        os.chdir(name)
                        waiting.append(_folders_here(limit))
                else:
                    waiting.pop()
                    os.chdir("..")
    finally:
        os.chdir("/")
    return count > limit


def _folders_here(limit: int) -> dict[str, int]:
    """Folders in the working directory; under the empty name: how many entries there are of every kind."""
    entries = list(itertools.islice(os.scandir("."), limit + 1))
    return {entry.name: 0 for entry in entries if entry.is_dir(follow_symlinks=False)} | {"": len(entries)}


def files_bytes() -> int:
    """Bytes in all places that the job may write to, however many file systems are behind them."""
    states = {os.stat(place).st_dev: os.statvfs(place) for place in rootfs.WRITABLE.values()}
    return sum((state.f_blocks - state.f_bfree) * state.f_frsize for state in states.values())


def _segments_bytes() -> int:
    """System V shared memory of this ipc namespace."""
    answer = ctypes.create_string_buffer(_SHM_INFO_STRUCT.size + 64)
    if ctypes.CDLL(None).shmctl(0, _SHM_INFO, answer) < 0:
        return 0
    _used, _total, resident, _swapped = _SHM_INFO_STRUCT.unpack_from(answer.raw)
    return int(resident) * resource.getpagesize()


def _unix_sockets_bytes() -> int:
    try:
        return _told_by_kernel()
    except OSError:
        with contextlib.suppress(OSError), open("/proc/net/unix", "rb") as stream:
            return max(stream.read().count(b"\n") - 1, 0) * _UNIX_SOCKET_BYTES
    return 0


def _told_by_kernel() -> int:
    """Bytes in the buffers of all unix sockets of this network namespace, by netlink."""
    request = struct.pack("=BBHIII8s", socket.AF_UNIX, 0, 0, _ALL, 0, _MEMORY, b"\xff" * 8)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asked:
        asked.send(struct.pack("=IHHII", 16 + len(request), _DIAGNOSE, _REQUEST_DUMP, 1, 0) + request)
        total = 0
        while True:
            reply, offset = asked.recv(_REPLY_BYTES), 0
            while offset + 16 <= len(reply):
                length, kind = struct.unpack_from("=IH", reply, offset)
                if kind == _DONE:
                    return total
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", reply, offset + 16)[0], "sock_diag")
                total += _buffers(reply[offset + 32 : offset + length])
                offset += (length + 3) & ~3


def _buffers(attributes: bytes) -> int:
    """Received and sent bytes of the attribute UNIX_DIAG_MEMINFO (`sk_meminfo`: rmem, rcvbuf, wmem, …)."""
    offset = 0
    while offset + 4 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, offset)
        if kind == _MEMORY_ATTRIBUTE:
            received, _limit, sent = struct.unpack_from("=3I", attributes, offset + 4)
            return int(received + sent)
        offset += max((length + 3) & ~3, 4)
    return 0


def _inet_sockets_bytes() -> int:
    """Bytes in the queues of TCP and UDP sockets, as /proc/net lists them."""
    total = 0
    for name in ("tcp", "tcp6", "udp", "udp6"):
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/net/{name}") as stream:
            next(stream, None)
            for line in stream:
                sent, _, received = line.split()[4].partition(":")
                total += int(sent, 16) + int(received, 16)
    return total
