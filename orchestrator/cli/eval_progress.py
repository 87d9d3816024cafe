"""How far an evaluation is: a bar on a terminal, one line a task elsewhere."""

from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from orchestrator.cli.terminal import console, printable


class Ticker:
    """Shows tasks as they end.

    Args:
        total: tasks in all.
    """

    def __init__(self, total: int) -> None:
        self._console = console()
        self._total = total
        self._ended = 0
        self._good = 0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task("tasks", total=total)
        self._drawn = self._console.is_terminal and not self._console.is_dumb_terminal

    def __enter__(self) -> Self:
        if self._drawn:
            self._bar.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def tick(self, line: str, *, good: bool) -> None:
        """One task ended; on a terminal only those that went wrong leave a line."""
        self._ended += 1
        self._good += good
        if self._drawn:
            self._bar.update(self._task, advance=1, description=f"{self._good} good")
        if not self._drawn or not good:
            self._console.print(f"[{self._ended}/{self._total}] {printable(line)}", style=None if good else "yellow")
            self._console.file.flush()
