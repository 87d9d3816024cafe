"""The template: one single-threaded process that holds the interpreter warm and forks a cell for every order.

It is process 1 of a pid namespace that all cells are nested in, so that nothing of theirs outlives it. It is exec'ed
by the service with its configuration on stdin and its orders on a socket. It builds the cells' root, moves into it,
imports what jobs will need, and then does nothing but receive, fork and hand back. It holds no secret and no file of
the host's; it ends with the service.
"""

import array
import contextlib
import gc
import importlib
import importlib.abc
import importlib.util
import json
import os
import signal
import site
import socket
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from sandbox_service.guest.analysis import planning
from sandbox_service.guest.confinement import chroots, rootfs, syscalls, walls
from sandbox_service.guest.dialogue import candidate, judge
from sandbox_service.guest.exchange import sender, wire
from sandbox_service.guest.process import cell, coverage, keeper, preload, program, ready
from sandbox_service.guest.testing import watched

_SESSIONS_NEED = (coverage, judge, planning, sender, watched)
"""What sessions import: read here, while this package's files can be seen."""
_WITH_FRAMEWORK = ("outcomes", "tampering", "canaries", "guarding")
"""What they import, of their own package, that needs the test framework itself, in the order of its own imports."""
_MAX_DESCRIPTORS = 64


def main() -> None:
    """Entry: configuration from stdin, orders from the socket whose descriptor number is the first argument."""
    syscalls.parent_death_signal(signal.SIGKILL)
    orders = socket.socket(fileno=int(sys.argv[1]))
    config = json.loads(sys.stdin.buffer.read())
    if os.getppid() != config["parent"]:
        return  # the service died before the request for its death signal was in place
    _let_signals_act()
    if config["unprivileged"]:
        _take_powers_in_namespace()
    config["place"] = "" if syscalls.HAS_MOUNT_NAMESPACES else chroots.make_place()
    syscalls.unshare(syscalls.CLONE_NEWPID)
    pid = os.fork()
    if pid:
        orders.close()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF
        if config["place"]:
            chroots.remove_place(config["place"])
        os._exit(status)
    syscalls.parent_death_signal(signal.SIGKILL)
    own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
    have = _prepare(config)
    own = {orders.fileno(), own_pid_namespace}
    is_kept = keeper.needed() or have.box is not None

    def wait(warm: Callable[[], None] = lambda: None) -> NoReturn:
        program.own_modules()
        gc.collect()
        gc.freeze()
        kept = frozenset(_open_descriptors()) - own
        around = cell.Surroundings(have, config["unprivileged"], kept, is_kept, warm=warm)
        orders.send(
            json.dumps(
                {"ready": True, "walls": have.described(), "version": sys.version.split()[0], "prepares": not is_kept}
            ).encode()
        )
        _serve(orders, own_pid_namespace, around)

    try:
        if config["session"]:
            importlib.import_module(config["session"]).session(wait)
        wait()
    except program.Become as job:
        start, channel = job.start, job.channel
    if start["kind"] == "serve":
        candidate.serve(start, channel)
    program.script(start["path"], start["args"])


def _open_descriptors() -> list[int]:
    return [number for number in range(3, _MAX_DESCRIPTORS) if _is_open(number)]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _prepare(config: dict[str, Any]) -> walls.Have:
    """Finds out what a job can get here, builds the root and imports the preloads."""
    listening, killing = map(bytes.fromhex, config["filters"])
    have = walls.probe((listening, killing), unprivileged=config["unprivileged"])
    package = config["session"].rpartition(".")[0]
    session = [_read_module(f"{package}.{name}") for name in _WITH_FRAMEWORK] if package else []
    session += [_read_module(config["session"])] if package else []
    threads = os.open("/proc/self/task", os.O_RDONLY)
    rootfs.build(config)
    if config["place"]:
        have = replace(have, box=chroots.Box("", chroots.move_into(config["place"]), have.masked))
    sys.path[:] = [path for path in sys.path if path.startswith(config["prefix"])] + [rootfs.PACKAGES]
    sys.dont_write_bytecode = True
    for give in (site.setquit, site.setcopyright, site.sethelper):  # exit() and the like: it starts without `site`
        give()
    preload.load(config["preload"], threads)
    for module, code in session:
        sys.modules[module.__name__] = module
        exec(code, module.__dict__)  # noqa: S102 - the second half of an import: see _read_module
    os.environ.clear()
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return have


def _read_module(name: str) -> tuple[types.ModuleType, types.CodeType]:
    """First half of an import: the code is read while its file can be seen, and run where its imports are found.

    Its name in tracebacks is not its path: a host's path could be taken for one of the job's own.
    """
    spec = importlib.util.find_spec(name)
    source = spec.loader.get_source(name) if spec and isinstance(spec.loader, importlib.abc.InspectLoader) else None
    if spec is None or source is None:
        raise ImportError(f"no source of {name}")
    return importlib.util.module_from_spec(spec), compile(source, f"<{name}>", "exec", dont_inherit=True)


def _let_signals_act() -> None:
    """Signals do what programs expect of them, whatever the service was started with: nohup, say, ignores SIGHUP."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # which python ignores by itself
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


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


def _serve(orders: socket.socket, own_pid_namespace: int, around: cell.Surroundings) -> NoReturn:
    """Forks a cell for each order until the service closes the socket."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps; the service follows its jobs by pid descriptors
    while True:
        packet, descriptors = _receive(orders)
        if not packet:
            os._exit(0)
        control = socket.socket(fileno=descriptors.pop(0))
        try:
            pid = os.fork() if around.is_kept else _fork(own_pid_namespace)
        except OSError as error:
            with contextlib.suppress(OSError):
                control.send(json.dumps({"fault": f"{type(error).__name__}: {error}"}).encode())
        else:
            if pid == 0:  # outside of any clean-up of the template's: a job leaves through here
                orders.close()
                os.close(own_pid_namespace)
                if around.is_kept:
                    around = _in_kept_cell(control, descriptors, around)
                order = json.loads(packet)
                if "prepare" in order:
                    ready.main(order["prepare"], control, descriptors, around)
                cell.main(order, control, descriptors, around)
            if not around.is_kept:
                _hand_over(control, pid)
        control.close()
        for descriptor in descriptors:
            os.close(descriptor)


def _in_kept_cell(control: socket.socket, descriptors: list[int], around: cell.Surroundings) -> cell.Surroundings:
    """Makes this process a keeper and returns in the cell alone, with what it finds there."""
    box = around.have.box and replace(around.have.box, path=f"{chroots.CELLS}/{os.getpid()}")
    if not keeper.fork_cell(control, descriptors, box.make if box else lambda: None):
        if box:
            box.leave_nothing()
        keeper.end()
    return replace(around, have=replace(around.have, box=box))


def _fork(own_pid_namespace: int) -> int:
    """Forks process 1 of a new pid namespace."""
    syscalls.unshare(syscalls.CLONE_NEWPID)
    try:
        pid = os.fork()
    except OSError:
        syscalls.setns(own_pid_namespace, syscalls.CLONE_NEWPID)
        raise
    if pid:
        syscalls.setns(own_pid_namespace, syscalls.CLONE_NEWPID)
    return pid


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
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:  # it has ended already, and said so itself
        return
    rights = array.array("i", [handle])
    with contextlib.suppress(OSError):  # the service has gone
        control.sendmsg([json.dumps({"pid": pid}).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    os.close(handle)
