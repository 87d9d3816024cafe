"""The program of the start-up proof: tries the walls of a cell from inside and prints what it met as one JSON object.

It runs as a job like any other, on its own, with the standard library alone; `cells.canaries` judges what it prints.
Nothing that it tries ends a job: what does, has a job of its own there.
"""

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any

DONE = "done"
_GET_NO_NEW_PRIVS = 39
_CONNECT_S = 0.5


def attempt(action: Callable[[], object]) -> str:
    """`DONE`, or the name of the error that it met."""
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    return DONE


def write(path: str) -> str:
    """Tries to open a file for writing."""
    return attempt(lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)))


def read(path: str) -> str:
    """Tries to read a file; an empty one is as good as none."""
    try:
        with open(path, "rb", buffering=0) as stream:
            return DONE if stream.read(64) else "empty"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)


def connect(family: int, address: Any) -> str:  # noqa: ANN401 - as the socket API has it
    """Tries to reach a listener."""
    with socket.socket(family, socket.SOCK_STREAM) as handle:
        handle.settimeout(_CONNECT_S)
        return attempt(lambda: handle.connect(address))


def namespaces() -> dict[str, str]:
    """Identity of each namespace that this process is in, where /proc tells it."""
    found = {}
    for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        with contextlib.suppress(OSError):
            found[name] = os.readlink(f"/proc/self/ns/{name}")
    return found


def outer_uid() -> int:
    """This process's user id as the parent of its user namespace has it."""
    with open("/proc/self/uid_map") as stream:
        inside, outside, _number = map(int, stream.readline().split())
    return outside + os.getuid() - inside


def capabilities() -> dict[str, int]:
    """All capability sets."""
    with open("/proc/self/status") as stream:
        pairs = (line.split(":") for line in stream if line.startswith("Cap"))
        return {name: int(value, 16) for name, value in pairs}


def environments() -> list[str]:
    """Hashes of all environment entries that can be seen, of this process and of others."""
    seen = {f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in os.environ.items()}
    for other in processes():
        with contextlib.suppress(OSError), open(f"/proc/{other}/environ", "rb") as stream:
            seen.update(stream.read().split(b"\0"))
    return [hashlib.sha256(entry).hexdigest() for entry in seen]


def processes() -> list[int]:
    """Every process that can be seen."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def main() -> None:
    """Tries everything; the argument is a JSON object with `port`, `abstract` and `file` of the host's."""
    host = json.loads(sys.argv[1])
    own = os.getpid()
    found = {
        "namespaces": namespaces(),
        "outer_uid": outer_uid(),
        "capabilities": capabilities(),
        "no_new_privs": ctypes.CDLL(None).prctl(_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
        "rlimits": {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1] for name in ("CORE", "NOFILE")},
        "others": [pid for pid in processes() if pid != own and read(f"/proc/{pid}/environ") == DONE],
        "environments": environments(),
        "writes": {path: write(path) for path in ("/written", "/etc/passwd", "/usr/bin/written", os.__file__)},
        "own_places": {path: write(f"{path}/written") for path in ("/work", "/tmp", "/dev/shm", "/var/tmp")},  # noqa: S108
        "reads": {path: read(path) for path in (host["file"], "/etc/shadow", "/proc/1/environ", "/proc/kcore")},
        "kernel": {name: read(f"/proc/{name}") for name in ("kallsyms", "keys", "cmdline")},
        "network": {
            "the host's loopback": connect(socket.AF_INET, ("127.0.0.1", host["port"])),
            "the host's abstract sockets": connect(socket.AF_UNIX, "\0" + host["abstract"]),
            "169.254.169.254": connect(socket.AF_INET, ("169.254.169.254", 80)),
        },
        "landlock": write("/proc/self/comm"),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
