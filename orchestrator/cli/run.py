"""`codemend run`: one coding task from words to code that passes its tests, watched while it happens."""

from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from codemend.orchestrator.v1 import runs_pb2
from google.protobuf.duration_pb2 import Duration

from orchestrator.cli import client, inputs, options, runs, runs_edits
from orchestrator.cli.delivery import prepare, write_files
from orchestrator.cli.errors import ExitCode, UsageFault
from orchestrator.cli.interrupts import run_to_exit
from orchestrator.cli.live import LiveView
from orchestrator.cli.target import Target, choose_target, with_target
from orchestrator.cli.terminal import complain, console
from orchestrator.cli.views import JsonView, PlainView, View

_EXIT_CODES = {
    runs_pb2.RUN_OUTCOME_PASSED: ExitCode.OK,
    runs_pb2.RUN_OUTCOME_UNVERIFIED: ExitCode.OK,
    runs_pb2.RUN_OUTCOME_ERROR: ExitCode.SERVICE,
}


def run_command(
    context: typer.Context,
    *,
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="The task in words; @FILE reads it from a file, - from stdin.")
    ],
    tests: Annotated[
        list[Path] | None,
        typer.Option("--tests", metavar="F", help="A trusted test file, or a directory of them; repeatable."),
    ] = None,
    files: Annotated[
        list[Path] | None, typer.Option("--file", metavar="F", help="A file to start from, or a directory; repeatable.")
    ] = None,
    entry_point: Annotated[
        str, typer.Option(metavar="NAME", help="Function or class that the solution must define.", show_default=False)
    ] = "",
    check: Annotated[
        Path | None,
        typer.Option(metavar="F", help="A program that exits with 0 when the solution is right; instead of --tests."),
    ] = None,
    hide_tests: Annotated[
        bool, typer.Option("--hide-tests", help="Show the model the failures but not the tests.")
    ] = False,
    attempts: options.AttemptsOption = None,
    candidates: options.CandidatesOption = 1,
    timeout: options.TimeoutOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the delivered files into this directory.")
    ] = None,
    before: options.BreakBeforeOption = None,
    after: options.BreakAfterOption = None,
    prompts: options.PromptOption = None,
    priority: Annotated[
        int, typer.Option(min=0, max=1_000_000, metavar="N", help="Waiting runs with lower numbers go first.")
    ] = 0,
    labels: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A word to find it by; repeatable.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Print the run's id and leave; needs --address.")] = False,
    as_json: options.JsonOption = False,
    model_url: options.ModelUrlOption = "",
    model: options.ModelOption = "",
    embedded_model: options.EmbeddedModelOption = "1.5b",
    address: options.AddressOption = "",
    sandbox_address: options.SandboxAddressOption = "",
) -> int:
    """Turn a coding task into code that passes its tests.

    Exit codes:

    - 0: passed; or nothing was given to verify the code with, and a warning says so
    - 1: not solved; the best attempt is delivered
    - 2: usage
    - 3: a service or the model failed
    - 130: interrupted; the run was cancelled

    A run that waits at a breakpoint is left to wait: go on with it by `codemend runs`.

    With --json each line is an object: {"event": …} for each event, then {"run": …} with the result.
    """
    if tests and check:
        raise UsageFault("--check", "it cannot be given together with --tests")
    task_input = runs_pb2.CodegenInput(
        task=inputs.read_task(task),
        files=client.as_messages(inputs.read_files("--file", files or [])),
        tests=client.as_messages(inputs.read_files("--tests", tests or [])),
        check_script=inputs.read_text("--check", check) if check else "",
        entry_point=entry_point,
        hide_tests=hide_tests,
    )
    if not address and (detach or before or after):
        option = "--detach" if detach else "--break-before" if before else "--break-after"
        raise UsageFault(option, "the run outlives this command; give the --address of an orchestrator that keeps it")
    asked = run_options(attempts, candidates, timeout)
    asked.MergeFrom(
        runs_pb2.RunOptions(
            interrupt_before=before or [],
            interrupt_after=after or [],
            prompts=runs_edits.read_prompts(prompts or []),
            priority=priority,
        )
    )
    spec = runs_pb2.RunSpec(codegen=task_input, options=asked, labels=runs_edits.read_labels("--label", labels or []))
    target = choose_target(
        context,
        address=address,
        sandbox_address=sandbox_address,
        model_url=model_url,
        model=model,
        embedded_model=embedded_model,
    )
    target.apply(spec.options)
    if detach:
        return run_to_exit(_detached(address, spec, as_json=as_json))
    if out is not None:
        prepare(out)
    return run_to_exit(_run(target, spec, as_json=as_json, out=out))


def run_options(attempts: int | None, candidates: int, timeout: str | None) -> runs_pb2.RunOptions:
    """Options of a run; what is not given stays the server's default.

    Raises:
        UsageFault: the time cannot be read, or more drafts than attempts are asked for.
    """
    if attempts is not None and candidates > attempts:
        raise UsageFault("--candidates", f"{candidates} drafts need at least as many --attempts, which is {attempts}")
    asked = runs_pb2.RunOptions(max_attempts=attempts or 0, candidates=candidates)
    if timeout is not None:
        duration = Duration()
        duration.FromTimedelta(inputs.parse_time("--timeout", timeout))
        asked.timeout.CopyFrom(duration)
    return asked


async def _detached(address: str, spec: runs_pb2.RunSpec, *, as_json: bool) -> int:
    async with client.runs_stub(address) as stub:
        run = await runs.create_run(stub, spec)
    if as_json:
        JsonView().end(run)
    else:
        console().print(run.run_id)
    return ExitCode.OK


async def _run(target: Target, spec: runs_pb2.RunSpec, *, as_json: bool, out: Path | None) -> int:
    work = partial(_watch, spec=spec, as_json=as_json)
    run = await with_target(target, work)
    if run.state == runs_pb2.RUN_STATE_WAITING:
        complain(f"{run.run_id} waits; go on with `codemend runs resume {run.run_id}`")
        return ExitCode.OK
    if out is not None:
        for path in write_files(out, run.result.files):
            complain(f"wrote {path}")
    if run.result.outcome == runs_pb2.RUN_OUTCOME_UNVERIFIED:
        complain("warning: nothing was given that could verify this code; give --tests or --check")
    return _EXIT_CODES.get(run.result.outcome, ExitCode.NOT_SOLVED)


async def _watch(address: str, *, spec: runs_pb2.RunSpec, as_json: bool) -> runs_pb2.Run:
    async with client.runs_stub(address) as stub, runs.started_run(stub, spec) as created:
        view = _view(as_json=as_json)
        try:
            async with aclosing(runs.follow(stub, created.run_id)) as events:
                async for event in events:
                    view.event(event)
                    if event.HasField("wait"):  # nobody can go on with it while this command waits, too
                        break
            ended = await runs.fetch_run(stub, created.run_id)
            view.end(ended)
            return ended
        finally:
            view.close()


def _view(*, as_json: bool) -> View:
    if as_json:
        return JsonView()
    out = console()
    return LiveView() if out.is_terminal and not out.is_dumb_terminal else PlainView()
