"""The command `codemend`: its subcommands put together, and the one place where errors become exit codes."""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from orchestrator.cli.doctor import doctor_command
from orchestrator.cli.errors import CliError, ExitCode, OutputClosed
from orchestrator.cli.eval import eval_command
from orchestrator.cli.execute import exec_command
from orchestrator.cli.prune import prune_command
from orchestrator.cli.run import run_command
from orchestrator.cli.runs_app import runs_app
from orchestrator.cli.serve import serve_command
from orchestrator.cli.session import session_app
from orchestrator.cli.suite import suite_app
from orchestrator.cli.terminal import complain, tolerate_any_encoding
from orchestrator.cli.test import command as tests_command

_NOT_WRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # a full disk, or one that fails

app = typer.Typer(
    name="codemend",
    help="Turns a coding task into code that passes its tests: written by a model, run in a hardened sandbox, "
    "repaired until it is right.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run_command)
app.command("exec")(exec_command)
app.command("test")(tests_command)
app.command("eval")(eval_command)
app.add_typer(session_app)
app.add_typer(runs_app)
app.add_typer(suite_app)
app.command("serve")(serve_command)
app.command("prune")(prune_command)
app.command("doctor")(doctor_command)


def _print_version(value: bool) -> None:  # noqa: FBT001 - the signature of an option's callback
    if value:
        typer.echo(f"codemend {version('codemend')}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and leaves with its exit code."""
    _stand_in_for_closed_streams()
    tolerate_any_encoding()
    sys.exit(_exit_code(sys.argv[1:] if arguments is None else arguments))


def _stand_in_for_closed_streams() -> None:
    """Opens the null device for each standard stream that this process was started without, as by `>&-`.

    Python has None for such a stream, and the next file opened would get its number: what a child prints would end up
    in a database.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)  # of all that are free the lowest, so most likely the stream's own
            os.set_inheritable(opened, opened == number)
            setattr(sys, name, os.fdopen(opened, "w" if number else "r", encoding="utf-8"))


def _exit_code(arguments: Sequence[str]) -> int:
    try:
        return _invoke(arguments)
    except (OutputClosed, BrokenPipeError):
        _abandon_stdout()
        return ExitCode.OUTPUT_CLOSED
    except CliError as error:
        complain(str(error))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - a fault of ours: shown whole, under a code that no verdict has
        if isinstance(error, OSError) and error.errno in _NOT_WRITTEN:
            _abandon_stdout()
            complain(f"cannot write the output: {error.strerror}")
        else:
            traceback.print_exc()
        return ExitCode.SERVICE


def _abandon_stdout() -> None:
    """Python would fail once more when it flushes stdout at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _invoke(arguments: Sequence[str]) -> int:
    try:
        code = app(args=list(arguments), prog_name="codemend", standalone_mode=False)
    except TyperException as error:
        context: typer.Context | None = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "codemend"
        complain(f"{error.format_message()} (see {command} --help)")
        return error.exit_code
    except Abort:
        return ExitCode.INTERRUPTED
    sys.stdout.flush()
    return code if isinstance(code, int) else ExitCode.OK
