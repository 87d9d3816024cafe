"""Calls to a sandbox service as tests make them: a program in one line, and everything about its reply at hand."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import grpc
from codemend.rpc import open_channel
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sandbox_pb2_grpc as pb_grpc

Files = Mapping[str, str | bytes]
NO_FILES: Files = {}
CALL_SECONDS = 60.0
"""Bound of every call that says nothing else."""


def files(contents: Files) -> list[pb.File]:
    """Files by path; text becomes UTF-8."""
    return [
        pb.File(path=path, content=content.encode() if isinstance(content, str) else content)
        for path, content in contents.items()
    ]


def limits(**values: float) -> pb.Limits:
    """Limits, the times in seconds: `limits(wall_time=2, memory_bytes=1 << 28)`."""
    message = pb.Limits()
    for name, value in values.items():
        if name.endswith("_time"):
            getattr(message, name).FromTimedelta(timedelta(seconds=value))
        else:
            setattr(message, name, int(value))
    return message


@dataclass(frozen=True)
class Ran:
    """One execution: its result, how long the call took, and how large the reply was."""

    result: pb.ExecutionResult
    seconds: float
    reply_bytes: int

    @property
    def status(self) -> str:
        """The status without its prefix."""
        return pb.ExecutionStatus.Name(self.result.status).removeprefix("EXECUTION_STATUS_")

    @property
    def wall_seconds(self) -> float:
        """Wall time as the reply tells it."""
        return self.result.wall_time.ToTimedelta().total_seconds()

    @property
    def out(self) -> bytes:
        """Stdout; the test must not call for it where some was dropped."""
        assert self.result.stdout.dropped_bytes == 0
        return self.result.stdout.head

    @property
    def err(self) -> str:
        """Stderr as text."""
        return self.result.stderr.head.decode("utf-8", "replace")

    def told(self) -> str:
        """All that a person needs to see when an expectation fails."""
        return (
            f"{self.status} ({self.result.reason}) exit {self.result.exit_code} after {self.seconds:.2f} s: {self.err}"
        )


class Sandbox:
    """One service, over one channel."""

    def __init__(self, channel: grpc.aio.Channel, pid: int) -> None:
        self.channel = channel
        self.stub = pb_grpc.SandboxServiceStub(channel)
        self.pid = pid

    async def python(self, code: str | bytes, seconds: float = CALL_SECONDS, more: Files = NO_FILES, **fields) -> Ran:
        """Runs `code` as main.py; `fields` are those of Program, with `limits` as made above."""
        return await self.run({"main.py": code, **more}, "main.py", seconds, **fields)

    async def run(self, given: Files, entry: str, seconds: float = CALL_SECONDS, **fields) -> Ran:
        """Runs one of the files given."""
        return await self._execute(pb.Program(files=files(given), entry=entry, **fields), seconds)

    async def command(self, *argv: str, seconds: float = CALL_SECONDS, more: Files = NO_FILES, **fields) -> Ran:
        """Runs an argument vector."""
        return await self._execute(pb.Program(files=files(more), command=pb.Command(argv=argv), **fields), seconds)

    async def _execute(self, program: pb.Program, seconds: float) -> Ran:
        began = time.monotonic()
        reply = await self.stub.Execute(pb.ExecuteRequest(program=program), timeout=seconds)
        return Ran(reply.result, time.monotonic() - began, reply.ByteSize())

    def stream(self, code: str, seconds: float = CALL_SECONDS, **fields) -> grpc.aio.UnaryStreamCall:
        """Starts `code` as main.py with its output as it appears."""
        program = pb.Program(files=files({"main.py": code}), entry="main.py", **fields)
        return self.stub.ExecuteStream(pb.ExecuteStreamRequest(program=program), timeout=seconds)

    async def tests(
        self, tests: Files | str, solution: Files | str = NO_FILES, seconds: float = CALL_SECONDS, **fields
    ) -> pb.RunTestsResponse:
        """Runs tests; a text stands for test_solution.py or solution.py."""
        given = {"test_solution.py": tests} if isinstance(tests, str) else tests
        code = {"solution.py": solution} if isinstance(solution, str) else solution
        request = pb.RunTestsRequest(files=files(code), tests=files(given), **fields)
        return await self.stub.RunTests(request, timeout=seconds)

    async def in_force(self) -> set[str]:
        """Names of the protections that are in force."""
        reply = await self.stub.GetCapabilities(pb.GetCapabilitiesRequest(), timeout=CALL_SECONDS)
        return {wall.name for wall in reply.protections if wall.in_force}


@asynccontextmanager
async def client(address: str, pid: int) -> AsyncIterator[Sandbox]:
    """A client of the service at `address`, whose process is `pid`."""
    async with open_channel(address) as channel:
        yield Sandbox(channel, pid)


def outcome(reply: pb.RunTestsResponse) -> str:
    """The report's outcome without its prefix."""
    return pb.ReportOutcome.Name(reply.report.outcome).removeprefix("REPORT_OUTCOME_")


def outcomes(reply: pb.RunTestsResponse) -> dict[str, str]:
    """Outcome of each listed test, without prefixes, by what follows `::` in its id."""
    return {
        case.node_id.partition("::")[2]: pb.TestOutcome.Name(case.outcome).removeprefix("TEST_OUTCOME_")
        for case in reply.report.tests
    }
