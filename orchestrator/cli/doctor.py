"""`codemend doctor`: what this machine gives codemend, what it does not, and how to change that."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from orchestrator.cli import inputs, options
from orchestrator.cli.doctor_checks import Check, State, machine_checks, model_checks, sandbox_checks
from orchestrator.cli.errors import CliError, ExitCode
from orchestrator.cli.interrupts import run_to_exit
from orchestrator.cli.model import read_settings
from orchestrator.cli.services import with_sandbox
from orchestrator.cli.terminal import console, printable

_STYLES = {State.OK: "green", State.WARNING: "yellow", State.FAILED: "bold red"}


def doctor_command(
    *,
    model_url: options.ModelUrlOption = "",
    model: options.ModelOption = "",
    embedded_model: options.EmbeddedModelOption = "1.5b",
    sandbox_address: options.SandboxAddressOption = "",
    strict: Annotated[bool, typer.Option("--strict", help="Let warnings fail too.")] = False,
) -> int:
    """Check that codemend can work here, and say how to mend what keeps it from that.

    It runs a program in the sandbox, lists the protections in force, and looks for the model without starting it.
    Exit code 1 when something essential is missing.
    """
    inputs.check_address("--sandbox-address", sandbox_address)
    return run_to_exit(_doctor(model_url, model, embedded_model, sandbox_address, strict=strict))


async def _doctor(model_url: str, model: str, embedded_model: str, sandbox_address: str, *, strict: bool) -> int:
    checks: list[Check] = []
    checks += _show("machine", machine_checks(_directories()))
    try:
        found = await with_sandbox(sandbox_address, sandbox_checks)
    except CliError as error:
        found = [
            Check(
                "service",
                State.FAILED,
                str(error),
                "read the log lines above; `codemend serve --sandbox` shows all of them",
            )
        ]
    checks += _show("sandbox", found)
    checks += _show("model", await model_checks(model_url, model, embedded_model))
    failing = {State.FAILED, State.WARNING} if strict else {State.FAILED}
    failed = sum(check.state in failing for check in checks)
    console().print("codemend cannot work here" if failed else "codemend can work here", style="bold")
    return ExitCode.NOT_SOLVED if failed else ExitCode.OK


def _directories() -> list[tuple[str, Path]]:
    settings = read_settings()
    return [("data directory", settings.data_dir), ("model cache", settings.cache_dir)]


def _show(title: str, checks: list[Check]) -> list[Check]:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", show_header=False, title_style="bold")
    for column in ("state", "name"):
        table.add_column(column, no_wrap=True)
    table.add_column("detail", overflow="fold")
    for check in checks:
        table.add_row(
            check.state.value,
            printable(check.name),
            printable(check.detail),
            style=_STYLES[check.state] if check.state is not State.OK else None,
        )
        if check.remedy and check.state is not State.OK:
            table.add_row("", "", f"-> {check.remedy}")
    out = console()
    out.print(table)
    out.print()
    sys.stdout.flush()
    return checks
