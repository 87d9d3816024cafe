"""`codemend suite`: runs that were kept as cases, and what flipped since they were recorded."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from codemend.orchestrator.v1 import regression_pb2, runs_pb2

from orchestrator.cli import client, inputs, options, runs_edits, suite_calls, suite_view
from orchestrator.cli.errors import ExitCode, UsageFault
from orchestrator.cli.interrupts import run_to_exit
from orchestrator.cli.target import Target, choose_target, with_target
from orchestrator.cli.terminal import complain, console
from orchestrator.cli.views import json_line

suite_app = typer.Typer(
    name="suite",
    help="Keep runs as cases, and run the cases against the graph, the prompts and the model of today.",
    no_args_is_help=True,
)

_OUTCOMES = ("PASSED", "UNVERIFIED", "FAILED", "STUCK", "BUDGET_EXHAUSTED", "ERROR")

NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="CASES", help="Names or ids of cases. None: all of them.")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="F.jsonl", help="Where the lines go.", show_default="stdout")
]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a suite is to be run with."""

    cases: tuple[str, ...]
    options: runs_pb2.RunOptions
    concurrency: int
    as_json: bool


@suite_app.command("run")
def run_command(
    context: typer.Context,
    *,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Cases as `export` writes them. None: those of a running orchestrator."),
    ] = None,
    cases: Annotated[
        list[str] | None, typer.Option("--case", metavar="NAME", help="Run this case; repeatable. None: all.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Make real runs with the model and the sandbox, and compare outcomes alone.")
    ] = False,
    prompts: Annotated[
        list[str] | None,
        typer.Option("--prompt", metavar="NAME=@F", help="Text in the place of a prompt file; repeatable."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option("--record", metavar="F.jsonl", help="With --live: keep the new runs as cases in this file."),
    ] = None,
    at_once: Annotated[int, typer.Option("--at-once", min=1, max=64, metavar="N", help="Cases at one time.")] = 4,
    as_json: options.JsonOption = False,
    model_url: options.ModelUrlOption = "",
    model: options.ModelOption = "",
    embedded_model: options.EmbeddedModelOption = "1.5b",
    address: options.AddressOption = "",
    sandbox_address: options.SandboxAddressOption = "",
) -> int:
    """Run cases and say what flipped.

    Without --live a case is played from its recording: model and sandbox are not asked, and the first step that differs
    is told. The cases of a FILE are then played by this command itself, and no service is needed.

    Exit codes:

    - 0: all as expected
    - 1: a case flipped
    - 2: usage
    - 3: a service or the model failed
    - 130: interrupted; runs at work were cancelled
    """
    if record is not None and not live:
        raise UsageFault("--record", "it keeps new runs, which --live makes")
    asked = runs_pb2.RunOptions(prompts=runs_edits.read_prompts(prompts or []))
    wanted = _Wanted(tuple(cases or ()), asked, at_once, as_json)
    if file is not None and not live:
        if _is_typed(context, "model"):
            asked.models["coder"].model = model
        return run_to_exit(_play(file, wanted))
    if file is None and not address:
        raise UsageFault("FILE", "give a file of cases, or the --address of an orchestrator that keeps some")
    target = choose_target(
        context,
        address=address,
        sandbox_address=sandbox_address,
        model_url=model_url,
        model=model,
        embedded_model=embedded_model,
    )
    target.apply(asked)
    return run_to_exit(_ask(target, wanted, file, record, live=live))


@suite_app.command("list")
def list_command(*, as_json: options.JsonOption = False, address: options.AddressOption = "") -> int:
    """List the cases that a running orchestrator keeps."""

    async def work(stub: client.RegressionStub) -> int:
        found = [case async for case in suite_calls.cases(stub)]
        for case in found:
            console().print(json_line(case).rstrip() if as_json else suite_view.case_line(case))
        return ExitCode.OK

    return _with(address, work)


@suite_app.command("create")
def create_command(
    *,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="A run that has ended, passed or failed.")],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the case.", show_default="RUN")] = "",
    expect: Annotated[
        str,
        typer.Option(
            "--expect", metavar="OUTCOME", help="What ought to come out.", show_default="the run's own outcome"
        ),
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Let it take the place of the case of that name, where there is one.")
    ] = False,
    address: options.AddressOption = "",
) -> int:
    """Keep a run as a case."""
    expected = expect.upper()
    if expected and expected not in _OUTCOMES:
        raise UsageFault("--expect", f"{expect!r} is no outcome; there are {', '.join(_OUTCOMES)}")
    outcome = runs_pb2.RunOutcome.Value(f"RUN_OUTCOME_{expected or 'UNSPECIFIED'}")
    request = regression_pb2.CreateCaseRequest(run_id=run_id, name=name, expected_outcome=outcome, replace=replace)

    async def work(stub: client.RegressionStub) -> int:
        console().print(suite_view.case_line(await suite_calls.create(stub, request)))
        return ExitCode.OK

    return _with(address, work)


@suite_app.command("delete")
def delete_command(
    *,
    cases: Annotated[list[str], typer.Argument(metavar="CASES", help="Names or ids of cases.")],
    address: options.AddressOption = "",
) -> int:
    """Delete cases."""

    async def work(stub: client.RegressionStub) -> int:
        for case in cases:
            await suite_calls.delete(stub, case)
        return ExitCode.OK

    return _with(address, work)


@suite_app.command("export")
def export_command(*, cases: NamesArgument = None, out: OutOption = None, address: options.AddressOption = "") -> int:
    """Write cases as lines of JSON."""

    async def work(stub: client.RegressionStub) -> int:
        await suite_calls.export(stub, tuple(cases or ()), out)
        return ExitCode.OK

    return _with(address, work)


@suite_app.command("import")
def import_command(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Cases as `export` writes them.")],
    address: options.AddressOption = "",
) -> int:
    """Add the cases of a file, all or none; those that are there already are left as they are."""

    async def work(stub: client.RegressionStub) -> int:
        for case in await suite_calls.add(stub, file):
            console().print(suite_view.case_line(case))
        return ExitCode.OK

    return _with(address, work)


def _with(address: str, work: Callable[[client.RegressionStub], Coroutine[Any, Any, int]]) -> int:
    if not address:
        raise UsageFault("--address", "give the address of a running orchestrator: cases are kept there")
    inputs.check_address("--address", address)

    async def connected() -> int:
        async with client.regression_stub(address) as stub:
            return await work(stub)

    return run_to_exit(connected())


async def _play(file: Path, wanted: _Wanted) -> int:
    # What plays cases takes a second to import, which only this path has to wait for.
    from orchestrator.cli.suite_local import play_rows, read_rows  # noqa: PLC0415 - see above

    shown = suite_view.view(as_json=wanted.as_json)
    report = await play_rows(read_rows(file, wanted.cases), wanted.options, wanted.concurrency, shown)
    shown.end(report)
    return ExitCode.NOT_SOLVED if suite_view.has_flips(report) else ExitCode.OK


async def _ask(target: Target, wanted: _Wanted, file: Path | None, record: Path | None, *, live: bool) -> int:
    return await with_target(target, partial(_ask_at, wanted=wanted, file=file, record=record, live=live))


async def _ask_at(address: str, *, wanted: _Wanted, file: Path | None, record: Path | None, live: bool) -> int:
    request = regression_pb2.RunSuiteRequest(
        case_ids=wanted.cases,
        mode=regression_pb2.SUITE_MODE_LIVE if live else regression_pb2.SUITE_MODE_REPLAY,
        options=wanted.options,
        concurrency=wanted.concurrency,
    )
    async with client.regression_stub(address) as stub:
        if file is None:
            return await _run_kept(stub, request, wanted, record, suite_calls.NO_NAMES)
        # What reads cases takes a second to import, which only this path has to wait for.
        from orchestrator.cli.suite_borrowing import borrowed  # noqa: PLC0415 - see above

        async with borrowed(stub, file, wanted.cases) as names:
            request.case_ids[:] = names
            return await _run_kept(stub, request, wanted, record, names)


async def _run_kept(
    stub: client.RegressionStub,
    request: regression_pb2.RunSuiteRequest,
    wanted: _Wanted,
    record: Path | None,
    names: Mapping[str, str],
) -> int:
    """Runs cases that the service keeps; `names` says what to call those that it has under other names."""
    shown = suite_view.view(as_json=wanted.as_json)
    results, report = await suite_calls.run(stub, request, shown, names)
    if not report.total:
        raise UsageFault("--address", "the orchestrator keeps no case")
    if record is not None:
        await suite_calls.keep(stub, results, record, names)
        complain(f"wrote {record}")
    return ExitCode.NOT_SOLVED if suite_view.has_flips(report) else ExitCode.OK


def _is_typed(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"
