"""The template: one single-threaded process.

Apart from gRPC, that holds the interpreter warm and forks a cell for every order.

It is process 1 of a pid namespace that all cells are nested in, so that nothing of theirs outlives it. It is exec'ed
by the service with its configuration on stdin and its orders on a socket. It builds the cells' root, moves into it,
imports what jobs will need, and then does nothing but receive, fork and hand back. It holds no secret and no file of
the host's; it ends with the service.
"""

import array
import contextlib
import gc
import importlib.abc
import importlib.util
import json
import os
import signal
import site
import socket
import sys
import types
from typing import Any

from sandbox_service.guest import cell, rootfs, syscalls, walls, wire

_MAX_DESCRIPTORS = 32


def main() -> None:
    """Entry: configuration from stdin, orders from the socket whose descriptor number is the first argument."""
    syscalls.parent_death_signal(signal.SIGKILL)
    orders = socket.socket(fileno=int(sys.argv[1]))
    config = json.loads(sys.stdin.buffer.read())
    if os.getppid() != config["parent"]:
        return  # the service died before the request for its death signal was in place
    if config["unprivileged"]:
        _take_powers_in_namespace()
    syscalls.unshare(syscalls.CLONE_NEWPID)
    pid = os.fork()
    if pid:
        orders.close()
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
    syscalls.parent_death_signal(signal.SIGKILL)
    own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
    found = _prepare(config)
    orders.send(json.dumps({"ready": True, "walls": found, "version": sys.version.split()[0]}).encode())
    _serve(orders, own_pid_namespace, frozenset(found), unprivileged=config["unprivileged"])


def _prepare(config: dict[str, Any]) -> dict[str, str]:
    """Builds the root, imports the preloads and finds out which namespaces a job can get here: name -> how."""
    loads = [_read_module(name) for name in config["preload"]]
    rootfs.build(config)
    sys.path[:] = [path for path in sys.path if path.startswith(config["prefix"])] + [rootfs.PACKAGES]
    sys.dont_write_bytecode = True
    for give in (
        site.setquit,
        site.setcopyright,
        site.sethelper,
    ):  # exit(), help() and the like: the template starts without `site`
        give()
    for module, code in loads:
        sys.modules[module.__name__] = module
        exec(code, module.__dict__)  # noqa: S102 - the second half of an import: see _read_module
    os.environ.clear()
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    gc.collect()
    gc.freeze()
    return walls.probe(unprivileged=config["unprivileged"])


def _read_module(name: str) -> tuple[types.ModuleType, types.CodeType]:
    """First half of an import: the module's code is read while its file can be seen.

    And run where its own imports are found.
    """
    spec = importlib.util.find_spec(name)
    code = spec.loader.get_code(name) if spec and isinstance(spec.loader, importlib.abc.InspectLoader) else None
    if spec is None or code is None:
        raise ImportError(f"no source of {name}")
    return importlib.util.module_from_spec(spec), code


def _take_powers_in_namespace() -> None:
    """Without root on the host: in a user namespace that maps this user alone there are the powers to raise all walls.

    It is not mapped to 0: the kernel lets a process without capabilities map a parent's user into a namespace of its
    own, but not the parent's root.
    """
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{rootfs.JOB_UID} {uid} 1"),
        ("gid_map", f"{rootfs.JOB_UID} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as stream:
            stream.write(text)


def _serve(orders: socket.socket, own_pid_namespace: int, have: frozenset[str], *, unprivileged: bool) -> None:
    """Forks a cell for each order until the service closes the socket."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps; the service follows its jobs by pid descriptors
    while True:
        packet, descriptors = _receive(orders)
        if not packet:
            return
        order = json.loads(packet)
        control = socket.socket(fileno=descriptors.pop(0))
        try:
            syscalls.unshare(syscalls.CLONE_NEWPID)
            try:
                pid = os.fork()
                if pid == 0:
                    orders.close()
                    os.close(own_pid_namespace)
                    cell.main(order, control, descriptors, have, unprivileged=unprivileged)
            finally:
                syscalls.setns(own_pid_namespace, syscalls.CLONE_NEWPID)
            _hand_over(control, pid)
        except OSError as error:
            with contextlib.suppress(OSError):
                control.send(json.dumps({"fault": f"{type(error).__name__}: {error}"}).encode())
        finally:
            control.close()
            for descriptor in descriptors:
                os.close(descriptor)


def _receive(orders: socket.socket) -> tuple[bytes, list[int]]:
    numbers = array.array("i")
    data, ancillary, _flags, _address = orders.recvmsg(
        wire.MAX_PACKET_BYTES, socket.CMSG_SPACE(_MAX_DESCRIPTORS * numbers.itemsize)
    )
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
    return data, list(numbers)


def _hand_over(control: socket.socket, pid: int) -> None:
    """Gives the service a descriptor of the new cell's process 1: the handle to watch it by and to kill it with."""
    handle = os.pidfd_open(pid)
    try:
        rights = array.array("i", [handle])
        control.sendmsg([json.dumps({"pid": pid}).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    finally:
        os.close(handle)
