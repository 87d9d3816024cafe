"""Process 1 of a job: raises the walls, starts the program behind them, waits for its end and tells the service.

It has the template's powers only until the job's own bytes are laid out, gives them up, and stays as the init process
of the job's pid namespace: when it ends, the kernel ends everything that the job started.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from sandbox_service.guest import collect, program, rootfs, syscalls, walls, wire


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a cell finds in the process that it was forked from.

    Attributes:
        have: names of the namespaces that can be had here.
        unprivileged: the template is root of a user namespace only.
        kept: descriptors that the template's interpreter needs in a job too.
    """

    have: frozenset[str]
    unprivileged: bool
    kept: frozenset[int]


def main(order: dict[str, Any], control: socket.socket, descriptors: list[int], around: Surroundings) -> NoReturn:
    """Runs one job. Never returns; in the program's own process it raises `program.Become`.

    Args:
        order: `report` and `collect`: whether their descriptors follow the fixed ones; the rest are the job's cgroups.
        control: packets to the service; a packet from it asks for the job's end.
        descriptors: those of `wire.ORDER_FDS` without `control`, then the optional ones.
        around: what this process was forked from.
    """
    stage = "cgroup"
    try:
        fds = dict(zip(wire.ORDER_FDS[1:], descriptors, strict=False))
        groups = descriptors[len(fds) :]
        fds |= {name: groups.pop(0) for name in ("report", "collect") if order[name]}
        for group in groups:
            os.write(group, b"0")
            os.close(group)
        syscalls.parent_death_signal(signal.SIGKILL)
        stage = "job"
        job = wire.unpack_job(fds["spec"])
        os.close(fds.pop("spec"))
        os.umask(0o022)
        stage = "walls"
        walls.enter(job, around.have)
        walls.lower(job, unprivileged=around.unprivileged)
        stage = "files"
        walls.lay(rootfs.WORK, job["files"])
        stage = "run"
        _run(job, fds, control, around)
    except program.Become:
        raise
    except BaseException as error:  # the service must hear of everything, and nothing may run on past this line
        _tell(control, fault=f"{stage}: {type(error).__name__}: {error}"[:2000])
    os._exit(0)


def _run(job: dict[str, Any], fds: dict[str, int], control: socket.socket, around: Surroundings) -> None:
    before = collect.snapshot() if "collect" in fds else {}
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the kernel then keeps it from this init: only handlers get signals
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    started = time.monotonic_ns()
    main_pid = os.fork()
    if main_pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        program.main(job, fds, control, around.have, around.kept)
    for name in ("stdin", "stdout", "stderr", "report"):
        if name in fds:
            os.close(fds[name])
    _tell(control, started=started)
    status = _wait(main_pid, control, wake_read)
    _tell(control, status=status, ended=time.monotonic_ns())
    disk_full = _disk_is_full()
    _kill_all()
    _reap()
    file_limit_met = status != 0 and collect.holds_file_of(job["limits"]["file_bytes"])
    if "collect" in fds:
        collect.bring(fds["collect"], job["collect"], before)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    _tell(
        control,
        cpu=usage.ru_utime + usage.ru_stime,
        peak_kib=usage.ru_maxrss,
        disk_full=disk_full,
        file_limit_met=file_limit_met,
    )


def _wait(main_pid: int, control: socket.socket, wake: int) -> int:
    """Reaps whatever ends until the program has.

    A packet from the service (or its going away) ends all of the job's processes first.
    """
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(wake, select.POLLIN)
    while True:
        for descriptor, _event in poller.poll():
            if descriptor == control.fileno():
                poller.unregister(control)
                _kill_all()
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == main_pid:
                return status
            if pid == 0:
                break


def _kill_all() -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _disk_is_full() -> bool:
    """Whether the job's file system has no place left for a file.

    Fewer than sixteen blocks (of 4,096 bytes), or no inode.
    """
    state = os.statvfs(rootfs.WORK)
    return state.f_bfree < 16 or state.f_ffree == 0  # noqa: PLR2004 - see the docstring


def _tell(control: socket.socket, **message: object) -> None:
    with contextlib.suppress(OSError):
        control.send(json.dumps(message).encode())
