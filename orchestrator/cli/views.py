"""Two ways to show a run where no live view fits: plain lines for people and logs, JSON lines for programs.

A view is told every event and then the end; it decides nothing. The live view of a terminal is in `live`.
"""

import json
import sys
from typing import Protocol

from codemend.orchestrator.v1 import runs_pb2
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from orchestrator.cli import wording
from orchestrator.cli.progress import Progress
from orchestrator.cli.terminal import console, in_seconds, printable


class View(Protocol):
    """Shows one run."""

    def event(self, event: runs_pb2.RunEvent) -> None:
        """Shows one event."""

    def end(self, run: runs_pb2.Run) -> None:
        """Shows the run, ended or waiting."""

    def close(self) -> None:
        """Gives the terminal back, whether or not the run ended."""


class JsonView:
    """One JSON object a line: `{"event": …}` for each event, then `{"run": …}` with the result.

    Protobuf's JSON with the contract's own field names: bytes are base64, 64-bit numbers are strings, enums are their
    names. A field that is false, zero or empty is there like any other; a record that is unset is not.
    """

    def event(self, event: runs_pb2.RunEvent) -> None:
        """Writes one event."""
        self._write(runs_pb2.WatchRunResponse(event=event))

    def end(self, run: runs_pb2.Run) -> None:
        """Writes the ended run."""
        self._write(runs_pb2.GetRunResponse(run=run))

    def close(self) -> None:
        """Does nothing: no terminal was taken."""

    def _write(self, message: Message) -> None:
        sys.stdout.write(json_line(message))
        sys.stdout.flush()


class PlainView:
    """A few lines an attempt, written as they become known."""

    def __init__(self) -> None:
        self._console = console()
        self._progress = Progress()

    def event(self, event: runs_pb2.RunEvent) -> None:
        """Writes the lines of an attempt that has its verdict, and what was decided upon it."""
        self._progress.apply(event)
        match event.WhichOneof("payload"):
            case "attempt":
                for line in attempt_lines(event.attempt, self._progress.failures.get(event.attempt.number, [])):
                    self._console.print(line)
            case "route" if self._progress.decided:
                way = f"{event.route.source} -> {event.route.target}: {event.route.reason}"
                self._console.print(f"  {printable(way)}")

    def end(self, run: runs_pb2.Run) -> None:
        """Writes the outcome and the files delivered."""
        self._console.print(wording.ending(run))
        for line in summary_lines(run):
            self._console.print(line)

    def close(self) -> None:
        """Does nothing: no terminal was taken."""


def attempt_lines(attempt: runs_pb2.Attempt, what_failed: list[str]) -> list[str]:
    """The headline of an attempt, and what failed in it."""
    lines = [wording.attempt_headline(attempt)]
    if not attempt.passed:
        lines += [f"  {printable(line)}" for line in what_failed or [attempt.summary] if line]
    return lines


def summary_lines(run: runs_pb2.Run) -> list[str]:
    """What a run that has ended used, and the files that it delivers."""
    if not run.HasField("result"):
        return []
    took = run.end_time.ToDatetime() - run.create_time.ToDatetime()
    lines = [f"{wording.usage(run.result.usage)}, {in_seconds(took)}"]
    if run.result.outcome != runs_pb2.RUN_OUTCOME_PASSED and run.result.delivered_attempt:
        lines.append(f"delivered: the best attempt, number {run.result.delivered_attempt}")
    for file in run.result.files:
        lines += ["", f"--- {printable(file.path)}", printable(file.content.decode("utf-8", "replace")).rstrip("\n")]
    return lines


def json_line(message: Message) -> str:
    """The message as one line of JSON with the contract's own field names; false, zero and nothing are written, too."""
    fields = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return json.dumps(fields, ensure_ascii=False) + "\n"
