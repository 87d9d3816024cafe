"""The live view of a run on a terminal: what is at work, the reply as it streams in, and what failed so far.

It redraws in place at a few frames a second; when the run ends only the plain account stays on the screen.
"""

import time
from datetime import timedelta

from codemend.orchestrator.v1 import runs_pb2
from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.syntax import Syntax
from rich.text import Text

from orchestrator.cli import wording
from orchestrator.cli.progress import Progress
from orchestrator.cli.terminal import console, in_seconds, printable
from orchestrator.cli.views import attempt_lines, summary_lines

_FRAMES_PER_SECOND = 8
_STREAM_LINES = 12
_FAILURE_LINES = 8


class LiveView:
    """Draws a run in place until it ends."""

    def __init__(self) -> None:
        self._console = console()
        self._progress = Progress()
        self._started = time.monotonic()
        self._spinner = Spinner("dots")
        self._live = Live(
            get_renderable=self._frame, console=self._console, refresh_per_second=_FRAMES_PER_SECOND, transient=True
        )
        self._live.start()

    def event(self, event: runs_pb2.RunEvent) -> None:
        """Takes up one event; an attempt that has its verdict moves above the live part for good."""
        self._progress.apply(event)
        match event.WhichOneof("payload"):
            case "attempt":
                self._print_attempt(event.attempt)
            case "route" if self._progress.decided:
                self._console.print(Text(f"  {printable(event.route.reason)}", style="dim"))

    def end(self, run: runs_pb2.Run) -> None:
        """Replaces the live part by the outcome and the files."""
        self.close()
        solved = run.result.outcome == runs_pb2.RUN_OUTCOME_PASSED
        self._console.print(
            Text(
                wording.ending(run), style="bold green" if solved else "bold red" if run.HasField("result") else "bold"
            )
        )
        for line in summary_lines(run):
            self._console.print(line)

    def close(self) -> None:
        """Gives the terminal back."""
        self._live.stop()

    def _print_attempt(self, attempt: runs_pb2.Attempt) -> None:
        first, *rest = attempt_lines(attempt, self._progress.failures.get(attempt.number, []))
        self._console.print(Text(first, style="green" if attempt.passed else "yellow"))
        for line in rest[:_FAILURE_LINES]:
            self._console.print(Text(line))

    def _frame(self) -> RenderableType:
        progress = self._progress
        elapsed = in_seconds(timedelta(seconds=time.monotonic() - self._started))
        where = f"attempt {progress.attempt}" if progress.attempt else progress.state
        doing = f" {printable(progress.node)}" if progress.node else ""
        self._spinner.update(text=Text(f"{where}{doing}  {elapsed}"))
        parts: list[RenderableType] = [self._spinner]
        tail = printable(progress.stream.get(progress.attempt, "")).splitlines()[-_STREAM_LINES:]
        if tail:
            parts.append(
                Syntax("\n".join(tail), "python", theme="ansi_dark", word_wrap=False, background_color="default")
            )
        return Group(*parts)
