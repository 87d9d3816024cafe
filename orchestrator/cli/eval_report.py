"""What an evaluation found, in numbers: computed from records alone, printed as a table, drawn as a plot."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from rich.table import Table

from orchestrator.cli.errors import UsageFault
from orchestrator.cli.eval_results import Record
from orchestrator.cli.terminal import in_seconds


@dataclass(frozen=True, slots=True)
class Summary:
    """Numbers of an evaluation; shares are of the tasks with a verdict, errors not among them.

    Attributes:
        tasks: tasks with a verdict.
        errors: tasks without one.
        first: tasks whose attempt number 1 passed.
        solved: tasks solved by any attempt.
        solved_by: for each attempt number, counted from 1, the tasks solved by an attempt up to it.
        attempts: of all tasks together.
        seconds: real time of the tasks, each from creating its run to its result, added up.
    """

    tasks: int
    errors: int
    first: int
    solved: int
    solved_by: tuple[int, ...]
    attempts: int
    input_tokens: int
    output_tokens: int
    seconds: float


def summarise(records: Sequence[Record]) -> Summary:
    """Adds up the records, one a task."""
    final = [record for record in records if record.final]
    last = max((attempt.number for record in final for attempt in record.attempts), default=0)
    return Summary(
        tasks=len(final),
        errors=len(records) - len(final),
        first=sum(record.passed_by(1) for record in final),
        solved=sum(record.passed for record in final),
        solved_by=tuple(sum(record.passed_by(number) for record in final) for number in range(1, last + 1)),
        attempts=sum(len(record.attempts) for record in final),
        input_tokens=sum(record.input_tokens for record in records),
        output_tokens=sum(record.output_tokens for record in records),
        seconds=sum(record.seconds for record in records),
    )


def summary_table(summary: Summary, *, wall_time: timedelta | None, candidates: int) -> Table:
    """The numbers as a table.

    Args:
        summary: the numbers.
        wall_time: of this command, where it ran any task.
        candidates: first drafts of each run; above one, the table says what pass@1 means then.
    """
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("tasks with a verdict", str(summary.tasks))
    if summary.errors:
        table.add_row("tasks in error, not counted", str(summary.errors))
    of_which = (
        "" if candidates == 1 else " (the first candidate; one stopped because another passed counts as not passed)"
    )
    table.add_row(f"pass@1{of_which}", _share(summary.first, summary.tasks))
    table.add_row("pass after repair", _share(summary.solved, summary.tasks))
    table.add_row("mean attempts", f"{summary.attempts / summary.tasks:.2f}" if summary.tasks else "-")
    table.add_row("tokens in / out", f"{summary.input_tokens:,} / {summary.output_tokens:,}")
    table.add_row("time of all tasks", in_seconds(timedelta(seconds=summary.seconds)))
    if wall_time is not None:
        table.add_row("wall time of this command", in_seconds(wall_time))
    return table


def plot(summary: Summary, path: Path, *, title: str) -> None:
    """Draws the share of tasks solved by each attempt as a PNG.

    Raises:
        UsageFault: the file cannot be written.
    """
    # Importing matplotlib takes half a second, which only the end of an evaluation has to wait for.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - see above
    from matplotlib.figure import Figure  # noqa: PLC0415 - see above

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    numbers = range(1, len(summary.solved_by) + 1)
    shares = [100 * count / summary.tasks for count in summary.solved_by]
    bars = axes.bar(list(numbers), shares, width=0.6, color="#3b6ea5")
    axes.bar_label(bars, labels=[f"{share:.1f}" for share in shares], padding=2)
    axes.set(xlabel="attempts allowed", ylabel=f"tasks solved, % of {summary.tasks}", title=title, ylim=(0, 108))
    axes.set_xticks(list(numbers))
    axes.spines[["top", "right"]].set_visible(False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png", dpi=144)
    except OSError as error:
        raise UsageFault("--plot", f"cannot write {str(path)!r}: {error.strerror or error}") from error


def _share(count: int, of: int) -> str:
    return f"{count} of {of}  ({100 * count / of:.1f} %)" if of else "-"
