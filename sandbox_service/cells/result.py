"""Makes an execution's result out of what its supervision saw and its control group counted."""

from datetime import timedelta

from sandbox_service.cells.cgroups import GroupUsage
from sandbox_service.cells.supervision import Supervision
from sandbox_service.cells.verdict import Ending, Evidence, Kill, ending
from sandbox_service.domain import File, Isolation, Limits, Result, Status

_KILLED_INSIDE = Ending(
    Status.SIGNALED, "the cell's first process was killed, and everything in the cell with it", signal=9
)


def result(
    seen: Supervision,
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
    stderr = seen.stderr.output()
    evidence = Evidence(
        wait_status=end.get("status"),
        kill=_kill(seen, limits),
        out_of_memory_kills=used.out_of_memory_kills,
        process_limit_hits=used.process_limit_hits,
        disk_full=bool(end.get("disk_full")),
        file_limit_met=bool(end.get("file_limit_met")),
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


def _kill(seen: Supervision, limits: Limits) -> Kill | None:
    """Why the service ended the job; None also where its clock rang although the program had ended in time."""
    in_time = bool(seen.end) and seen.ended_ns - seen.started_ns <= limits.wall_time / timedelta(microseconds=1) * 1000
    return None if seen.kill is Kill.WALL_TIME and in_time else seen.kill


def _says_memory_error(stderr: bytes) -> bool:
    """Where no control group counts memory, an address space limit bites, and the interpreter's last line says so."""
    return stderr.rstrip().rpartition(b"\n")[2].startswith(b"MemoryError")


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
