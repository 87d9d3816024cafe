"""What an attack is: a program, the group it belongs to, and a judge that says from its end whether it was contained.

The programs are in the other modules of this package; what runs them is `security.battery`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from textwrap import dedent
from types import MappingProxyType

from codemend.sandbox.v1 import sandbox_pb2 as pb

MIB = 1024 * 1024
CALL_SECONDS = 15.0
"""What a call may take beside its program: waiting, a container that has to be made first, bringing files back."""
HELD_SHARE = 1.3
"""How much more than its limit a program may seem to hold: what it asked for and the kernel had not yet refused."""

PRELUDE = """\
import ctypes, errno, json, os, socket, struct, sys, time
C = json.loads(os.environ.pop('CANARY', '{}'))
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
found = {}

def call(name, *args):
    '''A function of libc by its name, or a system call by its number.'''
    args = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    ctypes.set_errno(0)
    result = getattr(libc, name)(*args) if isinstance(name, str) else libc.syscall(ctypes.c_long(name), *args)
    if result == -1:
        raise OSError(ctypes.get_errno(), str(name))
    return result

def attempt(name, function, *args):
    try:
        found[name] = 'GOT ' + repr(function(*args))[:300]
    except OSError as error:
        known = error.errno and error.errno > 0
        found[name] = errno.errorcode.get(error.errno, str(error)) if known else type(error).__name__
    except Exception as error:
        found[name] = type(error).__name__

def read(path, size=64):
    with open(path, 'rb') as stream:
        return stream.read(size)
"""
EPILOGUE = "\nprint(json.dumps(found), flush=True)\n"

REFUSED = frozenset(
    {
        "EPERM",
        "EACCES",
        "EROFS",
        "ENOENT",
        "ENOSYS",
        "ENOTDIR",
        "ENODEV",
        "ENXIO",
        "EXDEV",
        "ESRCH",
        "EOPNOTSUPP",
        "ENOTSUP",
        "nothing",
    }
)
"""Names of errors by which a kernel says no. `nothing` is what a program says that looked and found nothing."""


@dataclass(frozen=True)
class Seen:
    """How one attack ended.

    Attributes:
        seconds: what the call took.
        report: that of the tests, where some were run.
        kind: the kind of cell; empty where the judge need not know it.
    """

    result: pb.ExecutionResult
    seconds: float
    report: pb.TestReport | None = None
    kind: str = ""

    @property
    def status(self) -> str:
        """The status without its prefix."""
        return pb.ExecutionStatus.Name(self.result.status).removeprefix("EXECUTION_STATUS_")

    @property
    def wall_seconds(self) -> float:
        """Time from the program's start to its end."""
        return self.result.wall_time.ToTimedelta().total_seconds()

    @property
    def outcome(self) -> str:
        """The outcome of the tests without its prefix; empty where none were run."""
        return pb.ReportOutcome.Name(self.report.outcome).removeprefix("REPORT_OUTCOME_") if self.report else ""

    @property
    def out(self) -> str:
        """The kept end of what it printed."""
        stream = self.result.stdout
        return (stream.tail or stream.head).decode("utf-8", "replace")

    @property
    def err(self) -> str:
        """The kept end of its stderr."""
        stream = self.result.stderr
        return (stream.tail or stream.head).decode("utf-8", "replace")

    def found(self) -> dict[str, str]:
        """The findings that the program printed as its last line; empty where there are none."""
        try:
            last = json.loads(self.out.rstrip().rpartition("\n")[2])
        except ValueError:
            return {}
        return last if isinstance(last, dict) else {}


@dataclass(frozen=True)
class Finding:
    """A judge's word: whether the attack was contained, and by what."""

    contained: bool
    how: str


Judge = Callable[[Seen], Finding]


def refused(*also: str) -> Judge:
    """The job was ended for a forbidden call, or the kernel refused everything that it tried.

    Args:
        also: further values that are a refusal for this attack.
    """

    def judge(seen: Seen) -> Finding:
        if seen.status == "VIOLATION":
            return Finding(True, seen.result.reason or "VIOLATION")
        found = seen.found()
        if seen.status != "SUCCEEDED" or not found:
            return Finding(False, f"{seen.status} {seen.result.reason}, and it tells nothing: {seen.err[-300:]}")
        got = {name: value for name, value in found.items() if value not in REFUSED | set(also)}
        return Finding(not got, f"got through: {got}" if got else ", ".join(sorted(set(found.values()))))

    return judge


def ends(
    *statuses: str,
    within: float = 4,
    check: Callable[[Seen], bool] = lambda _seen: True,
    also_on: Mapping[str, str] = MappingProxyType({}),
) -> Judge:
    """The job ended with one of these statuses within so many seconds, or for a forbidden call.

    Args:
        within: seconds of the program; the call may take `CALL_SECONDS` more.
        check: what else must hold.
        also_on: one more status that is right on one kind of cell alone, by the kind.
    """

    def judge(seen: Seen) -> Finding:
        if seen.wall_seconds > within or seen.seconds > within + CALL_SECONDS:
            return Finding(False, f"{seen.status} after {seen.wall_seconds:.1f} s, the call after {seen.seconds:.1f} s")
        expected = seen.status in statuses or seen.status == also_on.get(seen.kind)
        right = seen.status == "VIOLATION" or (expected and check(seen))
        return Finding(right, f"{seen.status}: {seen.result.reason}"[:120] if right else _told(seen))

    return judge


def holds_at_most(limit_bytes: int) -> Judge:
    """The program said after each step how many bytes it held (`held N`); it could not keep more than its limit allows.

    Where no control group counts, it has more for as long as it takes to see it, and is then ended for it.
    """

    def judge(seen: Seen) -> Finding:
        held = [int(line.split()[1]) for line in seen.out.splitlines() if line.startswith("held ")]
        most = max(held, default=0)
        if most > limit_bytes * HELD_SHARE and seen.status != "MEMORY_LIMIT":
            return Finding(False, f"{seen.status}, and it held {most // MIB} MiB of {limit_bytes // MIB}")
        stopped = seen.status.endswith("_LIMIT") or "Error" in seen.err or seen.status in ("VIOLATION", "TIMED_OUT")
        told = stopped or (held and "done" in seen.out)
        return Finding(bool(told), f"{seen.status} at {most // MIB} MiB" if told else _told(seen))

    return judge


def _told(seen: Seen) -> str:
    return f"{seen.status} ({seen.result.reason}) after {seen.seconds:.1f} s: {seen.out[-200:]} {seen.err[-300:]}"


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        group: which part of the walls it tries.
        code: the program, or with `tests` the code under test.
        judge: whether it was contained.
        limits: those of its job, the times in seconds.
        collect: what it wants brought back.
        first: a program that runs before, in a job of its own, and leaves something for this one.
        tests: test files that run against `code`.
        more: files beside it.
        neighbour: another job runs meanwhile and holds secrets.
        stdin: what the program can read.
    """

    name: str
    group: str
    code: str
    judge: Judge
    limits: Mapping[str, float] = field(default_factory=dict)
    collect: tuple[str, ...] = ()
    first: str = ""
    tests: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, str] = field(default_factory=dict)
    neighbour: bool = False
    stdin: bytes = b""


def probe(group: str, name: str, code: str, *also: str, first: str = "", neighbour: bool = False) -> Attack:
    """An attack that tells what it could do; everything must have been refused."""
    before = f"{PRELUDE}\n{dedent(first)}" if first else ""
    whole = f"{PRELUDE}\n{dedent(code)}{EPILOGUE}"
    return Attack(name, group, whole, refused(*also), {"wall_time": 25}, first=before, neighbour=neighbour)


def harm(group: str, name: str, code: str, judge: Judge, **limits: float) -> Attack:
    """An attack that does not ask: it takes."""
    return Attack(name, group, f"{PRELUDE}\n{dedent(code)}", judge, {"wall_time": 10, **limits})
