"""`codemend test`: tests against a solution in the sandbox, and a verdict that the exit code repeats."""

import secrets
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from codemend.sandbox.v1 import sandbox_pb2

from orchestrator.cli import client, coverage, inputs, wording
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.execute import limits
from orchestrator.cli.interrupts import run_to_exit
from orchestrator.cli.options import (
    EnvironmentOption,
    JsonOption,
    LanguageOption,
    MemoryOption,
    SandboxAddressOption,
    WallOption,
)
from orchestrator.cli.services import with_sandbox
from orchestrator.cli.terminal import console, in_seconds, printable
from orchestrator.cli.views import json_line

_LONGEST_WALL = timedelta(hours=1)  # bound of the wait where the limit is the server's own; that is below it
_SHOWS_OUTPUT = {sandbox_pb2.REPORT_OUTCOME_ERROR, sandbox_pb2.REPORT_OUTCOME_INCOMPLETE}
_FINE = {sandbox_pb2.TEST_OUTCOME_PASSED, sandbox_pb2.TEST_OUTCOME_XFAILED}


def command(
    *,
    solution: Annotated[
        list[Path], typer.Option("--solution", metavar="F", help="A file or directory under test; repeatable.")
    ],
    tests: Annotated[
        list[Path],
        typer.Option(
            "--tests", metavar="F", help="A file of pytest, unittest or node:test, or a directory of them; repeatable."
        ),
    ],
    language: LanguageOption = "",
    environment: EnvironmentOption = "",
    measure: Annotated[
        bool, typer.Option("--coverage", help="Measure which lines and branches of the solution the tests reach.")
    ] = False,
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
    test_files = inputs.read_files("--tests", tests)
    request = sandbox_pb2.RunTestsRequest(
        language=language or inputs.language_of(file.path for file in test_files),
        environment=environment,
        coverage=measure,
        files=client.as_messages(inputs.read_files("--solution", solution)),
        tests=client.as_messages(test_files),
        limits=limits(wall, memory),
    )
    return run_to_exit(with_sandbox(sandbox_address, lambda address: _test(address, request, as_json=as_json)))


async def run_tests(stub: client.SandboxStub, request: sandbox_pb2.RunTestsRequest) -> sandbox_pb2.RunTestsResponse:
    """Runs tests once, waiting out transient refusals: its tries are one job, by a key of their own.

    Raises:
        CliError: the service refuses the request or cannot be reached.
    """
    wall = request.limits.wall_time.ToTimedelta() or _LONGEST_WALL
    seconds = (wall + client.QUEUE_PATIENCE).total_seconds()
    keyed = sandbox_pb2.RunTestsRequest(idempotency_key=secrets.token_hex(16))
    keyed.MergeFrom(request)
    return await client.patiently(client.SANDBOX_SERVICE, lambda: stub.RunTests(keyed, timeout=seconds))


async def _test(address: str, request: sandbox_pb2.RunTestsRequest, *, as_json: bool) -> int:
    async with client.sandbox_stub(address) as stub:
        answer = await run_tests(stub, request)
    if as_json:
        sys.stdout.write(json_line(answer))
    else:
        _show(answer, is_covered=request.coverage)
    return ExitCode.OK if answer.report.outcome == sandbox_pb2.REPORT_OUTCOME_PASSED else ExitCode.NOT_SOLVED


def _show(answer: sandbox_pb2.RunTestsResponse, *, is_covered: bool) -> None:
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
    covered = list(coverage.lines(answer)) if is_covered else []
    if covered:
        out.print()
    for line in covered:
        out.print(line)
    _show_verdict(answer, has_failures=bool(failed))


def _show_verdict(answer: sandbox_pb2.RunTestsResponse, *, has_failures: bool) -> None:
    out, report = console(), answer.report
    passed, total = report.counts.passed + report.counts.xfailed, report.counts.total
    verdict = wording.report_outcome(report.outcome)
    out.print()
    out.print(f"{verdict} {passed}/{total} tests in {in_seconds(report.duration.ToTimedelta())}", style="bold")
    if report.reason:
        out.print(printable(report.reason))
    for line in _integrity(report):
        out.print(line)
    if report.outcome in _SHOWS_OUTPUT and not has_failures:
        for line in wording.output_tail(answer.execution.stderr) or wording.output_tail(answer.execution.stdout):
            out.print(f"  {line}")


def _integrity(report: sandbox_pb2.TestReport) -> Iterator[str]:
    """How far the verdict can be believed, where there is something to say."""
    for check in report.integrity.checks:
        if not check.held:
            yield f"{printable(check.name)} did not hold: {printable(check.detail)}".removesuffix(": ")
    if report.integrity.reason:
        yield f"The solution ran in the tests' own process: {printable(report.integrity.reason)}"
