"""The start-up proof: every kind of cell shows on itself, before it serves, that each limit and each wall bites.

It knows a kind by what it claims to have in force and by the jobs that it runs, no more. Here are the jobs that must
end in one way; what the probing program met inside a cell is judged in `cells.walls_met`.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from sandbox_service.cells.base import CellKind
from sandbox_service.cells.walls_met import met_walls
from sandbox_service.domain import (
    DEFAULT_LIMITS,
    MIB,
    File,
    JobOutcome,
    Limits,
    Program,
    ReportOutcome,
    Status,
    TestRun,
)
from sandbox_service.errors import CellFailure, CellUnavailable

_log = logging.getLogger(__name__)
_LIMITS = replace(DEFAULT_LIMITS, wall_time=timedelta(seconds=20), cpu_time=timedelta(seconds=10))
"""Of canaries that are about something else: far above their needs, on however busy a machine."""
_SHORT = timedelta(seconds=0.2)
_GONE_S, _PAUSE_S = 2.0, 0.01


@dataclass(frozen=True, slots=True)
class Canary:
    """A program that a limit or a wall must end in one way.

    Attributes:
        name: what it is called in errors and in SANDBOX_ALLOW_DEGRADED.
        code: the program.
        limits: what it may use.
        expected: how it must end.
        guard: the protection that does it, if one has a name of its own.
        without: how else it may end where the guard is not in force; None: it is not tried there.
    """

    name: str
    code: str
    limits: Limits
    expected: Status
    guard: str = ""
    without: Status | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A canary that lived: its name, the protection that cannot be believed, what was expected and what was seen."""

    canary: str
    protection: str
    seen: str


CANARIES = (
    Canary(
        "memory_limit",
        "held = []\nwhile len(held) < 256: held.append(b'x' * 2 ** 20)",
        replace(_LIMITS, memory_bytes=48 * MIB),
        Status.MEMORY_LIMIT,
        guard="memory_cgroup",
        without=Status.MEMORY_LIMIT,
    ),
    Canary(
        "process_limit",
        "import os, time\nfor _ in range(64):\n    if os.fork() == 0: time.sleep(60)",
        replace(_LIMITS, processes=8),
        Status.PROCESS_LIMIT,
        guard="pids_cgroup",
        without=Status.FAILED,
    ),
    Canary(
        "cpu_time_limit",
        "while True: pass",
        replace(_LIMITS, cpu_time=_SHORT),
        Status.CPU_LIMIT,
        guard="cpu_cgroup",
        without=Status.CPU_LIMIT,
    ),
    Canary(
        "wall_time_limit",
        "import time\ntime.sleep(60)",
        replace(_LIMITS, wall_time=_SHORT),
        Status.TIMED_OUT,
    ),
    Canary(
        "output_limit",
        "import os\nfor _ in range(64): os.write(1, b'x' * 65536)",
        replace(_LIMITS, output_bytes=MIB),
        Status.OUTPUT_LIMIT,
    ),
    Canary(
        "disk_limit",
        "with open('/work/grown', 'wb', 0) as grown:\n    for _ in range(64): grown.write(b'x' * 65536)",
        replace(_LIMITS, disk_bytes=MIB),
        Status.DISK_LIMIT,
    ),
    Canary(
        "forbidden_call",
        "import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)",
        _LIMITS,
        Status.VIOLATION,
        guard="seccomp",
    ),
)
"""Every canary that is one program. A guard with `without` is a limit: limits are tried on every machine."""
_MORE = {"clean_up", "read_only_tests", "honest_job"}
_DAEMON = """
import os, sys, time
def runs(pid):
    try:
        with open(f"/proc/{{pid}}/cmdline") as arguments:
            return "{marker}" in arguments.read()
    except OSError:
        return False
seen, held = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "{marker}"])
    os._exit(0)
os.close(held)
os.read(seen, 1)
for _look in range(200):  # the pipe closes a moment before the daemon has its arguments
    if any(runs(name) for name in os.listdir("/proc") if name.isdigit()):
        sys.exit(0)
    time.sleep(0.005)
sys.exit(1)
"""
_READ_ONLY_TESTS = """
import errno
def test_the_tests_cannot_be_written():
    try:
        open(__file__, "a")
    except OSError as error:
        assert error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
    else:
        raise AssertionError("written")
"""


async def prove(kind: CellKind, allow_degraded: frozenset[str] = frozenset()) -> dict[str, str]:
    """Runs every canary in cells of `kind`, which has started; all at once, so that it takes about a second.

    Args:
        kind: the cells to be proved.
        allow_degraded: names of canaries and of protections that may fail.

    Returns:
        Name -> what was seen, of each protection that cannot be believed although the kind claims it.

    Raises:
        CellUnavailable: one failed that may not; the message names it, what was expected and what was seen.
        ValueError: a name in `allow_degraded` is none of a canary or protection.
    """
    known = {canary.name for canary in CANARIES} | _MORE | {wall.name for wall in kind.protections()}
    if unknown := allow_degraded - known:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    claimed = frozenset(wall.name for wall in kind.protections() if wall.in_force)
    runs = [_ends_as_expected(kind, canary, claimed) for canary in CANARIES if _is_tried(canary, claimed)]
    runs += [_leaves_nothing(kind), _keeps_tests(kind), _walls(kind, claimed)]
    failed = [failure for found in await _all(runs) for failure in found]
    fatal = [failure for failure in failed if not {failure.canary, failure.protection} & allow_degraded]
    if fatal:
        told = "; ".join(f"{failure.canary}: {failure.seen}" for failure in fatal)
        raise CellUnavailable(f"the start-up proof failed: {told}")
    for failure in failed:
        _log.warning("a canary lived, as it may here", extra={"canary": failure.canary, "detail": failure.seen})
    return {failure.protection: f"it failed its start-up proof: {failure.seen}" for failure in failed}


async def _all(runs: Sequence[Coroutine[Any, Any, list[Failure]]]) -> list[list[Failure]]:
    """Runs them together; the first error ends the others, and comes out when they are gone."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _is_tried(canary: Canary, claimed: frozenset[str]) -> bool:
    return not canary.guard or canary.guard in claimed or canary.without is not None


async def _ends_as_expected(kind: CellKind, canary: Canary, claimed: frozenset[str]) -> list[Failure]:
    outcome = await _run(kind, canary.name, _program(canary.code, canary.limits))
    accepted = {canary.expected}
    if canary.without and canary.guard not in claimed:
        accepted.add(canary.without)
    if outcome.result.status in accepted:
        return []
    return [Failure(canary.name, canary.guard or canary.name, f"{canary.expected} was expected, {_told(outcome)}")]


async def _leaves_nothing(kind: CellKind) -> list[Failure]:
    """A daemon that has left its session and its parent must be gone when its job is."""
    name, marker = "clean_up", f"60.{secrets.randbelow(10**12):012}"
    outcome = await _run(kind, name, _program(_DAEMON.format(marker=marker), _LIMITS))
    if outcome.result.status is not Status.SUCCEEDED:
        return [Failure(name, name, f"SUCCEEDED was expected, {_told(outcome)}")]
    deadline = time.monotonic() + _GONE_S
    while await asyncio.to_thread(_runs_with, marker):
        if time.monotonic() > deadline:
            return [Failure(name, name, "a daemon of a job was expected to end with it, and it still runs")]
        await asyncio.sleep(_PAUSE_S)
    return []


def _runs_with(marker: str) -> bool:
    """Whether a process of this machine has the marker among its arguments."""
    for arguments in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in arguments.read_bytes():
                return True
        except OSError:
            continue  # it has just ended
    return False


async def _keeps_tests(kind: CellKind) -> list[Failure]:
    name = "read_only_tests"
    run = TestRun(_LIMITS, tests=(File("test_canary.py", _READ_ONLY_TESTS.encode()),))
    outcome = await _run(kind, name, run)
    if outcome.report is not None and outcome.report.outcome is ReportOutcome.PASSED:
        return []
    said = f"report {outcome.report.outcome} ({outcome.report.reason})" if outcome.report else "no report"
    return [Failure(name, name, f"tests that cannot be written were expected, {_told(outcome)}, {said}")]


async def _walls(kind: CellKind, claimed: frozenset[str]) -> list[Failure]:
    """The probing program must run to its end, as every honest job; then each wall that is claimed is judged."""
    name = "honest_job"

    async def run(program: Program) -> JobOutcome:
        return await _run(kind, name, program)

    outcome, wrong = await met_walls(run, claimed)
    if outcome.result.status is not Status.SUCCEEDED:
        return [Failure(name, name, f"SUCCEEDED was expected, {_told(outcome)}")]
    return [Failure(wall, wall, text) for wall, text in wrong.items()]


async def _run(kind: CellKind, name: str, job: Program | TestRun) -> JobOutcome:
    try:
        return await kind.run(job)
    except CellFailure as error:
        raise CellUnavailable(f"the start-up proof failed: {name}: {error}") from error


def _program(code: str, limits: Limits) -> Program:
    return Program(limits, files=(File("canary.py", code.encode()),), entry="canary.py")


def _told(outcome: JobOutcome) -> str:
    result = outcome.result
    words = (result.stderr.tail or result.stderr.head).decode("utf-8", "replace")[-300:].strip()
    return f"seen was {result.status} ({result.reason}) {words}".rstrip()
