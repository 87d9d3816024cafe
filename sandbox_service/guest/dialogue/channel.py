"""The channel between judge and candidate: whole messages over a stream socket, one question and one answer at a time.

Both sides use it; what the messages mean is in `judge` and `candidate`.
"""

import socket
import struct

from sandbox_service.guest.dialogue.plain import MAX_BYTES, MalformedError, Node, from_bytes, to_bytes

_LENGTH = struct.Struct("!I")


class ClosedError(ConnectionError):
    """The other side is gone."""


class Channel:
    """One end."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)  # noqa: FBT003 - the socket API's own signature

    def send(self, message: Node) -> None:
        """Sends one message.

        Raises:
            TooLargeError: it is over the limit; nothing was sent.
            ClosedError: nobody is there.
        """
        data = to_bytes(message)
        try:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise ClosedError(str(error)) from None

    def receive(self) -> Node:
        """Waits for the next message.

        Raises:
            MalformedError: what came is none; the channel is of no more use.
            ClosedError: nobody is there.
        """
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > MAX_BYTES:
            raise MalformedError(f"a message of {length} bytes; at most {MAX_BYTES}")
        return from_bytes(self._exactly(length))

    def close(self) -> None:
        """Gives it up."""
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            try:
                got = self._socket.recv_into(view)
            except OSError as error:
                raise ClosedError(str(error)) from None
            if got == 0:
                raise ClosedError("the other side is gone")
            view = view[got:]
        return bytes(data)
