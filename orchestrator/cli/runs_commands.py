"""`codemend runs list|show|watch|cancel`: what a running orchestrator keeps of its runs, looked at and ended."""

from typing import Annotated

import typer
from codemend.orchestrator.v1 import runs_pb2

from orchestrator.cli import options, runs, runs_calls, runs_edits, runs_view
from orchestrator.cli.client import DebugStub, RunsStub
from orchestrator.cli.errors import ExitCode, UsageFault
from orchestrator.cli.runs_tree import RunTree
from orchestrator.cli.terminal import console
from orchestrator.cli.views import JsonView, json_line

_STATES = tuple(name.removeprefix("RUN_STATE_") for name in runs_pb2.RunState.keys()[1:])
EXIT_CODES = {
    runs_pb2.RUN_OUTCOME_UNSPECIFIED: ExitCode.OK,  # it has no end yet
    runs_pb2.RUN_OUTCOME_PASSED: ExitCode.OK,
    runs_pb2.RUN_OUTCOME_UNVERIFIED: ExitCode.OK,
    runs_pb2.RUN_OUTCOME_ERROR: ExitCode.SERVICE,
}


def exit_code(run: runs_pb2.Run) -> ExitCode:
    """What a command says of a run that it watched: 0 where the run passed, is unverified, or has not ended."""
    return EXIT_CODES.get(run.result.outcome, ExitCode.NOT_SOLVED)


class EventLines:
    """Shows events one a line as they come, then how the run stands; or both as JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = JsonView() if as_json else None
        self._console = console()

    def event(self, event: runs_pb2.RunEvent) -> None:
        """Shows one event."""
        if self._json is not None:
            self._json.event(event)
            return
        self._console.print(runs_view.event_line(event))
        self._console.file.flush()

    def end(self, run: runs_pb2.Run) -> None:
        """Shows how the run stands."""
        if self._json is not None:
            self._json.end(run)
            return
        for line in runs_view.standing(run):
            self._console.print(line)


def print_run(run: runs_pb2.Run, *, as_json: bool) -> None:
    """Prints a run in short, or whole as JSON."""
    EventLines(as_json=as_json).end(run)


def list_command(
    *,
    states: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help=f"Only in this state; repeatable: {', '.join(_STATES).lower()}."),
    ] = None,
    labels: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Only with this label; repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, metavar="N", help="At most so many.")] = 20,
    as_json: options.JsonOption = False,
    address: options.RunningAddressOption = options.DEFAULT_ADDRESS,
) -> int:
    """List runs, the newest first; with --json one a line."""
    request = runs_pb2.ListRunsRequest(labels=runs_edits.read_labels("--label", labels or []))
    for one in states or []:
        if one.upper() not in _STATES:
            raise UsageFault("--state", f"{one!r} is no state; there are {', '.join(_STATES).lower()}")
        request.states.append(runs_pb2.RunState.Value(f"RUN_STATE_{one.upper()}"))

    async def work(stub: RunsStub, _: DebugStub) -> int:
        found = [run async for run in runs_calls.newest_runs(stub, request, limit)]
        if as_json:
            for run in found:
                typer.echo(json_line(run), nl=False)
        elif found:
            console().print(runs_view.runs_table(found))
        return ExitCode.OK

    return runs_calls.with_services(address, work)


def show_command(
    *,
    run_id: options.RunArgument,
    as_json: options.JsonOption = False,
    address: options.RunningAddressOption = options.DEFAULT_ADDRESS,
) -> int:
    """Show a run as a tree: what each node was given and returned, its time and tokens, and why it went on so.

    With --json each line is an object: {"event": …} for each event so far, then {"run": …}.
    """

    async def work(stub: RunsStub, _: DebugStub) -> int:
        run = await runs.fetch_run(stub, run_id)
        events = [event async for event in runs_calls.events_so_far(stub, run)]
        if as_json:
            shown = JsonView()
            for event in events:
                shown.event(event)
            shown.end(run)
            return ExitCode.OK
        out = console()
        for line in runs_view.header_lines(run):
            out.print(line)
        out.print(RunTree(run).add(events).root)
        return ExitCode.OK

    return runs_calls.with_services(address, work)


def watch_command(
    *,
    run_id: options.RunArgument,
    after: Annotated[int, typer.Option("--after", min=0, metavar="N", help="Only events after this number.")] = 0,
    until_wait: Annotated[bool, typer.Option("--until-wait", help="Leave when the run waits, too.")] = False,
    as_json: options.JsonOption = False,
    address: options.RunningAddressOption = options.DEFAULT_ADDRESS,
) -> int:
    """Print a run's events as they happen, until it ends. Leaving does not touch the run.

    Exit codes:

    - 0: the run passed, could not be verified, or waits
    - 1: it was not solved, or was cancelled
    - 3: it ended by an error, or the service failed
    """

    async def work(stub: RunsStub, _: DebugStub) -> int:
        shown = EventLines(as_json=as_json)
        found = await runs.fetch_run(stub, run_id)
        run = await runs_calls.watch(stub, found, after, shown.event, through_waits=not until_wait)
        shown.end(run)
        return exit_code(run)

    return runs_calls.with_services(address, work)


def cancel_command(
    *,
    run_id: options.RunArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept with the run.")] = "",
    as_json: options.JsonOption = False,
    address: options.RunningAddressOption = options.DEFAULT_ADDRESS,
) -> int:
    """End a run, and say how it ended; one that has ended already is left as it is."""
    request = runs_pb2.CancelRunRequest(run_id=run_id, reason=reason)

    async def work(stub: RunsStub, _: DebugStub) -> int:
        answer = await runs_calls.asked(lambda: stub.CancelRun(request, timeout=runs_calls.SECONDS))
        print_run(answer.run, as_json=as_json)
        return ExitCode.OK

    return runs_calls.with_services(address, work)
