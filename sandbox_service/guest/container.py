"""Process 1 of a container: a warm interpreter that runs the container's jobs one after the other.

The container is the wall, so there are no namespaces here; what a job starts belongs to this process, which ends and
reaps it and wipes what it wrote. It takes its orders from the relay (`guest.relay`), a process of another user, and
never has the container's channel to the service: a job has the same user as this process, and may look into it.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import site
import socket
import stat
import struct
import sys
from collections.abc import Callable
from typing import NoReturn

from sandbox_service.guest.confinement import filter as calls
from sandbox_service.guest.confinement import landlock, rootfs, syscalls, walls
from sandbox_service.guest.dialogue import candidate
from sandbox_service.guest.exchange import frames, wire
from sandbox_service.guest.process import cell, preload, program
from sandbox_service.guest.process.spare import Spare

NAME = b"codemend-cell"
"""What process 1 and its forks are called; an exec'ed program has a name of its own."""
_PR_SET_NAME = 15
_VERSIONS = f"{rootfs.ASSETS}/versions"
_MAX_DESCRIPTORS = 16
_SHM_INFO, _SEM_INFO, _MSG_INFO = 14, 19, 12


def main() -> None:
    """Entry: arguments are the name of a module with a `session` (or ""; see `languages.Template`), and preloads."""
    os.umask(0o022)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(frames.ADDRESS)
    listener.listen(1)
    own_root = sys.path[0]
    sys.path.append(rootfs.PACKAGES)
    for give in (site.setquit, site.setcopyright, site.sethelper):  # exit() and the like: it starts without `site`
        give()
    session = importlib.import_module(sys.argv[1]) if sys.argv[1:] and sys.argv[1] else None
    sys.path.remove(own_root)
    preload.load(sys.argv[2:], os.open("/proc/self/task", os.O_RDONLY))
    os.environ.clear()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)

    def wait(_warm: Callable[[], None] = lambda: None) -> NoReturn:
        gc.collect()
        gc.freeze()
        syscalls.prctl(_PR_SET_NAME, ctypes.addressof(ctypes.create_string_buffer(NAME)))
        kept = frozenset(_open_descriptors()) - {listener.fileno()}
        relay = listener.accept()[0]
        listener.close()
        _serve(relay, kept)

    try:
        if session is not None:
            session.session(wait)
        wait()
    except program.Become as job:
        start, channel = job.start, job.channel
    if start["kind"] == "serve":
        candidate.serve(start, channel)
    program.script(start["path"], start["args"])


def _leave_own_streams() -> None:
    """Up to here this process's last words are worth having; from here on a job could open what lies behind them."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)


def _versions() -> dict[str, str]:
    """Version of each language in this image: the others' are noted in files when it is built."""
    found = {"python": sys.version.split()[0]}
    for name in os.listdir(_VERSIONS):
        with open(f"{_VERSIONS}/{name}") as stream:
            found[name] = stream.read()
    return found


def _open_descriptors() -> list[int]:
    """All but the standard streams."""
    listed = [int(name) for name in os.listdir("/proc/self/fd")]
    return [number for number in listed if number > 2 and _is_open(number)]  # noqa: PLR2004 - 0, 1 and 2


def _is_open(number: int) -> bool:
    """Whether it still is: listing the descriptors takes one too."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _serve(relay: socket.socket, kept: frozenset[int]) -> NoReturn:
    """Runs jobs until the relay closes its end; the first packet is the service's configuration."""
    config = json.loads(relay.recv(wire.MAX_PACKET_BYTES))
    found = walls.Have(
        filter=calls.probe(*map(bytes.fromhex, config["filters"])),
        landlock=landlock.probe(),
    )
    pid, _uid, _gid = struct.unpack("3i", relay.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    around = cell.Surroundings(found, unprivileged=True, kept=kept, apart=frozenset({pid}))
    spare = Spare(around)
    _leave_own_streams()
    relay.send(json.dumps({"versions": _versions(), "have": found.described()}).encode())
    while True:
        packet, descriptors, _flags, _address = socket.recv_fds(relay, wire.MAX_PACKET_BYTES, _MAX_DESCRIPTORS)
        if not packet:
            os._exit(0)
        order = json.loads(packet)
        fds = dict(zip(order["descriptors"], descriptors, strict=True))
        control = socket.socket(fileno=fds.pop("control"))
        _carry_out(fds, control, around, spare, reused=order["reused"])
        signal.set_wakeup_fd(-1)
        for number in set(_open_descriptors()) - kept - {relay.fileno(), control.fileno()}:
            os.close(number)
        with contextlib.suppress(OSError):
            while control.recv(wire.MAX_PACKET_BYTES, socket.MSG_DONTWAIT):
                pass  # what is left unread would take our own last words with it
        control.close()
        spare = Spare(around)


def _carry_out(
    fds: dict[str, int], control: socket.socket, around: cell.Surroundings, spare: Spare, *, reused: bool
) -> None:
    """Runs one job; in the program's own process it raises `program.Become`."""
    stage, left = "job", True
    try:
        job = wire.unpack_job(fds["spec"])
        spare.give(fds["spec"])
        stage = "files"
        cell.lay_out(job, fds)
        stage = "run"
        cell.run(job, fds, control, around, spare.start)
        stage = "wipe"
        left = reused and not _wiped()
    except program.Become:
        raise
    except BaseException as error:  # the service must hear of everything, and decides what becomes of the container
        _tell(control, fault=f"{stage}: {type(error).__name__}: {error}"[:2000])
    _tell(control, left=left)


def _tell(control: socket.socket, **message: object) -> None:
    with contextlib.suppress(OSError):
        control.send(json.dumps(message).encode())


def _wiped() -> bool:
    """Removes all that a job can leave; False where something is still there."""
    for place in rootfs.WRITABLE.values():
        os.chmod(place, stat.S_IRWXU)
        if names := os.listdir(place):
            for name in names:
                _remove(f"{place}/{name}")
            if os.listdir(place):
                return False
    return not _has_ipc_objects()


def _remove(path: str) -> None:
    """Removes a file, or a folder that a job may have closed; never through a link."""
    with contextlib.suppress(OSError, RecursionError):  # what is left is found by its being there
        try:
            os.unlink(path)
        except (IsADirectoryError, PermissionError):
            os.chmod(path, stat.S_IRWXU)
            for name in os.listdir(path):
                _remove(f"{path}/{name}")
            os.rmdir(path)


def _has_ipc_objects() -> bool:
    """Whether System V shared memory, semaphores or message queues exist: they outlive their processes."""
    libc = ctypes.CDLL(None, use_errno=True)
    room = ctypes.create_string_buffer(256)
    highest = (libc.shmctl(0, _SHM_INFO, room), libc.semctl(0, 0, _SEM_INFO, room), libc.msgctl(0, _MSG_INFO, room))
    counts = (ctypes.c_int.from_buffer(room).value,)  # `used_queues` comes first in the last one's structure
    return any(index > 0 for index in highest) or any(counts)
