"""Coverage as lines of text: one a file, what was reached in per cent and what was not by its lines. Pure functions."""

from collections.abc import Iterable, Iterator

from codemend.sandbox.v1 import sandbox_pb2, verdicts_pb2

from orchestrator.cli import wording
from orchestrator.cli.terminal import printable

_SPANS_SHOWN = 12
_PREFIX = "codemend: coverage: "


def lines(answer: sandbox_pb2.RunTestsResponse) -> Iterator[str]:
    """One line a file, or why there is none, and one for each thing that was not measured."""
    width = max((len(file.path) for file in answer.report.coverage), default=0)
    for file in answer.report.coverage:
        yield f"{printable(file.path):{width}}  {_file(file)}"
    if answer.report.coverage_missing_reason:
        yield f"no coverage: {printable(answer.report.coverage_missing_reason)}"
    for line in wording.output_tail(answer.execution.stderr):
        if line.startswith(_PREFIX):
            yield f"not measured: {line.removeprefix(_PREFIX)}"


def _file(file: verdicts_pb2.FileCoverage) -> str:
    reached = f"{_percent(file.missing, file.statements):>4} of {file.statements} lines"
    if file.branches:
        reached += f", {_percent(file.missed_branches, file.branches)} of {file.branches} branches"
    if file.missing:
        reached += f"; missed: {_spans(file.missing_lines) or file.missing}"
    return reached


def _percent(missed: int, total: int) -> str:
    """Per cent reached, rounded down: 100 is said of all and of nothing less."""
    return f"{100 * (total - missed) // total if total else 100}%"


def _spans(numbers: Iterable[int]) -> str:
    """`3-5, 9` of 3, 4, 5, 9."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in spans[:_SPANS_SHOWN]]
    return ", ".join([*shown, *(["…"] if len(spans) > _SPANS_SHOWN else [])])
