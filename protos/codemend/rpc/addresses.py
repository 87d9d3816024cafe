"""Addresses that a server listens on and a client calls: `host:port`, `[v6]:port` or `unix:/path`.

Binding is here too, since it differs between the two kinds: a port must not be shared with another process, and a
socket file must belong to its owner alone and must not be taken from a server that still listens on it.
"""

import errno
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

import grpc

MAXIMUM_PORT = 65_535
MAXIMUM_SOCKET_PATH_BYTES = 107  # sun_path of Linux holds 108 with its NUL


class AddressError(ValueError):
    """The address cannot be read, or cannot be listened on."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: a host and a port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        """The form that gRPC reads, as client and as server."""
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_private(self) -> bool:
        """Whether only processes of this machine can reach it."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a name: whatever it resolves to, now or later
            return False


def parse_address(text: str) -> Address:
    """Reads `host:port`, `[v6]:port` or `unix:/path`.

    Raises:
        AddressError: it is none of these; the message says what is wrong.
    """
    if text.startswith("unix:"):
        return _parse_socket_path(text)
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise AddressError(f"{text!r} is no address: write host:port, [::1]:port or unix:/path")
    if not (port.isascii() and port.isdigit() and int(port) <= MAXIMUM_PORT):
        raise AddressError(f"{text!r}: the port must be a number from 0 to {MAXIMUM_PORT}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError as error:
            raise AddressError(f"{text!r}: {error}") from error
    elif ":" in host:
        raise AddressError(f"{text!r}: an IPv6 address stands in brackets, as in [::1]:{port}")
    return Address(host=host, port=int(port))


def _parse_socket_path(text: str) -> Address:
    path = text.removeprefix("unix:").removeprefix("//")
    if not path.startswith("/") or "\0" in path:
        raise AddressError(f"{text!r}: a unix socket needs an absolute path, as in unix:/run/codemend.sock")
    if len(os.fsencode(path)) > MAXIMUM_SOCKET_PATH_BYTES:
        raise AddressError(f"{text!r}: the path of a unix socket holds at most {MAXIMUM_SOCKET_PATH_BYTES} bytes")
    return Address(path=path)


def bind(server: grpc.aio.Server, address: Address) -> Address:
    """Binds the server and returns the address with its real port.

    Raises:
        AddressError: the address is taken, is not this machine's, or its folder cannot be written.
    """
    if address.path:
        _remove_stale_socket(address)
    # The mask, not a later chmod, keeps others out from the first moment on.
    mask = os.umask(0o177) if address.path else None
    try:
        port = server.add_insecure_port(str(address))
    except RuntimeError as error:  # gRPC's only sign; the cause is in its own log
        raise AddressError(f"cannot listen on {address}: {_why_not(address)}") from error
    finally:
        if mask is not None:
            os.umask(mask)
    return address if address.path else Address(host=address.host, port=port)


def remove_socket(address: Address) -> None:
    """Removes the socket file of a server that has stopped."""
    if address.path:
        Path(address.path).unlink(missing_ok=True)


def _remove_stale_socket(address: Address) -> None:
    path = Path(address.path)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise AddressError(f"cannot listen on {address}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise AddressError(f"cannot listen on {address}: a file that is no socket is there already")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        result = probe.connect_ex(address.path)
    if result not in (errno.ECONNREFUSED, errno.ENOENT):
        raise AddressError(f"cannot listen on {address}: another server listens there")
    path.unlink(missing_ok=True)


def _why_not(address: Address) -> str:
    """The system's own reason, found by trying the same without gRPC."""
    family = socket.AF_UNIX if address.path else socket.AF_INET6 if ":" in address.host else socket.AF_INET
    target = address.path or (address.host, address.port)
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(target)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    if address.path:
        Path(address.path).unlink(missing_ok=True)
    return "gRPC could not bind it"
