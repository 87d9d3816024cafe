"""Process 1 of a job: raises the walls, starts the program behind them, waits for its end and tells the service.

It has the template's powers only until the job's own bytes are laid out, gives them up, and stays as the init process
of the job's pid namespace: when it ends, the kernel ends everything that the job started.
"""

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from sandbox_service.guest.confinement import filter as calls
from sandbox_service.guest.confinement import rootfs, syscalls, walls
from sandbox_service.guest.exchange import collect, wire, workspace
from sandbox_service.guest.process import program
from sandbox_service.guest.process.tally import Usage, files_bytes, has_too_many_files


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a cell finds in the process that it was forked from.

    Attributes:
        have: what can be had here.
        unprivileged: the template is root of a user namespace only.
        kept: descriptors that the template's interpreter needs in a job too.
        is_kept: a cell has a keeper (`guest.process.keeper`).
        apart: processes in sight that are no part of a job.
        warm: does without effect what every job will do, so that the memory which that touches is a cell's own already
            when its job comes; for cells that are made ahead.
    """

    have: walls.Have
    unprivileged: bool
    kept: frozenset[int]
    is_kept: bool = False
    apart: frozenset[int] = frozenset()
    warm: Callable[[], None] = lambda: None


def main(order: dict[str, Any], control: socket.socket, descriptors: list[int], around: Surroundings) -> NoReturn:
    """Runs one job. Never returns; in the program's own process it raises `program.Become`.

    Args:
        order: which of `wire.OPTIONAL_FDS` follow the fixed descriptors; the rest are the job's cgroups.
        control: packets to the service; a packet from it asks for the job's end.
        descriptors: those of `wire.ORDER_FDS` without `control`, then the optional ones.
        around: what this process was forked from.
    """
    stage = "cgroup"
    try:
        fds = dict(zip(wire.ORDER_FDS[1:], descriptors, strict=False))
        groups = descriptors[len(fds) :]
        fds |= {name: groups.pop(0) for name in wire.OPTIONAL_FDS if order.get(name)}
        join(groups)
        syscalls.parent_death_signal(signal.SIGKILL)
        stage = "job"
        job = wire.unpack_job(fds["spec"])
        os.umask(0o022)
        stage = "walls"
        walls.enter(job, around.have)
        walls.settle()
        walls.lower(job["uid"], (fds["stdout"], fds["stderr"]), unprivileged=around.unprivileged)
        stage = "files"
        lay_out(job, fds)
        stage = "run"
        run(job, fds, control, around)
    except program.Become:
        raise
    except BaseException as error:  # the service must hear of everything, and nothing may run on past this line
        tell(control, fault=f"{stage}: {type(error).__name__}: {error}"[:2000])
    os._exit(0)


def join(groups: list[int]) -> None:
    """Moves this process, of one thread, into control groups, and closes their descriptors."""
    for group in groups:
        os.write(group, b"0")
        os.close(group)


def lay_out(job: dict[str, Any], fds: dict[str, int]) -> None:
    """Lays a job's files out; its memory file stays open only where they are compared with it afterwards."""
    workspace.lay(rootfs.WORK, job.get("workspace", ()))
    walls.lay(rootfs.WORK, job["files"])
    wire.forget_contents(job)
    if "changes" not in fds:
        os.close(fds.pop("spec"))


Start = Callable[[dict[str, Any], dict[str, int], socket.socket, Surroundings], int]
"""Starts a job's program with its descriptors in a process of its own, and returns its process id."""


def fork(job: dict[str, Any], fds: dict[str, int], control: socket.socket, around: Surroundings) -> int:
    """A Start: forks; raises `program.Become` in the child."""
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        program.main(job, fds, control, around.have, around.kept)
    return pid


def run(
    job: dict[str, Any],
    fds: dict[str, int],
    control: socket.socket,
    around: Surroundings,
    start: Start = fork,
    *,
    handover: socket.socket | None = None,
) -> None:
    """Runs a job whose files are laid out, as the init process of all that it starts, and tells how it ended.

    Args:
        job: its header.
        fds: its descriptors by name.
        control: packets to the service.
        around: what this process was forked from.
        start: starts the program.
        handover: where the listener of the program's filter comes from; None: made here, for `start` to pass on.
    """
    before = collect.snapshot() if "collect" in fds else {}
    laid = workspace.laid(job) if "changes" in fds else {}
    wake_read, wake_write = (end.detach() for end in socket.socketpair())  # which, unlike a pipe, nobody can open
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the kernel then keeps it from this init: only handlers get signals
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    if handover is None:
        handover, given = socket.socketpair()
        fds["handover"] = given.detach()
    started = time.monotonic_ns()
    main_pid = start(job, fds, control, around)
    for name in ("stdin", "stdout", "stderr", "report", "channel", "handover"):
        if name in fds:
            os.close(fds[name])
    tell(control, started=started)
    used = Usage(job["limits"], around.apart) if job["limits"]["address_space"] else None
    reaped = _Reaped()
    status, violation = _wait(main_pid, control, wake_read, handover, around.have.filter, used=used, reaped=reaped)
    ended = time.monotonic_ns()
    if used is not None:
        if _freeze_rest() or status != 0:
            used.look_after_the_end()
        else:
            used.look_at_files()
    met = used.met if used else []
    tell(control, status=status, ended=ended, violation=violation, met=met)
    disk_full = "disk" in met or _disk_is_full(job["limits"], is_counted=used is not None)
    _kill_all()
    reaped.rest()
    file_limit_met = status != 0 and collect.holds_file_of(job["limits"]["file_bytes"])
    if "collect" in fds:
        collect.bring(fds["collect"], job["collect"], before)
    if "changes" in fds:
        with os.fdopen(fds["changes"], "wb") as stream:
            workspace.bring(rootfs.WORK, laid, fds["spec"], job["workspace_bytes"], stream.write)
    tell(
        control,
        cpu=reaped.cpu,
        peak_kib=reaped.peak_kib,
        disk_full=disk_full,
        file_limit_met=file_limit_met,
    )


@dataclass(slots=True)
class _Reaped:
    """What the job's processes that have ended used: processor time in seconds together, memory the largest of one."""

    cpu: float = 0.0
    peak_kib: int = 0

    def wait(self, options: int) -> tuple[int, int]:
        """As os.waitpid of any child."""
        pid, status, usage = os.wait4(-1, options)
        self.cpu += usage.ru_utime + usage.ru_stime
        self.peak_kib = max(self.peak_kib, usage.ru_maxrss)
        return pid, status

    def rest(self) -> None:
        """Waits for all that are left, which are dying."""
        with contextlib.suppress(ChildProcessError):
            while True:
                self.wait(0)


def _wait(
    main_pid: int,
    control: socket.socket,
    wake: int,
    handover: socket.socket,
    filtered: calls.Filter | None,
    *,
    used: Usage | None,
    reaped: _Reaped,
) -> tuple[int, list[int]]:
    """Reaps whatever ends until the program has.

    A packet from the service (or its going away), a forbidden system call and a limit that `used` saw met end all of
    the job's processes first.

    Returns:
        The program's wait status, and number and ABI of a forbidden call, if there was one.
    """
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(wake, select.POLLIN)
    watch = calls.Watch(handover, poller, filtered)
    while True:
        events = poller.poll(None if used is None else used.due * 1000 + 1)
        if used is not None and not used.due and used.look():
            _kill_all()
        for descriptor, event in events:
            if descriptor == control.fileno():
                poller.unregister(control)
                _kill_all()
            elif descriptor == wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            elif watch.look(descriptor, event):
                _kill_all()
        while True:
            pid, status = reaped.wait(os.WNOHANG)
            if pid == main_pid:
                return status, watch.found(status)
            if pid == 0:
                break


def _freeze_rest() -> bool:
    """Stops what the program has left running, so that it takes no more between a look and its end.

    Returns:
        Whether there is any.
    """
    try:
        os.kill(-1, signal.SIGSTOP)
    except ProcessLookupError:
        return False
    return True


def _kill_all() -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def _disk_is_full(limits: dict[str, int], *, is_counted: bool) -> bool:
    """Whether a file system of the job's has no place left for a file.

    Fewer than sixteen blocks (of 4,096 bytes), or no inode; or, where that is not counted yet, more bytes or files in
    all of them than allowed.
    """
    states = [os.statvfs(place) for place in rootfs.WRITABLE.values()]
    full = any(state.f_bfree < 16 or (state.f_files and not state.f_ffree) for state in states)  # noqa: PLR2004 - see the docstring
    return full or (not is_counted and (files_bytes() > limits["disk_bytes"] or has_too_many_files(limits["inodes"])))


def tell(control: socket.socket, **message: object) -> None:
    """Sends the service a packet; that the service has gone is no concern here."""
    with contextlib.suppress(OSError):
        control.send(json.dumps(message).encode())
