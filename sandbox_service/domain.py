"""The words of the sandbox: jobs, limits, results and test reports, as frozen dataclasses.

Nothing here knows gRPC, processes or files: `api.py` translates to and from protobuf, `cells/` carries jobs out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum

MIB = 1024 * 1024
PAGE_BYTES = 4096
"""What the smallest file takes of a job's disk."""


class Status(StrEnum):
    """How a program ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CPU_LIMIT = "CPU_LIMIT"
    MEMORY_LIMIT = "MEMORY_LIMIT"
    OUTPUT_LIMIT = "OUTPUT_LIMIT"
    DISK_LIMIT = "DISK_LIMIT"
    PROCESS_LIMIT = "PROCESS_LIMIT"
    SIGNALED = "SIGNALED"
    CANCELLED = "CANCELLED"
    VIOLATION = "VIOLATION"


class ReportOutcome(StrEnum):
    """What a whole test run says."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    ERROR = "ERROR"
    NO_TESTS = "NO_TESTS"
    TIMED_OUT = "TIMED_OUT"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    TAMPERED = "TAMPERED"
    INCOMPLETE = "INCOMPLETE"


class TestOutcome(StrEnum):
    """What one test says."""

    __test__ = False  # the name is the contract's; pytest must not collect it

    PASSED = "PASSED"
    FAILED = "FAILED"
    ERROR = "ERROR"
    SKIPPED = "SKIPPED"
    XFAILED = "XFAILED"
    XPASSED = "XPASSED"
    UNFINISHED = "UNFINISHED"


class TestIsolation(StrEnum):
    """Where the code under test runs: AUTO is SEPARATE where the tests exchange only plain data with it."""

    __test__ = False

    AUTO = "AUTO"
    SEPARATE = "SEPARATE"
    SHARED = "SHARED"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one job may use. The contract's `Limits` says what each field means and which status it ends in."""

    wall_time: timedelta
    cpu_time: timedelta
    memory_bytes: int
    processes: int
    open_files: int
    output_bytes: int
    file_bytes: int
    disk_bytes: int

    @property
    def inodes(self) -> int:
        """Files and directories that fit: one for every page (4,096 bytes) of the disk limit."""
        return max(self.disk_bytes // PAGE_BYTES, 16)


LIMIT_NAMES: tuple[str, ...] = tuple(f.name for f in fields(Limits))

DEFAULT_LIMITS = Limits(
    wall_time=timedelta(seconds=30),
    cpu_time=timedelta(seconds=30),
    memory_bytes=512 * MIB,
    processes=64,
    open_files=256,
    output_bytes=16 * MIB,
    file_bytes=64 * MIB,
    disk_bytes=128 * MIB,
)
MAXIMUM_LIMITS = Limits(
    wall_time=timedelta(minutes=10),
    cpu_time=timedelta(minutes=20),
    memory_bytes=4096 * MIB,
    processes=1024,
    open_files=4096,
    output_bytes=256 * MIB,
    file_bytes=1024 * MIB,
    disk_bytes=2048 * MIB,
)


@dataclass(frozen=True, slots=True)
class File:
    """One file with a checked relative path."""

    path: str
    content: bytes
    executable: bool = False

    @property
    def disk_bytes(self) -> int:
        """What it takes of a job's disk: whole pages."""
        return -(-len(self.content) // PAGE_BYTES) * PAGE_BYTES


class EntryKind(StrEnum):
    """What lies at a path of a workspace. Nothing else is kept there."""

    FILE = "FILE"
    DIRECTORY = "DIRECTORY"
    LINK = "LINK"


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a session's workspace. Names and link targets are bytes, since that is what they are to a kernel."""

    path: bytes
    kind: EntryKind
    content: bytes = b""
    """A file's bytes, or a link's target."""
    executable: bool = False

    @property
    def disk_bytes(self) -> int:
        """What it takes of a session's disk: whole pages, at least one."""
        return max(-(-len(self.content) // PAGE_BYTES), 1) * PAGE_BYTES


@dataclass(frozen=True, slots=True)
class WorkspaceChanges:
    """What a job did to its workspace: entries that are new or changed, and paths that are gone.

    `left_out` are paths of things that no workspace keeps (devices, FIFOs, sockets). `oversize_bytes` is set, and
    nothing else, where it left more than `workspace_bytes` of its job; so is `refusal`, a sentence, where all sessions
    together would have held too much.
    """

    written: tuple[Entry, ...] = ()
    removed: tuple[bytes, ...] = ()
    left_out: tuple[bytes, ...] = ()
    oversize_bytes: int = 0
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """For whom a cell is: cells that are reused are reused within one of these only. Empty: no session, no tenant."""

    tenant: str = ""
    session: str = ""


NO_LEASE = Lease()


@dataclass(frozen=True, slots=True)
class Program:
    """One program to run: either `entry` (a path among `files`, run by the language) or `argv` is set."""

    limits: Limits
    files: Sequence[File] = ()
    entry: str = ""
    argv: Sequence[str] = ()
    args: Sequence[str] = ()
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    collect: Sequence[str] = ()
    language: str = "python"
    environment: str = "base"
    workspace: Sequence[Entry] | None = None
    """What lies in the working directory before `files`, in a session, each directory before what lies in it; the
    outcome then tells what changed there."""
    workspace_bytes: int = 0
    """What the workspace may take at the job's end."""
    reserve: Callable[[int], None] | None = field(default=None, compare=False, repr=False)
    """Counts bytes of the workspace's changes before they are held; raises where all sessions would hold too much."""


@dataclass(frozen=True, slots=True)
class TestRun:
    """Tests to run against files. `select` holds node ids; empty: all tests. Of the workspace: as in Program."""

    __test__ = False

    limits: Limits
    files: Sequence[File] = ()
    tests: Sequence[File] = ()
    select: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    collect: Sequence[str] = ()
    language: str = "python"
    environment: str = "base"
    workspace: Sequence[Entry] | None = None
    workspace_bytes: int = 0
    reserve: Callable[[int], None] | None = field(default=None, compare=False, repr=False)
    isolation: TestIsolation = TestIsolation.AUTO
    coverage: bool = False


Job = Program | TestRun


@dataclass(frozen=True, slots=True)
class Output:
    """One output stream: all of it in `head`, or head and tail with `dropped_bytes` between them."""

    head: bytes = b""
    tail: bytes = b""
    dropped_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Protection:
    """One wall or limit of a cell: whether this machine gives it, and how or why not."""

    name: str
    in_force: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Isolation:
    """Where a job ran and the names of the protections that were in force."""

    cell: str
    protections: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What a program did."""

    status: Status
    isolation: Isolation
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    stdout: Output = field(default_factory=Output)
    stderr: Output = field(default_factory=Output)
    wall_time: timedelta = timedelta()
    cpu_time: timedelta = timedelta()
    peak_memory_bytes: int = 0
    files: tuple[File, ...] = ()
    files_left_out: tuple[str, ...] = ()
    queue_time: timedelta = timedelta()


@dataclass(frozen=True, slots=True)
class Comparison:
    """The two sides (repr) of a comparison that failed."""

    operator: str
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a test failed."""

    type: str = ""
    message: str = ""
    location: str = ""
    traceback: str = ""
    comparison: Comparison | None = None


@dataclass(frozen=True, slots=True)
class TestCase:
    """One test."""

    __test__ = False

    node_id: str
    outcome: TestOutcome
    duration: timedelta = timedelta()
    failure: Failure | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    by_tests: bool = False
    """A skip or an expected failure is the tests' own doing: it did not come out of the code under test."""


@dataclass(frozen=True, slots=True)
class CollectionError:
    """A test file that could not be collected."""

    path: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class IntegrityCheck:
    """One check of a test run's integrity, by its stable name."""

    name: str
    held: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Integrity:
    """How far the outcome of a test run can be trusted: SEPARATE or SHARED, why, and what was checked."""

    isolation: TestIsolation
    reason: str = ""
    checks: tuple[IntegrityCheck, ...] = ()


@dataclass(frozen=True, slots=True)
class FileCoverage:
    """What tests reached of one file: line numbers, and branches as pairs of lines (negative: a block's exit)."""

    path: str
    statements: int
    missing_lines: tuple[int, ...] = ()
    missing: int = 0
    branches: int = 0
    missing_branches: tuple[tuple[int, int], ...] = ()
    missed_branches: int = 0


@dataclass(frozen=True, slots=True)
class TestReport:
    """What a test run says. `counts` covers all tests; `tests` may be cut by the reply's size (`tests_left_out`)."""

    __test__ = False

    outcome: ReportOutcome
    reason: str = ""
    tests: tuple[TestCase, ...] = ()
    counts: Mapping[TestOutcome, int] = field(default_factory=dict)
    tests_left_out: int = 0
    collection_errors: tuple[CollectionError, ...] = ()
    framework: str = ""
    duration: timedelta = timedelta()
    integrity: Integrity | None = None
    coverage: tuple[FileCoverage, ...] = ()
    coverage_missing_reason: str = ""
    """Why `coverage` is empty; of no meaning where nobody asked for it."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What a cell gives back for a job.

    The execution, the report where the job was a test run, and the changes where it ran in a session's workspace;
    None where the cell died before it could tell them.
    """

    result: Result
    report: TestReport | None = None
    changes: WorkspaceChanges | None = None
