"""The workflow's words for running code: jobs, executions, test reports, and the `Sandbox` that carries jobs out.

Plain values that know nothing of gRPC. They mirror the sandbox's contract, which says what each field means.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, ClassVar, Protocol

from pydantic import ConfigDict, Field

_BYTES_AS_BASE64 = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")  # programs print any bytes


class ExecutionStatus(StrEnum):
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
    """Where the code under test ran while it was tested."""

    __test__ = False

    UNSPECIFIED = "UNSPECIFIED"
    SEPARATE = "SEPARATE"
    SHARED = "SHARED"


FAILING = frozenset({TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.XPASSED, TestOutcome.UNFINISHED})


@dataclass(frozen=True, slots=True)
class File:
    """One file with a relative path."""

    path: str
    content: bytes
    executable: bool = False

    __pydantic_config__: ClassVar[ConfigDict] = _BYTES_AS_BASE64


@dataclass(frozen=True, slots=True)
class Limits:
    """What one job may use; None leaves a limit to the sandbox's default."""

    wall_time: timedelta | None = None
    cpu_time: timedelta | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    open_files: int | None = None
    output_bytes: int | None = None
    file_bytes: int | None = None
    disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """One output stream: all of it in `head`, or head and tail with `dropped_bytes` between them."""

    head: bytes = b""
    tail: bytes = b""
    dropped_bytes: int = 0

    __pydantic_config__: ClassVar[ConfigDict] = _BYTES_AS_BASE64

    def cut(self, limit_bytes: int) -> "Output":
        """The same stream in at most `limit_bytes`, half of them from its end."""
        kept = self.head + self.tail
        if len(kept) <= limit_bytes:
            return self
        half = limit_bytes // 2
        source = self.tail or self.head
        tail = source[-half:] if half else b""
        head = self.head[: limit_bytes - half]
        return Output(head, tail, self.dropped_bytes + len(kept) - len(head) - len(tail))

    def text(self) -> str:
        """The stream as text for a person or a model; bytes that are no UTF-8 are shown escaped."""
        gap = f"\n… {self.dropped_bytes} bytes left out …\n".encode() if self.dropped_bytes else b""
        return (self.head + gap + self.tail).decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class Isolation:
    """Where a job ran and the names of the protections that were in force."""

    cell: str = ""
    protections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Execution:
    """What a program did."""

    status: ExecutionStatus
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    stdout: Output = field(default_factory=Output)
    stderr: Output = field(default_factory=Output)
    wall_time: timedelta = timedelta()
    cpu_time: timedelta = timedelta()
    peak_memory_bytes: int = 0
    isolation: Isolation = field(default_factory=Isolation)
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

    __pydantic_config__: ClassVar[ConfigDict] = _BYTES_AS_BASE64


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
    """How far the outcome of a test run can be trusted.

    Attributes:
        isolation: where the code under test ran.
        reason: why it was SHARED, where nobody asked for it.
        checks: what was checked, in order.
    """

    isolation: TestIsolation = TestIsolation.UNSPECIFIED
    reason: str = ""
    checks: tuple[IntegrityCheck, ...] = ()


@dataclass(frozen=True, slots=True)
class TestReport:
    """What a test run says. `counts` covers all tests; `tests` may hold fewer (`tests_left_out`).

    Attributes:
        coverage_missing_reason: why there is no coverage although it was asked for; empty: it was not, or there is.
    """

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
    # Left out where it is empty: reports without it keep the bytes, and so the name, that they have been kept under.
    coverage_missing_reason: Annotated[str, Field(exclude_if=lambda reason: not reason)] = ""

    @property
    def total(self) -> int:
        """Tests in all."""
        return sum(self.counts.values())

    @property
    def passed(self) -> int:
        """Tests that passed."""
        return self.counts.get(TestOutcome.PASSED, 0)


@dataclass(frozen=True, slots=True)
class ProgramJob:
    """Run the file at `entry` among `files`, with `args` as its arguments."""

    files: tuple[File, ...]
    entry: str
    environment: str = ""
    limits: Limits = field(default_factory=Limits)
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TestJob:
    """Run trusted `tests` against `files`."""

    __test__ = False

    files: tuple[File, ...]
    tests: tuple[File, ...]
    environment: str = ""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Caller:
    """For whom a job runs, and as which step.

    Attributes:
        tenant: who takes turns with other tenants at the sandbox; may be empty.
        step: name of the step, one for ever: the same job of the same step runs once however often it is asked for.
            Empty: it runs each time.
    """

    tenant: str = ""
    step: str = ""


NO_CALLER = Caller()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a sandbox offers.

    Attributes:
        environments: names of its environments.
        maximums: the most that a job may ask for; None: it does not say.
    """

    environments: tuple[str, ...] = ()
    maximums: Limits = field(default_factory=Limits)


class Sandbox(Protocol):
    """Carries jobs out. Cancelling a call kills its job.

    Both raise SandboxBusy or SandboxUnavailable (worth a retry) or SandboxRejected (is not); what the program did is
    never an error. `deadline` bounds the call, waiting included, and is a length of time.
    """

    async def run_program(self, job: ProgramJob, *, deadline: timedelta, caller: Caller = NO_CALLER) -> Execution:
        """Runs a program."""
        ...

    async def run_tests(
        self, job: TestJob, *, deadline: timedelta, caller: Caller = NO_CALLER
    ) -> tuple[TestReport, Execution]:
        """Runs tests; the execution is that of the process which ran them."""
        ...
