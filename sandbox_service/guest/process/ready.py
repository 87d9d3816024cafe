"""A cell that is made before its job comes: walls up, and the program's process waiting behind them with no power left.

What takes longest in a small job's life is the same for every job, and done here while nobody waits for it. Such a
cell holds nothing of any job, and serves one job only: from the order on it goes the same way as `guest.process.cell`.
"""

import ctypes
import json
import os
import signal
import socket
from dataclasses import dataclass
from typing import Any, NoReturn

from sandbox_service.guest.confinement import rootfs, syscalls, walls
from sandbox_service.guest.exchange import wire
from sandbox_service.guest.process import cell, program

_MAX_DESCRIPTORS = 16
_WAITING, _INIT = b"codemend-ready", b"codemend-cell"
"""Names of such a process (/proc/PID/comm) until its job comes, and of process 1 from then on."""
_FILES = ("workspace", "files", "tests")
_PREPARED = b"prepared"


@dataclass(frozen=True, slots=True)
class _Made:
    """What both processes of such a cell are made with.

    Attributes:
        uid: the host's user id that the job will have.
        outputs: the program's stdout and stderr.
        control: packets to the service.
        around: what they were forked from.
        name: the name that the program's process will have.
    """

    uid: int
    outputs: list[int]
    control: socket.socket
    around: cell.Surroundings
    name: bytes


def main(uid: int, control: socket.socket, descriptors: list[int], around: cell.Surroundings) -> NoReturn:
    """Makes the cell, waits for its job, runs it. Never returns; in the program's process it raises `program.Become`.

    Args:
        uid: the host's user id that the job will have.
        control: as for `cell.main`; the order comes over it too: names of descriptors, and these.
        descriptors: the program's stdout and stderr, then the control groups of the cell.
        around: what this process was forked from.
    """
    stage = "cgroup"
    try:
        outputs, groups = descriptors[:2], descriptors[2:]
        cell.join(groups)
        syscalls.parent_death_signal(signal.SIGKILL)
        os.umask(0o022)
        stage = "walls"
        made = _Made(uid, outputs, control, around, _name(_WAITING))
        walls.prepare(uid, around.have)
        walls.settle()
        stage = "program"
        handover, given = socket.socketpair()
        waiting = _Waiting(made, given)
        control.send(json.dumps({"prepared": True}).encode())
        fds = _receive(control) | dict(zip(("stdout", "stderr"), outputs, strict=True))
        _name(_INIT)
        stage = "job"
        job = wire.unpack_job(fds["spec"])
        stage = "walls"
        walls.fit(job)
        walls.lower(uid, outputs, unprivileged=around.unprivileged)
        stage = "files"
        cell.lay_out(job, fds)
        stage = "run"
        cell.run(job, fds, control, around, waiting.start, handover=handover)
    except program.Become:
        raise
    except BaseException as error:  # as in `cell.main`
        cell.tell(control, fault=f"{stage}: {type(error).__name__}: {error}"[:2000])
    os._exit(0)


class _Waiting:
    """Process 1's side of the program's process."""

    def __init__(self, made: _Made, given: socket.socket) -> None:
        """Forks it, and returns when it waits behind its walls.

        Raises:
            RuntimeError: it has ended; it has told the service why.
        """
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            self._orders.close()
            _wait_as_program(made, given, theirs)
        theirs.close()
        given.close()
        if self._orders.recv(len(_PREPARED)) != _PREPARED:
            raise RuntimeError("the program's process has ended")

    def start(
        self, job: dict[str, Any], fds: dict[str, int], _control: socket.socket, _around: cell.Surroundings
    ) -> int:
        """A `cell.Start`."""
        names = {entry["path"].partition("/")[0] for kind in _FILES for entry in job.get(kind, ())}
        brief = {name: job[name] for name in ("start", "env", "limits")} | {"files": [{"path": name} for name in names]}
        given: dict[str, int] = {name: fds[name] for name in ("stdin", "report", "channel") if name in fds}
        given["brief"] = os.memfd_create("codemend-brief", os.MFD_CLOEXEC)
        with os.fdopen(given["brief"], "wb") as stream:
            stream.write(json.dumps(brief).encode())
            stream.flush()
            socket.send_fds(self._orders, [json.dumps(list(given)).encode()], list(given.values()))
        self._orders.close()
        return self._pid


def _wait_as_program(made: _Made, given: socket.socket, orders: socket.socket) -> NoReturn:
    """In the program's process: gives up every power, waits for the job, and becomes it."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        walls.lower(made.uid, made.outputs, unprivileged=made.around.unprivileged)
        walls.give_up(made.around.have)
        walls.restrict(made.around.have, given)
        os.chdir(rootfs.WORK)
        for number, output in enumerate(made.outputs, 1):
            os.dup2(output, number)
        program.make_streams()
        made.around.warm()
        orders.send(_PREPARED)
        fds = _receive(orders)
        with os.fdopen(fds.pop("brief"), "rb") as stream:
            brief = json.loads(os.pread(stream.fileno(), os.fstat(stream.fileno()).st_size, 0))
        _name(made.name)
        walls.limit(brief)
        variables = program.environment(brief["env"])
    except BaseException as error:
        program.report_unconfined(made.control, error)
    made.control.detach()  # closed with the others
    orders.detach()
    fds |= {"stdout": 1, "stderr": 2}
    program.become(brief, variables, fds, made.around.kept, has_streams=True)


def _receive(handle: socket.socket) -> dict[str, int]:
    """Waits for descriptors by name. Ends this process where there will be none: nobody has a job for it any more."""
    packet, descriptors, _flags, _address = socket.recv_fds(handle, wire.MAX_PACKET_BYTES, _MAX_DESCRIPTORS)
    if not packet:
        os._exit(0)
    return dict(zip(json.loads(packet), descriptors, strict=True))


def _name(name: bytes) -> bytes:
    """Gives this process a name, and returns the one that it had."""
    old = ctypes.create_string_buffer(16)
    syscalls.prctl(syscalls.PR_GET_NAME, ctypes.addressof(old))
    new = ctypes.create_string_buffer(name, 16)
    syscalls.prctl(syscalls.PR_SET_NAME, ctypes.addressof(new))
    return old.value
