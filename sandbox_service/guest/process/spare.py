"""A fork of process 1 that waits for its job: forking is half of what a small job costs in gVisor, and is done before.

It is made while no job runs, and knows nothing of any.
"""

import json
import os
import signal
import socket
from typing import Any, NoReturn

from sandbox_service.guest.exchange import wire
from sandbox_service.guest.process import cell, program

_MAX_DESCRIPTORS = 16


class Spare:
    """One such fork. `start` turns it into a job's program; it raises `program.Become` there."""

    def __init__(self, around: cell.Surroundings) -> None:
        """Forks."""
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._spec = -1
        self._pid = os.fork()
        if self._pid == 0:
            self._orders.close()
            _wait(theirs, around)
        theirs.close()

    def give(self, spec: int) -> None:
        """Takes a copy of the descriptor of the job's memory file, which may be closed before the start."""
        self._spec = os.dup(spec)

    def start(
        self, _job: dict[str, Any], fds: dict[str, int], control: socket.socket, _around: cell.Surroundings
    ) -> int:
        """A `cell.Start`."""
        given = {**fds, "control": control.fileno(), "spec": self._spec}
        socket.send_fds(self._orders, [json.dumps(list(given)).encode()], list(given.values()))
        self._orders.close()
        os.close(self._spec)
        return self._pid


def _wait(orders: socket.socket, around: cell.Surroundings) -> NoReturn:
    """In the fork: becomes the job that comes, or ends when process 1 no longer needs it."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    packet, descriptors, _flags, _address = socket.recv_fds(orders, wire.MAX_PACKET_BYTES, _MAX_DESCRIPTORS)
    if not packet:
        os._exit(0)
    fds = dict(zip(json.loads(packet), descriptors, strict=True))
    job = wire.unpack_job(fds["spec"])
    wire.forget_contents(job)
    program.main(job, fds, socket.socket(fileno=fds.pop("control")), around.have, around.kept)
