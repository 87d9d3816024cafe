"""What the probing program (`guest.confinement.probe`) met inside a cell, wall by wall: read for the start-up proof.

For the walls between a job and the host the service first opens what must be out of reach: a listener on its loopback,
an abstract socket, a file.
"""

import hashlib
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack
from importlib import resources
from typing import Any

from sandbox_service.domain import DEFAULT_LIMITS, File, JobOutcome, Program, Status

_DONE = "done"
_NAMESPACES = {
    "user_namespace": "user", "mount_namespace": "mnt", "pid_namespace": "pid", "network_namespace": "net",
    "ipc_namespace": "ipc", "uts_namespace": "uts", "cgroup_namespace": "cgroup",
}  # fmt: skip
"""Protection -> name below /proc/PID/ns."""
_OWN_VARIABLES = ("PATH", "HOME", "USER", "LANG", "TMPDIR", "HOSTNAME", "PWD", "MPLBACKEND", "LC_", "PYTHON", "DEBIAN")
"""Beginnings of the names that a cell sets by itself; that their values are the service's too tells nothing."""


async def met_walls(
    run: Callable[[Program], Awaitable[JobOutcome]], claimed: frozenset[str]
) -> tuple[JobOutcome, dict[str, str]]:
    """Runs the probing program.

    Args:
        run: runs a job.
        claimed: protections that are said to be in force; no other is judged.

    Returns:
        How the program ended and, where it came to its end, protection -> what is wrong with it.
    """
    with ExitStack() as opened:
        host, listeners = _open_host(opened)
        code = resources.files("sandbox_service.guest.confinement").joinpath("probe.py").read_bytes()
        argument = json.dumps(host)
        job = Program(DEFAULT_LIMITS, files=(File("probe.py", code),), entry="probe.py", args=(argument,))
        outcome = await run(job)
        if outcome.result.status is not Status.SUCCEEDED:
            return outcome, {}
        met = json.loads(outcome.result.stdout.head)
        met["came"] = any(_somebody_came(listener) for listener in listeners)
    return outcome, {name: text for name, text in judged(met) if text and name in claimed}


def _open_host(opened: ExitStack) -> tuple[dict[str, object], list[socket.socket]]:
    """What a job must not reach, and the sockets that would know if it did."""
    abstract = f"codemend-{secrets.token_hex(16)}"
    tcp = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
    unix = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    unix.bind(f"\0{abstract}")
    unix.listen()
    file = opened.enter_context(tempfile.NamedTemporaryFile(prefix="codemend-canary-"))  # noqa: SIM115 - it is closed
    file.write(b"the host's")
    file.flush()
    os.fchmod(file.fileno(), 0o644)
    return {"port": tcp.getsockname()[1], "abstract": abstract, "file": file.name}, [tcp, unix]


def _somebody_came(listener: socket.socket) -> bool:
    listener.setblocking(False)  # noqa: FBT003 - the socket API's own signature
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def judged(met: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Protection and what is wrong with it (empty: nothing), of all that the program looked at."""
    for name, link in _NAMESPACES.items():
        shared = link in met["namespaces"] and met["namespaces"][link] == _own_namespace(link)
        yield name, "the job was expected in a namespace of its own and is in the service's" if shared else ""
    reached = [place for place, how in met["network"].items() if how == _DONE]
    yield "network_namespace", _seen("no way out", reached or ["a caller at the listener"] * met["came"])
    uid = met["outer_uid"]
    yield "own_uid", _seen("a user id that nothing else has", [f"{uid}"] * (uid in (0, os.geteuid())))
    yield "no_capabilities", _seen("empty sets", [name for name, value in met["capabilities"].items() if value])
    yield "no_new_privs", _seen("it set", ["it unset"] * (met["no_new_privs"] != 1))
    yield "rlimits", _seen("the job's limits", list(_wrong_rlimits(met["rlimits"])))
    yield "read_only_root", _seen("nothing to be written", _done(met["writes"]))
    own_places = [f"{place}: {how}" for place, how in met["own_places"].items() if how != _DONE]
    yield "read_only_root", _seen("places to write in", own_places)
    yield "mount_namespace", _seen("none of the host's files", _done(met["reads"]))
    leaked = _hashes_of_own_environment() & set(met["environments"])
    yield "mount_namespace", _seen("nothing of the service's environment", [f"{len(leaked)} entries"] * bool(leaked))
    yield "hidden_processes", _seen("no other process", [f"process {pid}" for pid in met["others"]])
    yield "masked_kernel_files", _seen("nothing to read", _done(met["kernel"]))
    yield "landlock", _seen("a refusal", ["/proc/self/comm written"] * (met["landlock"] == _DONE))


def _seen(expected: str, found: list[str]) -> str:
    return f"{expected} was expected, seen was {', '.join(found)}" if found else ""


def _done(attempts: Mapping[str, str]) -> list[str]:
    return [path for path, how in attempts.items() if how == _DONE]


def _wrong_rlimits(limits: Mapping[str, int]) -> Iterator[str]:
    if not 0 <= limits["NOFILE"] <= DEFAULT_LIMITS.open_files:
        yield f"{limits['NOFILE']} open files"
    if limits["CORE"] not in (0, 1):
        yield f"core files of {limits['CORE']} bytes"


def _own_namespace(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{name}")  # noqa: PTH115 - a link that names no path
    except OSError:
        return ""


def _hashes_of_own_environment() -> set[str]:
    """Of what would tell a job something about the service."""
    telling = (
        f"{name}={value}"
        for name, value in os.environ.items()
        if value and not name.startswith(_OWN_VARIABLES) and not name.endswith("_NUM_THREADS")
    )
    return {hashlib.sha256(entry.encode("utf-8", "surrogateescape")).hexdigest() for entry in telling}
