"""Decides what a job's evidence means: which status an execution has. Of test runs: `report_verdict`.

Pure functions of structured fields.
"""

import signal
from dataclasses import dataclass
from enum import Enum

from sandbox_service.domain import Limits, Status


class Kill(Enum):
    """Why the service ended a job."""

    WALL_TIME = Status.TIMED_OUT
    CPU_TIME = Status.CPU_LIMIT
    OUTPUT = Status.OUTPUT_LIMIT


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen of a job's end.

    `wait_status` (as of waitpid) is None where the whole cell died; `violation` is the name of a forbidden system call.
    `over_memory` and `over_disk`: the job was seen to hold more than its limit, however its program ended.
    """

    wait_status: int | None
    kill: Kill | None = None
    over_memory: bool = False
    over_disk: bool = False
    out_of_memory_kills: int = 0
    process_limit_hits: int = 0
    disk_full: bool = False
    file_limit_met: bool = False
    memory_error: bool = False
    violation: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """Status of an execution with its reason, and the exit code or the signal."""

    status: Status
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None


def ending(evidence: Evidence, limits: Limits) -> Ending | None:
    """How a job ended, or None where the evidence does not say: never a success by default."""
    code, number = _decode(evidence.wait_status)
    if evidence.violation:
        return Ending(Status.VIOLATION, f"made a forbidden system call: {evidence.violation}", signal=number)
    if evidence.kill is not None:
        reason = _kill_reason(evidence.kill, limits)
        if evidence.process_limit_hits:
            reason += f"; it had met the limit of {limits.processes} processes"
        return Ending(evidence.kill.value, reason, signal=signal.SIGKILL)
    found = _held_too_much(evidence, limits)
    if found is None and code == 0:
        return Ending(Status.SUCCEEDED, exit_code=0)
    found = found or _limit(evidence, limits, number)
    if found is not None:
        return Ending(*found, exit_code=code, signal=number)
    if number is not None:
        return Ending(Status.SIGNALED, f"ended by {_name(number)}", signal=number)
    return Ending(Status.FAILED, f"exit code {code}", exit_code=code) if code is not None else None


def _held_too_much(evidence: Evidence, limits: Limits) -> tuple[Status, str] | None:
    if evidence.over_memory:
        return Status.MEMORY_LIMIT, _over_memory(limits)
    if evidence.over_disk:
        return Status.DISK_LIMIT, f"over the disk limit of {limits.disk_bytes} bytes or {limits.inodes} files"
    return None


def _decode(wait_status: int | None) -> tuple[int | None, int | None]:
    if wait_status is None:
        return None, None
    return (wait_status >> 8, None) if wait_status & 0x7F == 0 else (None, wait_status & 0x7F)


def _limit(evidence: Evidence, limits: Limits, number: int | None) -> tuple[Status, str] | None:
    """The limit that a failed program met, the most telling first."""
    if evidence.out_of_memory_kills or evidence.memory_error:
        return Status.MEMORY_LIMIT, _over_memory(limits)
    if number == signal.SIGXCPU:
        return Status.CPU_LIMIT, _kill_reason(Kill.CPU_TIME, limits)
    if number == signal.SIGXFSZ or evidence.file_limit_met:
        return Status.DISK_LIMIT, f"failed with a file at the limit of {limits.file_bytes} bytes"
    if evidence.disk_full:
        return Status.DISK_LIMIT, f"failed with its disk full: {limits.disk_bytes} bytes or {limits.inodes} files"
    if evidence.process_limit_hits:
        return Status.PROCESS_LIMIT, f"failed after it met the limit of {limits.processes} processes"
    return None


def _over_memory(limits: Limits) -> str:
    return f"over the memory limit of {limits.memory_bytes} bytes"


def _kill_reason(kill: Kill, limits: Limits) -> str:
    match kill:
        case Kill.WALL_TIME:
            return f"still running after {limits.wall_time.total_seconds():g} s of wall time"
        case Kill.CPU_TIME:
            return f"over the limit of {limits.cpu_time.total_seconds():g} s of processor time"
        case Kill.OUTPUT:
            return f"wrote more than {limits.output_bytes} bytes of output"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
