"""`codemend exec`: one program in the sandbox, its output passed on as it appears, its exit code this command's own."""

import asyncio
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import grpc
import typer
from codemend.sandbox.v1 import sandbox_pb2
from google.protobuf.duration_pb2 import Duration

from orchestrator.cli import client, inputs, wording
from orchestrator.cli.errors import ExitCode, UsageFault
from orchestrator.cli.interrupts import run_to_exit
from orchestrator.cli.options import (
    EnvironmentOption,
    LanguageOption,
    MemoryOption,
    SandboxAddressOption,
    WallOption,
)
from orchestrator.cli.output import RawOutput
from orchestrator.cli.services import with_sandbox
from orchestrator.cli.terminal import complain

_EXIT_TIME = 124  # as `timeout` has it
_EXIT_MEMORY = 137  # 128 + SIGKILL, as a shell shows the kernel's own out-of-memory kill
_EXIT_OUTPUT = 153  # 128 + SIGXFSZ
_EXIT_VIOLATION = 159  # 128 + SIGSYS, as a shell shows the end by a forbidden system call
_LONGEST_WALL = timedelta(hours=1)  # bound of the wait where the limit is the server's own; that is below it
_BY_STATUS = {
    sandbox_pb2.EXECUTION_STATUS_TIMED_OUT: _EXIT_TIME,
    sandbox_pb2.EXECUTION_STATUS_CPU_LIMIT: _EXIT_TIME,
    sandbox_pb2.EXECUTION_STATUS_MEMORY_LIMIT: _EXIT_MEMORY,
    sandbox_pb2.EXECUTION_STATUS_OUTPUT_LIMIT: _EXIT_OUTPUT,
    sandbox_pb2.EXECUTION_STATUS_VIOLATION: _EXIT_VIOLATION,
}


def exec_command(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The program to run, in Python or JavaScript.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="The program's own arguments.")] = None,
    stdin: Annotated[
        Path | None, typer.Option(metavar="F", help="What the program reads on stdin; - for this command's own.")
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--file", metavar="F", help="A file or directory laid beside the program; repeatable."),
    ] = None,
    language: LanguageOption = "",
    environment: EnvironmentOption = "",
    wall: WallOption = None,
    memory: MemoryOption = None,
    sandbox_address: SandboxAddressOption = "",
) -> int:
    """Run a program in the sandbox, with its output as it appears.

    Options may stand before or after FILE; put -- before arguments of the program that start with a dash.

    The last line on stderr says what happened unless the program succeeded. Exit codes:

    - the program's own, where it ended by itself
    - 124: it ran out of wall or processor time
    - 137: it ran out of memory
    - 153: it went over its output limit
    - 159: it made a system call that no program may make here
    - 128+N: signal N ended it
    - 2, 3: usage, or a service failed, where a line beginning with "codemend:" says so
    """
    inputs.check_address("--sandbox-address", sandbox_address)
    if file.is_dir():
        raise UsageFault("FILE", f"{str(file)!r} is a directory; name the program in it and give the rest with --file")
    entry = inputs.read_files("FILE", [file], max_bytes=inputs.MAX_JOB_BYTES)
    beside = inputs.read_files("--file", files or [], max_bytes=inputs.MAX_JOB_BYTES - len(entry[0].content))
    if any(other.path == entry[0].path for other in beside):
        raise UsageFault("--file", f"a file would lie at {entry[0].path!r}, where FILE lies")
    program = sandbox_pb2.Program(
        language=language or inputs.language_of([file]),
        environment=environment,
        files=client.as_messages([*entry, *beside]),
        entry=file.name,
        args=args or [],
        stdin=inputs.read_stdin_file("--stdin", stdin) if stdin else b"",
        limits=limits(wall, memory),
    )
    return run_to_exit(with_sandbox(sandbox_address, lambda address: execute(address, program)))


def limits(wall: str | None, memory: str | None) -> sandbox_pb2.Limits:
    """Limits from `--wall` and `--memory`; what is not given stays the server's default.

    Raises:
        UsageFault: one of them cannot be read.
    """
    asked = sandbox_pb2.Limits()
    if wall is not None:
        duration = Duration()
        duration.FromTimedelta(inputs.parse_time("--wall", wall))
        asked.wall_time.CopyFrom(duration)
    if memory is not None:
        asked.memory_bytes = inputs.parse_size("--memory", memory)
    return asked


async def execute(address: str, program: sandbox_pb2.Program, session: str = "") -> int:
    """Runs a program, in a session where one is named, passes its output on, and returns its exit code.

    Raises:
        CliError: the service refuses it, or cannot be reached.
    """
    async with client.sandbox_stub(address) as stub:
        output = RawOutput()
        result = await _stream(stub, sandbox_pb2.ExecuteStreamRequest(program=program, session=session), output)
        await output.finish()
    if result.status != sandbox_pb2.EXECUTION_STATUS_SUCCEEDED:
        reason = f": {result.reason}" if result.reason else ""
        complain(f"{wording.execution_status(result.status)}{reason}")
    if session and not result.workspace.kept:
        complain(f"the session is as it was before: {result.workspace.reason}")
    return exit_code(result)


async def _stream(
    stub: client.SandboxStub, request: sandbox_pb2.ExecuteStreamRequest, output: RawOutput
) -> sandbox_pb2.ExecutionResult:
    """Runs the program; a refusal that came before anything ran is waited out like any other."""
    wall = request.program.limits.wall_time.ToTimedelta() or _LONGEST_WALL
    started, attempt = time.monotonic(), 0
    while True:
        heard = False
        call = stub.ExecuteStream(request, timeout=(wall + client.QUEUE_PATIENCE).total_seconds())
        try:
            async for message in call:
                heard = True
                match message.WhichOneof("event"):
                    case "stdout_chunk":
                        output.write(sys.stdout.fileno(), message.stdout_chunk)
                    case "stderr_chunk":
                        output.write(sys.stderr.fileno(), message.stderr_chunk)
                    case "result":
                        return message.result
            raise client.incomplete(client.SANDBOX_SERVICE)
        except grpc.aio.AioRpcError as error:
            delay = None if heard else client.transient_delay(error, attempt)
            if delay is None or time.monotonic() - started > client.bound_of(error).total_seconds():
                raise client.explained(error, client.SANDBOX_SERVICE) from error
        finally:
            call.cancel()
        attempt += 1
        await asyncio.sleep(delay)


def exit_code(result: sandbox_pb2.ExecutionResult) -> int:
    """The exit code that says how the program ended, as `exec`'s help lists them."""
    if result.status in _BY_STATUS:
        return _BY_STATUS[result.status]
    if result.HasField("signal"):
        return 128 + result.signal
    if result.HasField("exit_code"):
        return result.exit_code
    return ExitCode.SERVICE
