"""`codemend session`: workspaces in a running sandbox service, from a person's side.

How files travel is in `session_files`, how a program's output does in `execute`.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer
from codemend.sandbox.v1 import sandbox_pb2, sessions_pb2
from google.protobuf.json_format import MessageToJson

from orchestrator.cli import client, delivery, inputs, session_files
from orchestrator.cli.errors import ExitCode, UsageFault
from orchestrator.cli.execute import execute, limits
from orchestrator.cli.interrupts import run_to_exit
from orchestrator.cli.options import MemoryOption, WallOption
from orchestrator.cli.output import RawOutput
from orchestrator.cli.terminal import complain, printable

session_app = typer.Typer(
    name="session",
    help="Work in a session: a workspace in a running sandbox service that several commands share.",
    no_args_is_help=True,
)

_SECONDS = client.CALL_TIMEOUT.total_seconds()
_KINDS = {
    sessions_pb2.CHANGE_KIND_ADDED: "added",
    sessions_pb2.CHANGE_KIND_MODIFIED: "modified",
    sessions_pb2.CHANGE_KIND_DELETED: "deleted",
}

AddressOption = Annotated[
    str,
    typer.Option(
        "--sandbox-address",
        envvar="CODEMEND_SANDBOX_ADDRESS",
        metavar="ADDR",
        help="The running sandbox service, host:port or unix:/path. Required: sessions live there.",
        show_default=False,
    ),
]
SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id, as `create` prints it.")]
PatternsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATTERNS", help="Which paths: `*` stays in a directory, `**` does not. None: all."),
]


@session_app.command("create")
def create_command(
    *,
    idle: Annotated[
        str | None, typer.Option("--idle", metavar="TIME", help="Ends after so long without a command.")
    ] = None,
    ttl: Annotated[str | None, typer.Option("--ttl", metavar="TIME", help="Ends after so long, come what may.")] = None,
    disk: Annotated[str | None, typer.Option("--disk", metavar="SIZE", help="What its files may take.")] = None,
    sandbox_address: AddressOption = "",
) -> int:
    """Make an empty session and print its id."""
    request = sessions_pb2.CreateSessionRequest()
    if idle is not None:
        request.idle_ttl.FromTimedelta(inputs.parse_time("--idle", idle))
    if ttl is not None:
        request.ttl.FromTimedelta(inputs.parse_time("--ttl", ttl))
    if disk is not None:
        request.disk_bytes = inputs.parse_size("--disk", disk)

    async def create(stub: client.SandboxStub) -> int:
        typer.echo((await stub.CreateSession(request, timeout=_SECONDS)).session.id)
        return ExitCode.OK

    return _with_service(sandbox_address, create)


@session_app.command("show")
def show_command(*, session: SessionArgument, sandbox_address: AddressOption = "") -> int:
    """Print the state of a session as JSON."""

    async def show(stub: client.SandboxStub) -> int:
        reply = await stub.GetSession(sessions_pb2.GetSessionRequest(session=session), timeout=_SECONDS)
        typer.echo(
            MessageToJson(reply.session, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        )
        return ExitCode.OK

    return _with_service(sandbox_address, show)


@session_app.command("upload")
def upload_command(
    *,
    session: SessionArgument,
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATHS", help="Files by their names, directories by what lies below them.")
    ],
    replace: Annotated[bool, typer.Option("--replace", help="Remove everything in the session first.")] = False,
    sandbox_address: AddressOption = "",
) -> int:
    """Put files into a session; the next `diff` starts from there."""
    files = inputs.read_files(
        "PATHS", paths, max_files=session_files.MAX_FILES, max_bytes=session_files.MAX_UPLOAD_BYTES
    )

    async def upload(stub: client.SandboxStub) -> int:
        await session_files.upload(stub, session, files, replace=replace)
        return ExitCode.OK

    return _with_service(sandbox_address, upload)


@session_app.command("exec")
def exec_command(
    *,
    session: SessionArgument,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="A program and its arguments, after --.")],
    wall: WallOption = None,
    memory: MemoryOption = None,
    sandbox_address: AddressOption = "",
) -> int:
    """Run a command in a session, with its output as it appears; what it leaves there stays.

    Exit codes are those of `codemend exec`.
    """
    program = sandbox_pb2.Program(command=sandbox_pb2.Command(argv=command), limits=limits(wall, memory))
    return run_to_exit(execute(_checked(sandbox_address), program, session))


@session_app.command("diff")
def diff_command(
    *,
    session: SessionArgument,
    patterns: PatternsArgument = None,
    snapshot: Annotated[bool, typer.Option("--snapshot", help="Let the next diff start from here.")] = False,
    sandbox_address: AddressOption = "",
) -> int:
    """Print what has changed since the last upload or snapshot, as a diff that `git apply` takes.

    What it cannot show, such as binary files, is named on stderr.
    """
    request = sessions_pb2.DiffSessionRequest(session=session, patterns=patterns or [], take_snapshot=snapshot)

    async def diff(stub: client.SandboxStub) -> int:
        reply = await stub.DiffSession(request, timeout=_SECONDS)
        output = RawOutput()
        output.write(1, reply.diff)
        await output.finish()
        for change in reply.changes:
            if not change.in_diff:
                complain(f"not shown: {change.path} ({_KINDS[change.kind]})")
        if reply.changes_left_out:
            complain(f"and {reply.changes_left_out} more changes")
        return ExitCode.OK

    return _with_service(sandbox_address, diff)


@session_app.command("download")
def download_command(
    *,
    session: SessionArgument,
    patterns: PatternsArgument = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the files go.")] = Path(),
    sandbox_address: AddressOption = "",
) -> int:
    """Bring files of a session into a directory, over files of the same names, and print their paths."""
    delivery.prepare(out)

    async def download(stub: client.SandboxStub) -> int:
        files, left_out = await session_files.download(stub, session, patterns or [])
        for path in delivery.write_files(out, files):
            typer.echo(printable(str(path)))
        for name in left_out:
            complain(f"left out, as no regular file with a UTF-8 name: {name}")
        return ExitCode.OK

    return _with_service(sandbox_address, download)


@session_app.command("delete")
def delete_command(*, session: SessionArgument, sandbox_address: AddressOption = "") -> int:
    """End a session; a program that runs in it is killed."""

    async def delete(stub: client.SandboxStub) -> int:
        await stub.DeleteSession(sessions_pb2.DeleteSessionRequest(session=session), timeout=_SECONDS)
        return ExitCode.OK

    return _with_service(sandbox_address, delete)


def _checked(address: str) -> str:
    inputs.check_address("--sandbox-address", address)
    if not address:
        raise UsageFault("--sandbox-address", "sessions live in a running sandbox service; give its address")
    return address


def _with_service(address: str, work: Callable[[client.SandboxStub], Awaitable[int]]) -> int:
    """Does `work` with the service, and returns its exit code."""

    async def connected() -> int:
        async with client.sandbox_stub(address) as stub:
            return await client.patiently(client.SANDBOX_SERVICE, lambda: work(stub))

    _checked(address)
    return run_to_exit(connected())
