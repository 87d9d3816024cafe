"""`codemend test`: tests against a solution in the sandbox, and a verdict that the exit code repeats."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from codemend.sandbox.v1 import sandbox_pb2

from orchestrator.cli import client, inputs, wording
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.execute import limits
from orchestrator.cli.interrupts import run_to_exit
from orchestrator.cli.options import JsonOption, MemoryOption, SandboxAddressOption, WallOption
from orchestrator.cli.services import with_sandbox
from orchestrator.cli.terminal import console, in_seconds, printable
from orchestrator.cli.views import json_line

_LONGEST_WALL = timedelta(hours=1)  # bound of the wait where the limit is the server's own; that is below it
_FINE = {sandbox_pb2.TEST_OUTCOME_PASSED, sandbox_pb2.TEST_OUTCOME_XFAILED}


def command(
    *,
    solution: Annotated[
        list[Path], typer.Option("--solution", metavar="F", help="A file or directory under test; repeatable.")
    ],
    tests: Annotated[
        list[Path],
        typer.Option("--tests", metavar="F", help="A pytest or unittest file, or a directory of them; repeatable."),
    ],
    wall: WallOption = None,
    memory: MemoryOption = None,
    as_json: JsonOption = False,
    sandbox_address: SandboxAddressOption = "",
) -> int:
    """Run tests against a solution in the sandbox.

    The tests lie on a read-only mount of their own and import the solution by its file's name. Exit code 0 only when
    every test passed, 1 otherwise; no test at all is never a pass.
    """
    inputs.check_address("--sandbox-address", sandbox_address)
    request = sandbox_pb2.RunTestsRequest(
        files=client.as_messages(inputs.read_files("--solution", solution)),
        tests=client.as_messages(inputs.read_files("--tests", tests)),
        limits=limits(wall, memory),
    )
    return run_to_exit(with_sandbox(sandbox_address, lambda address: _test(address, request, as_json=as_json)))


async def run_tests(stub: client.SandboxStub, request: sandbox_pb2.RunTestsRequest) -> sandbox_pb2.RunTestsResponse:
    """Runs tests once, waiting out transient refusals.

    Raises:
        CliError: the service refuses the request or cannot be reached.
    """
    wall = request.limits.wall_time.ToTimedelta() or _LONGEST_WALL
    seconds = (wall + client.QUEUE_PATIENCE).total_seconds()
    return await client.patiently(client.SANDBOX_SERVICE, lambda: stub.RunTests(request, timeout=seconds))


async def _test(address: str, request: sandbox_pb2.RunTestsRequest, *, as_json: bool) -> int:
    async with client.sandbox_stub(address) as stub:
        answer = await run_tests(stub, request)
    if as_json:
        sys.stdout.write(json_line(answer))
    else:
        _show(answer)
    return ExitCode.OK if answer.report.outcome == sandbox_pb2.REPORT_OUTCOME_PASSED else ExitCode.NOT_SOLVED


def _show(answer: sandbox_pb2.RunTestsResponse) -> None:
    out, report = console(), answer.report
    for test in report.tests:
        style = (
            "green"
            if test.outcome in _FINE
            else "yellow"
            if test.outcome == sandbox_pb2.TEST_OUTCOME_SKIPPED
            else "red"
        )
        took = in_seconds(test.duration.ToTimedelta())
        out.print(f"{wording.case_outcome(test.outcome):10} {printable(test.node_id)}  {took}", style=style)
    if report.tests_left_out:
        out.print(f"and {report.tests_left_out} tests more")
    failed = list(wording.failures(report))
    if failed:
        out.print()
    for line in failed:
        out.print(line)
    passed, total = report.counts.passed + report.counts.xfailed, report.counts.total
    verdict = wording.report_outcome(report.outcome)
    out.print()
    out.print(f"{verdict} {passed}/{total} tests in {in_seconds(report.duration.ToTimedelta())}", style="bold")
    if report.reason:
        out.print(printable(report.reason))
    if report.outcome == sandbox_pb2.REPORT_OUTCOME_ERROR and not failed:
        for line in wording.output_tail(answer.execution.stderr) or wording.output_tail(answer.execution.stdout):
            out.print(f"  {line}")
