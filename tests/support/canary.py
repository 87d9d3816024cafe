"""Stands for the host's own services: `python -m support.canary FOLDER` listens in every way and writes down who comes.

FOLDER/canary.json says where it listens, FOLDER/hits gets a line for each visitor. Standard library only: it also
runs beside a service inside a container.
"""

import contextlib
import json
import os
import secrets
import selectors
import socket
import sys
from pathlib import Path


def main(folder: Path) -> None:
    """Listens until it is killed."""
    folder.chmod(0o755)  # what keeps a job out must be the sandbox
    abstract, path = f"codemend-{secrets.token_hex(8)}", str(folder / "canary-socket")
    Path(path).unlink(missing_ok=True)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("0.0.0.0", 0))
    tcp = socket.create_server(("0.0.0.0", 0))
    listening = {"tcp": tcp, "datagrams": datagrams}
    for name, address in ("abstract", f"\0{abstract}"), ("file", path):
        listening[name] = socket.socket(socket.AF_UNIX)
        listening[name].bind(address)
        listening[name].listen()
    with contextlib.suppress(OSError):  # a machine without IPv6
        listening["tcp over ipv6"] = socket.create_server(("::1", tcp.getsockname()[1]), family=socket.AF_INET6)
    secret = folder / "secret-of-the-host"
    secret.write_text("root: of the host")
    secret.chmod(0o644)
    found = {
        "port": tcp.getsockname()[1],
        "datagrams": datagrams.getsockname()[1],
        "abstract": abstract,
        "socket": path,
        "file": str(secret),
        "addresses": addresses(),
    }
    (folder / "hits").touch()
    (folder / "canary.part").write_text(json.dumps(found))
    (folder / "canary.part").rename(folder / "canary.json")
    watch(listening, folder / "hits")


def addresses() -> list[str]:
    """Addresses of this machine that are not loopback, as far as its routes tell; else one that is always there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            handle.connect(("192.0.2.1", 9))  # sends nothing: it only chooses the address
            return ["127.0.0.2", handle.getsockname()[0]]
        except OSError:
            return ["127.0.0.2"]


def watch(listening: dict[str, socket.socket], hits: Path) -> None:
    """Writes a line for each connection and each datagram."""
    selector = selectors.DefaultSelector()
    for name, handle in listening.items():
        selector.register(handle, selectors.EVENT_READ, name)
    while True:
        for key, _events in selector.select():
            handle = listening[key.data]
            if handle.type == socket.SOCK_DGRAM:
                handle.recvfrom(64)
            else:
                handle.accept()[0].close()
            with hits.open("a") as stream:
                stream.write(f"{key.data}\n")


if __name__ == "__main__":
    os.umask(0o022)
    main(Path(sys.argv[1]))
