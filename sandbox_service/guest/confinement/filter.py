"""Installs the filter of system calls in the program's process, and follows it from process 1 of the cell.

What is allowed is decided by the service, which builds the filter (`cells.filters`); here it is a row of bytes.
"""

import array
import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import struct

from sandbox_service.guest.confinement import syscalls

_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
"""`struct seccomp_notif`: id, pid, flags, then number, architecture, instruction and arguments of the call."""
_RECEIVE = 0xC0502100
"""SECCOMP_IOCTL_NOTIF_RECV."""
_INSTRUCTION_BYTES = 8
UNKNOWN_CALL = -1
"""Number of a forbidden call where the kernel does not say which it was."""


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


class Filter:
    """A filter ready to be installed.

    Attributes:
        listens: whether a forbidden call waits for a listener; where not, the kernel kills its process with SIGSYS.
    """

    def __init__(self, instructions: bytes, *, listens: bool) -> None:
        self.listens = listens
        self._bytes = ctypes.create_string_buffer(instructions, len(instructions))
        self._program = _Program(len(instructions) // _INSTRUCTION_BYTES, ctypes.addressof(self._bytes))
        flags, program = _NEW_LISTENER if listens else 0, ctypes.addressof(self._program)
        self._install = syscalls.Prepared("seccomp", _SET_MODE_FILTER, flags, program)

    def describe(self) -> str:
        """What it does for a job here, in a sentence."""
        if self.listens:
            return "a list of allowed system calls; a forbidden one ends the job and is named"
        return "a list of allowed system calls; a forbidden one kills its process, and is not named: no listener here"

    def install(self, handover: socket.socket | None = None) -> None:
        """Installs it in this process, for good, with all that it will start or become.

        The listener goes over `handover` and is closed here: whoever has it could let every call pass.

        Raises:
            OSError: the kernel refused it.
        """
        listener = self._install()
        if self.listens:
            if handover is not None:
                rights = array.array("i", [listener])
                handover.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            os.close(listener)


def probe(listening: bytes, killing: bytes) -> Filter | None:
    """The form of the filter that this kernel takes, tried in a child each; None: it takes neither."""
    with contextlib.suppress(OSError):  # the number of the call is not known on this architecture
        for instructions, listens in ((listening, True), (killing, False)):
            if instructions and _works(candidate := Filter(instructions, listens=listens)):
                return candidate
    return None


def _works(candidate: Filter) -> bool:
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
            candidate.install()
            os.getppid()
            os._exit(0)
        os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


class Watch:
    """Process 1's side: takes the listener when it comes, and notes the first forbidden call."""

    def __init__(self, handover: socket.socket, poller: "select.poll", filtered: Filter | None) -> None:
        self._handover, self._poller, self._listener = handover, poller, -1
        self._kills = filtered is not None and not filtered.listens
        self._violation: list[int] = []
        poller.register(handover, select.POLLIN)

    def look(self, descriptor: int, event: int) -> bool:
        """Deals with what the poller reported. Returns whether it was a violation; no other is looked for then."""
        if descriptor == self._handover.fileno():
            self._take_listener()
            return False
        if event & select.POLLIN:
            self._violation = self._receive()
        if self._violation or not event & select.POLLIN:  # without a caller left it would be reported for ever
            self._poller.unregister(self._listener)
        return bool(self._violation)

    def found(self, wait_status: int) -> list[int]:
        """Number and ABI (AUDIT_ARCH_…) of the forbidden call, or nothing.

        Where nobody listens, that is a program (with this wait status) that the kernel itself has ended for one.
        """
        if self._kills and wait_status & 0x7F == signal.SIGSYS:
            return [UNKNOWN_CALL, 0]
        return self._violation

    def _take_listener(self) -> None:
        self._poller.unregister(self._handover)
        numbers = array.array("i")
        _data, ancillary, _flags, _address = self._handover.recvmsg(1, socket.CMSG_SPACE(numbers.itemsize))
        for _level, _kind, content in ancillary:
            numbers.frombytes(content[: numbers.itemsize])
        if numbers:
            self._listener = numbers[0]
            self._poller.register(self._listener, select.POLLIN)

    def _receive(self) -> list[int]:
        notification = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, notification)
        except OSError:  # the caller has died meanwhile
            return []
        _id, _pid, _flags, number, architecture, *_rest = _NOTIFICATION.unpack(notification)
        return [number, architecture]
