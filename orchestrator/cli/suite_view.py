"""How a suite is shown: a line a case as it ends, what flipped with the first difference, then the sum."""

import sys
from typing import Protocol

from codemend.orchestrator.v1 import debug_pb2, regression_pb2, runs_pb2

from orchestrator.cli import wording
from orchestrator.cli.terminal import console, in_seconds, printable
from orchestrator.cli.views import json_line

_DETAIL_LINES = 40
_NAME_COLUMN = 28


class SuiteView(Protocol):
    """Shows one suite."""

    def case(self, result: regression_pb2.CaseResult) -> None:
        """Shows a case that ended."""

    def end(self, report: regression_pb2.SuiteReport) -> None:
        """Shows the sum."""


class JsonSuiteView:
    """One JSON object a line: `{"case_result": …}` for each case, then `{"report": …}`, as the service sends them."""

    def case(self, result: regression_pb2.CaseResult) -> None:
        """Writes a case that ended."""
        self._write(regression_pb2.RunSuiteResponse(case_result=result))

    def end(self, report: regression_pb2.SuiteReport) -> None:
        """Writes the sum."""
        self._write(regression_pb2.RunSuiteResponse(report=report))

    def _write(self, message: regression_pb2.RunSuiteResponse) -> None:
        sys.stdout.write(json_line(message))
        sys.stdout.flush()


class PlainSuiteView:
    """A line a case; under a flip, where it begins and what differs there."""

    def __init__(self) -> None:
        self._console = console()

    def case(self, result: regression_pb2.CaseResult) -> None:
        """Writes a case that ended."""
        for line in case_lines(result):
            self._console.print(line)

    def end(self, report: regression_pb2.SuiteReport) -> None:
        """Writes the sum."""
        cases = f"{report.total} case{'' if report.total == 1 else 's'}"
        took = in_seconds(report.duration.ToTimedelta())
        self._console.print(f"{cases}: {report.passed} as expected, {report.flipped} flipped, {took}")


def case_lines(result: regression_pb2.CaseResult) -> list[str]:
    """A case in a line; a flip, or a difference that is none, with the first step that differs."""
    verdict = "ok     " if result.passed else "FLIPPED"
    outcome = wording.run_outcome(result.outcome) if result.outcome else "no outcome"
    if result.outcome != result.case.expectation.outcome:
        outcome += f" (expected {wording.run_outcome(result.case.expectation.outcome)})"
    name = printable(result.case.name)
    took = in_seconds(result.duration.ToTimedelta())
    lines = [f"{verdict}  {name:<{_NAME_COLUMN}}  {outcome}  {took}"]
    if result.reason:
        lines.append(f"    {printable(result.reason)}")
    if result.run_id:
        lines.append(f"    run {printable(result.run_id)}")
    if not result.passed and result.HasField("divergence"):
        lines += _difference(result.divergence)
    return lines


def has_flips(report: regression_pb2.SuiteReport) -> bool:
    """Whether a case did not end as expected."""
    return report.flipped > 0 or report.passed != report.total


def view(*, as_json: bool) -> SuiteView:
    """The view that was asked for."""
    return JsonSuiteView() if as_json else PlainSuiteView()


def case_line(case: regression_pb2.Case) -> str:
    """A case in a list."""
    outcome = wording.run_outcome(case.expectation.outcome or runs_pb2.RUN_OUTCOME_UNSPECIFIED)
    made = case.create_time.ToDatetime().isoformat(" ", "seconds")
    name = printable(case.name)
    return f"{case.case_id}  {name:<{_NAME_COLUMN}}  {outcome:<10}  graph {case.graph_version}  {made}"


def _difference(divergence: debug_pb2.Divergence) -> list[str]:
    first = f"    first difference: step {divergence.step}, {printable(divergence.node)}, {printable(divergence.kind)}"
    detail = printable(divergence.detail).splitlines()
    lines = [first, *(f"      {line}" for line in detail[:_DETAIL_LINES])]
    if len(detail) > _DETAIL_LINES:
        lines.append(f"      and {len(detail) - _DETAIL_LINES} lines more")
    return lines
