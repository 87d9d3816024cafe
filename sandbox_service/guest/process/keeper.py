"""The keeper: the parent of one cell's process 1, where the kernel has no pid descriptors, as gVisor before 2024.

It stands in for such a descriptor: it holds one end of a socket pair whose other end the service has. The service
sends a byte to have the cell killed, and sees the end of the stream when the cell is gone and all is cleaned up.
"""

import array
import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

from sandbox_service.guest.confinement import syscalls


def needed() -> bool:
    """Whether this kernel has no pid descriptors."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return True
    return False


def fork_cell(control: socket.socket, descriptors: list[int], prepare: Callable[[], None]) -> bool:
    """Forks process 1 of a new pid namespace; to be called in a process of its own, which becomes the keeper.

    Args:
        control: the job's channel to the service, which gets the handle.
        descriptors: what belongs to the cell alone.
        prepare: makes what the cell needs and its keeper removes again.

    Returns:
        True in the cell; False in the keeper, once the cell is gone: it must clean up and then call `end`.
    """
    syscalls.parent_death_signal(signal.SIGKILL)
    ours, theirs = socket.socketpair()
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    pid = 0
    try:
        prepare()
        syscalls.unshare(syscalls.CLONE_NEWPID)
        pid = os.fork()
    except OSError as error:
        _tell(control, {"fault": f"{type(error).__name__}: {error}"})
        return False
    if pid == 0:
        signal.set_wakeup_fd(-1)
        for handle in (ours, theirs):
            handle.close()
        for number in (wake_read, wake_write):
            os.close(number)
        return True
    _tell(control, {"pid": pid}, theirs)
    theirs.close()
    control.close()
    for number in descriptors:
        os.close(number)
    _wait(pid, ours, wake_read)
    ours.detach()  # it stays open until this process ends
    return False


def end() -> NoReturn:
    """Ends the keeper; the service sees it at its handle."""
    os._exit(0)


def _wait(pid: int, handle: socket.socket, wake: int) -> None:
    """Until process 1 is gone; a byte from the service, or its going away, kills it."""
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    poller.register(wake, select.POLLIN)
    while not os.waitpid(pid, os.WNOHANG)[0]:
        for number, _event in poller.poll():
            if number == wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            else:
                poller.unregister(number)
                os.kill(pid, signal.SIGKILL)


def _tell(control: socket.socket, message: dict[str, object], handle: socket.socket | None = None) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [handle.fileno()]))] if handle else []
    with contextlib.suppress(OSError):  # the service has gone
        control.sendmsg([json.dumps(message).encode()], rights)
