"""Stands between the service and a container's process 1: takes orders from the attached streams, sends back frames.

It runs as another user than the jobs, which therefore reach neither the channel nor the trusted tests that it lays
out. It does for a container what the service itself does for a process cell: makes the pipes and reads them.
"""

import contextlib
import json
import os
import select
import shutil
import socket
import sys
import time
from typing import Any

from sandbox_service.guest.confinement import rootfs, walls
from sandbox_service.guest.exchange import frames, wire
from sandbox_service.guest.exchange.frames import FromGuest, ToGuest

_STDIN, _STDOUT = 0, 1
_PARTS = ("spec", "stdin", "tests")
_OUTPUT = ("stdout", "stderr")
"""The streams that programs know as pipes."""
_READ_BYTES = 256 * 1024
_CONNECT_TRIES, _CONNECT_PAUSE_S = 2000, 0.01


def main() -> None:
    """Entry: frames on the standard streams until the service closes them or process 1 ends."""
    os.umask(0o022)
    relay = Relay(_connect())
    with contextlib.suppress(BrokenPipeError):
        relay.serve()


def _connect() -> socket.socket:
    """Process 1 listens as soon as it has started, which may be after this process."""
    for _try in range(_CONNECT_TRIES):
        orders = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            orders.connect(frames.ADDRESS)
        except OSError:
            orders.close()
            time.sleep(_CONNECT_PAUSE_S)
        else:
            return orders
    sys.exit("process 1 does not listen")


def _receive(control: socket.socket) -> bytes:
    """The next packet of process 1; empty at the end.

    Where process 1 has closed its end with a word of ours unread, Linux says so once, and gVisor always.
    """
    for _try in range(2):
        with contextlib.suppress(ConnectionResetError):
            return control.recv(wire.MAX_PACKET_BYTES)
    return b""


class Relay:
    """Serves one channel, one job at a time."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._poller = select.poll()
        self._poller.register(_STDIN, select.POLLIN)
        self._reader = frames.FrameCutter()
        self._parts: dict[int, int] = {}
        self._job: _Job | None = None

    def serve(self) -> None:
        """Returns when the service has closed the channel or process 1 has ended."""
        while True:
            job = self._job
            for descriptor, event in self._poller.poll():
                if descriptor == _STDIN:
                    chunk = os.read(_STDIN, _READ_BYTES)
                    if not chunk:
                        return
                    for kind, body in self._reader.feed(chunk):
                        self._take(kind, body)
                elif job is not None and job is self._job:
                    self._follow(job, descriptor, event)

    def _take(self, kind: int, body: bytes) -> None:
        if kind == ToGuest.HELLO:
            self._orders.send(body)
            told = json.loads(self._orders.recv(wire.MAX_PACKET_BYTES))
            _send(frames.pack_json(FromGuest.READY, protocol=frames.PROTOCOL, **told))
        elif kind == ToGuest.ORDER:
            self._job = _Job(json.loads(body), self._parts, self._orders)
            self._parts = {}
            for descriptor in self._job.descriptors():
                self._poller.register(descriptor, select.POLLIN)
            if self._job.channel is not None:
                self._poll_channel(self._job.channel)
        elif kind == ToGuest.PART:
            if body[0] not in self._parts:
                self._parts[body[0]] = os.memfd_create("codemend-job")
            _write(self._parts[body[0]], body[1:])
        elif kind == ToGuest.END and self._job is not None:
            self._job.end()
        elif kind == ToGuest.CHANNEL and self._job is not None and self._job.channel is not None:
            self._job.channel.put(body)
            self._poll_channel(self._job.channel)

    def _poll_channel(self, channel: "_Channel") -> None:
        if events := channel.events():
            self._poller.register(channel.descriptor, events)
        else:
            with contextlib.suppress(KeyError):
                self._poller.unregister(channel.descriptor)

    def _follow(self, job: "_Job", descriptor: int, event: int) -> None:
        if job.channel is not None and descriptor == job.channel.descriptor:
            job.channel.move(event)
            self._poll_channel(job.channel)
            return
        if descriptor != job.control.fileno():
            if not job.pass_on(descriptor):
                self._poller.unregister(descriptor)
                job.close(descriptor)
            return
        packet = _receive(job.control)
        if packet:
            self._note(job, packet)
            return
        for open_one in job.descriptors():
            self._poller.unregister(open_one)
        if job.channel is not None:
            job.channel.close()
            self._poll_channel(job.channel)
        job.finish()
        self._job = None

    def _note(self, job: "_Job", packet: bytes) -> None:
        """Passes a packet on, but for the word of whether the container is clean."""
        message = json.loads(packet)
        if "left" in message:
            job.left = message["left"]
            return
        _send(frames.pack(FromGuest.CONTROL, packet))


class _Channel:
    """A program's channel to another cell: a socket here, frames towards the service."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)  # noqa: FBT003 - the socket API's own signature
        self.descriptor = self._ours.fileno()
        self._outgoing = bytearray()
        self._is_open = True  # the program's end
        self._is_ending = False  # the other cell's end is closed, and what it has sent is still on its way

    def events(self) -> int:
        """What to poll for."""
        return (select.POLLIN if self._is_open else 0) | (select.POLLOUT if self._outgoing else 0)

    def put(self, body: bytes) -> None:
        """Takes bytes for the program; none: the other end is closed."""
        self._outgoing += body
        self._is_ending = self._is_ending or not body
        self._write()

    def move(self, event: int) -> None:
        """Reads or writes what can be."""
        if event & select.POLLOUT:
            self._write()
        if event & (select.POLLIN | select.POLLHUP | select.POLLERR) and self._is_open:
            try:
                chunk = self._ours.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            self._is_open = bool(chunk)
            _send(frames.pack(FromGuest.CHANNEL, chunk))

    def _write(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: self._ours.send(self._outgoing)]
            if self._is_ending:
                self._ours.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:  # the program has closed its end
            self._outgoing.clear()

    def close(self) -> None:
        """Lets go of it; what the program had still to say is sent first."""
        if self._is_open:
            with contextlib.suppress(OSError):  # the end of what is there
                while chunk := self._ours.recv(_READ_BYTES):
                    _send(frames.pack(FromGuest.CHANNEL, chunk))
            _send(frames.pack(FromGuest.CHANNEL))
        self._is_open = False
        self._outgoing.clear()
        self._ours.close()


class _Job:
    """What one job has open here."""

    def __init__(self, order: dict[str, Any], parts: dict[int, int], orders: socket.socket) -> None:
        """Takes the job up.

        Args:
            order: the service's.
            parts: descriptors of its parts, as `_PARTS` numbers them; an empty one is not there.
            orders: to process 1.
        """
        given = {name: parts[number] for number, name in enumerate(_PARTS) if number in parts}
        for descriptor in given.values():
            os.lseek(descriptor, 0, os.SEEK_SET)
        self.left = True
        self._room = order["output_bytes"]
        self._is_ending = False
        self._pipes: dict[int, int] = {}
        self._counted: set[int] = set()
        self._brought = -1
        _lay_tests(given.pop("tests", -1))
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given["control"] = theirs.detach()
        if "stdin" not in given:
            given["stdin"] = os.open(os.devnull, os.O_RDONLY)
        for number, name in enumerate(order["streams"]):
            ours, given[name] = os.pipe() if name in _OUTPUT else _socket_pair()
            os.set_blocking(ours, False)
            self._pipes[ours] = number
            if name in _OUTPUT:
                self._counted.add(ours)
        self.channel = _Channel() if order["channel"] else None
        if self.channel is not None:
            given["channel"] = self.channel.theirs.detach()
        if order["collect"]:
            self._brought = os.memfd_create("codemend-files")
            given["collect"] = os.dup(self._brought)
        packet = json.dumps({"descriptors": list(given), "reused": order["reused"]}).encode()
        socket.send_fds(orders, [packet], list(given.values()))
        for descriptor in given.values():
            os.close(descriptor)

    def descriptors(self) -> list[int]:
        """What to poll."""
        return [self.control.fileno(), *self._pipes]

    def end(self) -> None:
        """Asks process 1 to end the job."""
        if not self._is_ending:
            self._is_ending = True
            with contextlib.suppress(OSError):
                self.control.send(b"end")

    def pass_on(self, descriptor: int) -> bool:
        """Sends the next bytes of a stream on; False at its end. Output past its limit ends the job and is let go."""
        try:
            chunk = os.read(descriptor, _READ_BYTES)
        except ConnectionResetError:
            chunk = b""
        if chunk and (descriptor not in self._counted or self._room >= 0):
            _send(frames.pack(FromGuest.STREAM, bytes((self._pipes[descriptor],)) + chunk))
        if descriptor in self._counted:
            self._room -= len(chunk)
            if self._room < 0:
                self.end()
        return bool(chunk)

    def close(self, descriptor: int) -> None:
        """Closes a pipe that has come to its end."""
        del self._pipes[descriptor]
        os.close(descriptor)

    def finish(self) -> None:
        """Process 1 is done with the job: what is in the pipes is all there will be."""
        for descriptor in list(self._pipes):
            with contextlib.suppress(BlockingIOError):
                while self.pass_on(descriptor):
                    pass
            self.close(descriptor)
        self.control.close()
        if self._brought >= 0:
            with open(self._brought, "rb") as stream:
                stream.seek(0)
                while chunk := stream.read(_READ_BYTES):
                    _send(frames.pack(FromGuest.FILES, chunk))
        _send(frames.pack_json(FromGuest.DONE, left=self.left or not _wiped_tests()))


def _socket_pair() -> tuple[int, int]:
    """Two ends that, unlike a pipe's, no process can open through another's descriptors in /proc."""
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def _lay_tests(descriptor: int) -> None:
    """Writes the trusted tests, as this user's own: the job's user can read them and no more."""
    if descriptor >= 0:
        job = wire.unpack_job(descriptor)
        walls.lay(rootfs.TESTS, job["tests"])
        walls.link(rootfs.TESTS, job["start"].get("links", {}))
        os.close(descriptor)


def _wiped_tests() -> bool:
    for name in os.listdir(rootfs.TESTS):
        path = f"{rootfs.TESTS}/{name}"
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
    return not os.listdir(rootfs.TESTS)


def _send(frame: bytes) -> None:
    _write(_STDOUT, frame)


def _write(descriptor: int, content: bytes) -> None:
    data = memoryview(content)
    while data:
        data = data[os.write(descriptor, data) :]
