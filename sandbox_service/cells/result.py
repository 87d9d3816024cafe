"""Makes an execution's result out of what its supervision saw and its control group counted."""

import signal
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

from sandbox_service.cells.cgroups import GroupUsage
from sandbox_service.cells.filters import call_name
from sandbox_service.cells.output import OutputKeeper
from sandbox_service.cells.verdict import Ending, Evidence, Kill, ending
from sandbox_service.domain import File, Isolation, Limits, Result, Status
from sandbox_service.guest.confinement.filter import UNKNOWN_CALL

_KILLED_INSIDE = Ending(
    Status.SIGNALED, "the cell's first process was killed, and everything in the cell with it", signal=9
)


class Seen(Protocol):
    """What whoever followed a job has seen of it."""

    stdout: OutputKeeper
    stderr: OutputKeeper
    kill: Kill | None
    started_ns: int

    @property
    def ended_ns(self) -> int:
        """The program's end, by the clock of `started_ns`."""

    @property
    def end(self) -> Mapping[str, Any]:
        """What the guest told of the end; empty where the cell died before."""


_LAST_WORDS_BYTES = 8192
_NODE_OUT_OF_MEMORY = (b"JavaScript heap out of memory", b"Array buffer allocation failed")


def result(
    seen: Seen,
    limits: Limits,
    usage: GroupUsage | None,
    isolation: Isolation,
    *,
    files: tuple[File, ...],
    left_out: tuple[str, ...],
    memory_counted: bool,
) -> Result:
    """The result of a job that had started and whose cell is gone."""
    used = usage or GroupUsage()
    end = seen.end
    met = set(end.get("met", ()))  # by what process 1 of the cell saw, where no control group counts
    stderr = seen.stderr.output()
    evidence = Evidence(
        wait_status=end.get("status"),
        kill=_kill(seen, limits) or (Kill.CPU_TIME if _is_over_cpu_time(end, met, limits) else None),
        over_memory="memory_bytes" in met,
        over_disk="disk" in met,
        out_of_memory_kills=used.out_of_memory_kills,
        process_limit_hits=used.process_limit_hits or int("processes" in met),
        disk_full=bool(end.get("disk_full")),
        file_limit_met=bool(end.get("file_limit_met")),
        violation=_violation(end.get("violation")),
        memory_error=not memory_counted and _says_memory_error(stderr.tail or stderr.head),
    )
    found = ending(evidence, limits) or _KILLED_INSIDE
    return Result(
        status=found.status,
        isolation=isolation,
        reason=found.reason,
        exit_code=found.exit_code,
        signal=found.signal,
        stdout=seen.stdout.output(),
        stderr=stderr,
        wall_time=timedelta(microseconds=max(seen.ended_ns - seen.started_ns, 0) / 1000),
        cpu_time=timedelta(seconds=used.cpu_seconds or _number(end.get("cpu"))),
        peak_memory_bytes=used.peak_memory_bytes or int(_number(end.get("peak_kib")) * 1024),
        files=files,
        files_left_out=left_out,
    )


def _kill(seen: Seen, limits: Limits) -> Kill | None:
    """Why the service ended the job; None also where its clock rang although the program had ended in time."""
    in_time = bool(seen.end) and seen.ended_ns - seen.started_ns <= limits.wall_time / timedelta(microseconds=1) * 1000
    return None if seen.kill is Kill.WALL_TIME and in_time else seen.kill


def _is_over_cpu_time(end: Mapping[str, Any], met: set[str], limits: Limits) -> bool:
    """By what process 1 saw; or its program was killed as the kernel does it at the rlimit's end, with as much used."""
    killed = end.get("status") == signal.SIGKILL and _number(end.get("cpu")) >= limits.cpu_time.total_seconds()
    return "cpu_seconds" in met or killed


def _violation(found: object) -> str:
    """Name of the forbidden system call that the guest tells of by number and ABI; empty: there was none."""
    if not isinstance(found, list) or len(found) != 2:  # noqa: PLR2004 - number and ABI
        return ""
    number, architecture = found
    if number == UNKNOWN_CALL:
        return "which one, this kernel does not say"
    return call_name(int(number), int(architecture))


def _says_memory_error(stderr: bytes) -> bool:
    """Where no control group counts memory, a limit of each process bites, and the interpreter says so at its end."""
    last_words = stderr[-_LAST_WORDS_BYTES:]
    return last_words.rstrip().rpartition(b"\n")[2].startswith(b"MemoryError") or any(
        words in last_words for words in _NODE_OUT_OF_MEMORY
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
