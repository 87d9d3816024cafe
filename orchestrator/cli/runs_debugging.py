"""`codemend runs checkpoints|state|edit|resume|fork|replay|compare`: a run taken apart, changed and tried again."""

import json
import uuid
from pathlib import Path
from typing import Annotated

import typer
from codemend.orchestrator.v1 import debug_pb2, runs_pb2

from orchestrator.cli import delivery, options, runs, runs_calls, runs_edits, runs_view
from orchestrator.cli.client import DebugStub, RunsStub
from orchestrator.cli.errors import ExitCode, ServiceFault, UsageFault
from orchestrator.cli.runs_calls import SECONDS
from orchestrator.cli.runs_commands import EventLines, exit_code, print_run
from orchestrator.cli.terminal import complain, console, printable
from orchestrator.cli.views import json_line
from orchestrator.cli.wording import run_state

WatchOption = Annotated[
    bool, typer.Option("--watch", help="Print its events until it ends or waits, and leave as `watch` does.")
]


def checkpoints_command(
    *,
    run_id: options.RunArgument,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, metavar="N", help="At most so many.")] = 50,
    as_json: options.JsonOption = False,
    address: options.RunningAddressOption = options.DEFAULT_ADDRESS,
) -> int:
    """List a run's checkpoints, the newest first, with what changed at each; with --json one a line."""

    async def work(_: RunsStub, stub: DebugStub) -> int:
        async for one in runs_calls.checkpoints(stub, run_id, limit):
            if as_json:
                typer.echo(json_line(one), nl=False)
                continue
            for line in runs_view.checkpoint_lines(one):
                console().print(line)
        return ExitCode.OK

    return runs_calls.with_services(address, work)


def state_command(
    *,
    run_id: options.RunArgument,
    checkpoint_id: Annotated[
        str, typer.Argument(metavar="[CHECKPOINT]", help="One of its checkpoints.", show_default="the newest")
    ] = "",
    files: Annotated[
        Path | None, typer.Option("--files", metavar="DIR", help="Write the files as of then into this directory.")
    ] = None,
    as_json: options.JsonOption = False,
    address: options.RunningAddressOption = options.DEFAULT_ADDRESS,
) -> int:
    """Print the state of a run at a checkpoint as JSON; with --json the checkpoint itself and the files, too."""
    request = debug_pb2.GetCheckpointRequest(run_id=run_id, checkpoint_id=checkpoint_id)
    if files is not None:
        delivery.prepare(files, "--files")

    async def work(_: RunsStub, stub: DebugStub) -> int:
        answer = await runs_calls.asked(lambda: stub.GetCheckpoint(request, timeout=SECONDS))
        if as_json:
            typer.echo(json_line(answer), nl=False)
        else:
            console().print(printable(json.dumps(json.loads(answer.state_json), indent=2, ensure_ascii=False)))
        if files is not None:
            for path in delivery.write_files(files, answer.files, "--files"):
                complain(f"wrote {path}")
        return ExitCode.OK

    return runs_calls.with_services(address, work)


def edit_command(
    *,
    run_id: options.RunArgument,
    sets: options.SetOption = None,
    values: options.ValuesOption = None,
    files: options.StateFileOption = None,
    as_node: options.AsNodeOption = "",
    checkpoint_id: Annotated[
        str,
        typer.Option(
            "--checkpoint", metavar="ID", help="The checkpoint that you have seen.", show_default="where it waits now"
        ),
    ] = "",
    as_json: options.JsonOption = False,
    address: options.RunningAddressOption = options.DEFAULT_ADDRESS,
) -> int:
    """Change the state of a waiting run; a new checkpoint comes of it, and the old one stays as it is."""
    edit = runs_edits.read_edit(sets or [], values, files or [], as_node)
    if edit is None:
        raise UsageFault("--set", "nothing is to be changed; give --set, --values or --file")

    async def work(stub: RunsStub, debug: DebugStub) -> int:
        seen = checkpoint_id or await _waits_at(stub, run_id)
        request = debug_pb2.UpdateStateRequest(run_id=run_id, checkpoint_id=seen, edit=edit)
        answer = await runs_calls.once(debug.UpdateState(request, timeout=SECONDS))
        print_run(answer.run, as_json=as_json)
        return ExitCode.OK

    return runs_calls.with_services(address, work)


def resume_command(
    *,
    run_id: options.RunArgument,
    step: Annotated[bool, typer.Option("--step", help="One step of the graph, then wait again.")] = False,
    answers: Annotated[
        list[str] | None,
        typer.Option("--answer", metavar="ID=VALUE", help="JSON or text for an open question; repeatable."),
    ] = None,
    before: options.BreakBeforeOption = None,
    after: options.BreakAfterOption = None,
    no_breaks: Annotated[bool, typer.Option("--no-breaks", help="Take its breakpoints away.")] = False,
    checkpoint_id: Annotated[
        str,
        typer.Option(
            "--checkpoint", metavar="ID", help="The checkpoint that you have seen.", show_default="where it waits now"
        ),
    ] = "",
    watch: WatchOption = False,
    as_json: options.JsonOption = False,
    address: options.RunningAddressOption = options.DEFAULT_ADDRESS,
) -> int:
    """Go on with a waiting run. Breakpoints given here take the place of those that it has."""
    if no_breaks and (before or after):
        raise UsageFault("--no-breaks", "it cannot be given together with --break-before or --break-after")
    request = debug_pb2.ResumeRunRequest(run_id=run_id, answers=runs_edits.read_answers(answers or []))
    request.mode = debug_pb2.RESUME_MODE_STEP if step else debug_pb2.RESUME_MODE_CONTINUE
    if no_breaks or before or after:
        request.breakpoints.CopyFrom(debug_pb2.Breakpoints(before=before or [], after=after or []))

    async def work(stub: RunsStub, debug: DebugStub) -> int:
        request.checkpoint_id = checkpoint_id or await _waits_at(stub, run_id)
        answer = await runs_calls.once(debug.ResumeRun(request, timeout=SECONDS))
        return await _shown(stub, answer.run, answer.run.last_sequence, watch=watch, as_json=as_json)

    return runs_calls.with_services(address, work)


def fork_command(
    *,
    run_id: options.RunArgument,
    checkpoint_id: Annotated[
        str, typer.Option("--checkpoint", metavar="ID", help="Where to branch off.", show_default="the newest")
    ] = "",
    sets: options.SetOption = None,
    values: options.ValuesOption = None,
    files: options.StateFileOption = None,
    as_node: options.AsNodeOption = "",
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Another model at the endpoint.")] = "",
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0, max=2, metavar="T", help="Another temperature, 0 to 2.")
    ] = None,
    prompts: options.PromptOption = None,
    attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts", min=1, max=100, metavar="N", help="Attempts in all, those of the past included."
        ),
    ] = None,
    before: options.BreakBeforeOption = None,
    after: options.BreakAfterOption = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="Labels in the place of the original's; repeatable."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Let the fork wait where it begins.")] = False,
    watch: WatchOption = False,
    as_json: options.JsonOption = False,
    address: options.RunningAddressOption = options.DEFAULT_ADDRESS,
) -> int:
    """Make a new run that shares another's past up to a checkpoint, and goes its own way from there."""
    asked = runs_pb2.RunOptions(max_attempts=attempts or 0, prompts=runs_edits.read_prompts(prompts or []))
    asked.interrupt_before.extend(before or [])
    asked.interrupt_after.extend(after or [])
    if model:
        asked.models["coder"].model = model
    if temperature is not None:
        asked.models["coder"].temperature = temperature
    request = debug_pb2.ForkRunRequest(
        request_id=f"cli-{uuid.uuid4()}",
        run_id=run_id,
        checkpoint_id=checkpoint_id,
        edit=runs_edits.read_edit(sets or [], values, files or [], as_node),
        options=asked,
        labels=runs_edits.read_labels("--label", labels or []),
        wait=wait,
    )

    async def work(stub: RunsStub, debug: DebugStub) -> int:
        answer = await runs_calls.asked(lambda: debug.ForkRun(request, timeout=SECONDS))
        return await _shown(stub, answer.run, 0, watch=watch, as_json=as_json)

    return runs_calls.with_services(address, work)


def replay_command(
    *,
    run_id: options.RunArgument,
    live_from: Annotated[
        str, typer.Option("--live-from", metavar="NODE", help="From its first step on, model and sandbox are real.")
    ] = "",
    prompts: options.PromptOption = None,
    as_json: options.JsonOption = False,
    address: options.RunningAddressOption = options.DEFAULT_ADDRESS,
) -> int:
    """Play an ended run again from its tape, and compare every step's state with the original's.

    Exit codes:

    - 0: every step played was the original's, byte for byte
    - 1: a step differed; the first one is told
    """
    asked = runs_pb2.RunOptions(prompts=runs_edits.read_prompts(prompts or []))
    request = debug_pb2.ReplayRunRequest(run_id=run_id, live_from=live_from, options=asked)

    async def work(_: RunsStub, debug: DebugStub) -> int:
        answer = await runs_calls.once(debug.ReplayRun(request, timeout=runs_calls.REPLAY_SECONDS))
        if as_json:
            typer.echo(json_line(answer), nl=False)
        else:
            for line in _replay_lines(answer):
                console().print(line)
        return ExitCode.NOT_SOLVED if answer.HasField("divergence") else ExitCode.OK

    return runs_calls.with_services(address, work)


def compare_command(
    *,
    run_id: options.RunArgument,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="Id of the other run.")],
    as_json: options.JsonOption = False,
    address: options.RunningAddressOption = options.DEFAULT_ADDRESS,
) -> int:
    """Put two runs side by side: where they part, and what each came to."""
    request = debug_pb2.CompareRunsRequest(run_id=run_id, other_run_id=other)

    async def work(_: RunsStub, debug: DebugStub) -> int:
        answer = await runs_calls.asked(lambda: debug.CompareRuns(request, timeout=SECONDS))
        if as_json:
            typer.echo(json_line(answer), nl=False)
            return ExitCode.OK
        for line in runs_view.comparison_lines(answer):
            console().print(line)
        return ExitCode.OK

    return runs_calls.with_services(address, work)


def _replay_lines(answer: debug_pb2.ReplayRunResponse) -> list[str]:
    steps = "1 step is" if answer.equal_steps == 1 else f"{answer.equal_steps} steps are"
    lines = [f"{answer.run.run_id}: {steps} the original's, byte for byte"]
    return lines + (runs_view.divergence_lines(answer.divergence) if answer.HasField("divergence") else [])


async def _waits_at(stub: RunsStub, run_id: str) -> str:
    """Where the run waits now; naming it keeps what is asked next off a run that has moved on meanwhile."""
    run = await runs.fetch_run(stub, run_id)
    if not run.HasField("wait"):
        raise ServiceFault(f"{run_id} does not wait; it is {run_state(run.state)}")
    return run.wait.checkpoint_id


async def _shown(stub: RunsStub, run: runs_pb2.Run, after: int, *, watch: bool, as_json: bool) -> int:
    """Prints the run; or its events after a number, to its end or its next wait."""
    if not watch:
        print_run(run, as_json=as_json)
        return ExitCode.OK
    shown = EventLines(as_json=as_json)
    ended = await runs_calls.watch(stub, run, after, shown.event, through_waits=False)
    shown.end(ended)
    return exit_code(ended)
