"""Looks at what a job uses, from beside it: memory, processes and processor time, out of /proc.

For places where no control group counts a job by itself. What it sees comes at intervals: a limit is met a little
late, and other limits (a container's, those of single processes) lie above it.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

_FIRST_S, _PAUSE_S = 0.05, 0.025
"""Most jobs are over before the first look."""
_SHARE = 8
"""The time between two looks is at least this many times what a look takes."""
_Held = Callable[[list[int], int, int], int]
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    name: str
    cpu: float
    children_cpu: float
    threads: int
    resident_bytes: int


def _read(pid: int) -> _Process | None:
    """Fields of /proc/PID/stat (see proc(5)); None where the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stream:
            content = stream.read(4096)
    except OSError:
        return None
    head, _, rest = content.rpartition(b")")
    field = rest.split()
    if field[0] in (b"Z", b"X"):
        return None
    user, system, children_user, children_system = (int(value) for value in field[11:15])
    return _Process(
        pid=pid,
        name=head.partition(b"(")[2].decode("utf-8", "replace"),
        cpu=(user + system) / _TICKS,
        children_cpu=(children_user + children_system) / _TICKS,
        threads=int(field[17]),
        resident_bytes=int(field[21]) * _PAGE,
    )


class Watch:
    """One job's. `look` when `due` seconds have passed; what was met stays said."""

    def __init__(
        self, limits: dict[str, int], first: int = 1, *, apart: frozenset[int] = frozenset(), held: _Held
    ) -> None:
        """Begins.

        Args:
            limits: `memory_bytes`, `processes` and `cpu_seconds` of the job.
            first: the process whose descendants are the job; it and this process itself do not count.
            apart: others that do not.
            held: adds memory up in its own way: from the job's processes, what they have resident, and the limit.
        """
        self._held = held
        self._limits = limits
        self._first = first
        self._apart = apart | {first, os.getpid()}
        template = _read(first)
        self._name = template.name if template else ""
        self._shared_bytes = template.resident_bytes if template else 0
        self._reaped_before = template.children_cpu if template else 0.0
        self._next = time.monotonic() + _FIRST_S
        self.peak_bytes = 0
        self.met: set[str] = set()

    @property
    def due(self) -> float:
        """Seconds until the next look."""
        return max(self._next - time.monotonic(), 0.0)

    def look(self) -> bool:
        """Takes a look; True where a limit is met."""
        began = time.monotonic()
        seen = [process for pid in self._pids() if (process := _read(pid)) is not None]
        first = _read(self._first)
        reaped = first.children_cpu - self._reaped_before if first else 0.0
        used = {
            "memory_bytes": self._memory_bytes(seen),
            "processes": sum(process.threads for process in seen),
            "cpu_seconds": reaped + sum(process.cpu + process.children_cpu for process in seen),
        }
        self.peak_bytes = max(self.peak_bytes, int(used["memory_bytes"]))
        self.met |= {name for name in ("memory_bytes", "cpu_seconds") if used[name] > self._limits[name]}
        if used["processes"] >= self._limits["processes"]:
            self.met.add("processes")
        now = time.monotonic()
        self._next = now + max(_PAUSE_S, _SHARE * (now - began))
        return not self.met.isdisjoint(("memory_bytes", "cpu_seconds")) or used["processes"] > self._limits["processes"]

    def _pids(self) -> list[int]:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in self._apart]

    def _memory_bytes(self, seen: list[_Process]) -> int:
        resident = sum(map(self._own_bytes, seen))
        return self._held([process.pid for process in seen], resident, self._limits["memory_bytes"])

    def _own_bytes(self, process: _Process) -> int:
        """Without what it shares with the process that it was forked from."""
        shared = self._shared_bytes if process.name == self._name else 0
        return max(process.resident_bytes - shared, 0)
