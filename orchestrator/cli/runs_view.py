"""Words and tables for runs: lists, headers, events line by line, checkpoints. Pure functions from messages to text."""

from collections.abc import Callable, Iterable
from typing import Any

from codemend.orchestrator.v1 import debug_pb2, runs_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from rich.table import Table
from rich.text import Text

from orchestrator.cli import wording
from orchestrator.cli.terminal import in_seconds, printable

_VALUE_CHARS = 60  # of a value before or after a change; `state` prints it whole
_CHANGE_CHARS = 110  # of all changes of one field
_ORIGINS = {runs_pb2.ORIGIN_KIND_FORK: "forked from", runs_pb2.ORIGIN_KIND_REPLAY: "replays"}


def runs_table(runs: Iterable[runs_pb2.Run]) -> Table:
    """Runs, one a row."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("run", "workflow", "state", "outcome", "created", "attempts", "labels"):
        table.add_column(heading, no_wrap=True)
    for run in runs:
        labels = " ".join(f"{key}={value}" for key, value in sorted(run.labels.items()))
        outcome = wording.run_outcome(run.result.outcome) if run.HasField("result") else ""
        row = (run.run_id, run.workflow, wording.run_state(run.state), outcome, _when(run.create_time))
        attempts = str(len(run.result.attempts)) if run.HasField("result") else ""
        table.add_row(*(Text(printable(cell)) for cell in (*row, attempts, labels)))
    return table


def header_lines(run: runs_pb2.Run) -> list[str]:
    """What a run is and where it stands."""
    lines = [f"{run.run_id}  {run.workflow} (graph {run.graph_version})  {wording.run_state(run.state)}"]
    lines.append(f"created {_when(run.create_time)}")
    if run.HasField("end_time"):
        took = run.end_time.ToDatetime() - run.create_time.ToDatetime()
        lines[-1] += f", ended {_when(run.end_time)} after {in_seconds(took)}"
    if run.labels:
        lines.append("labels " + " ".join(f"{key}={value}" for key, value in sorted(run.labels.items())))
    if run.HasField("origin"):
        lines.append(origin(run.origin))
    if run.recoveries:
        lines.append(f"taken up again {run.recoveries} times after its replica had died")
    if run.HasField("wait"):
        lines += wait_lines(run.wait)
    if run.cancel_reason:
        lines.append(f"cancelled: {run.cancel_reason}")
    if run.HasField("result"):
        lines += [wording.ending(run), wording.usage(run.result.usage)]
    return [printable(line) for line in lines]


def origin(of: runs_pb2.Origin) -> str:
    """`forked from run_… at checkpoint …`."""
    at = f" at checkpoint {of.checkpoint_id}" if of.checkpoint_id else ""
    return f"{_ORIGINS.get(of.kind, 'comes from')} {of.run_id}{at}"


def wait_lines(wait: runs_pb2.Wait) -> list[str]:
    """What a run waits for, and the questions that are open."""
    following = f", next: {', '.join(wait.next)}" if wait.next else ""
    lines = [f"waits ({wait.reason}) at checkpoint {wait.checkpoint_id}{following}"]
    lines += [f"  {one.interrupt_id} {one.node} asks: {one.value_json}" for one in wait.interrupts]
    return [printable(line) for line in lines]


def standing(run: runs_pb2.Run) -> list[str]:
    """A run in short: `run_… WAITING` and what it waits for, or how it ended."""
    lines = [f"{run.run_id} {wording.run_state(run.state)}"]
    if run.HasField("wait"):
        lines += wait_lines(run.wait)
    if run.HasField("result"):
        lines.append(wording.ending(run))
    return lines


def event_line(event: runs_pb2.RunEvent) -> str:
    """One event on one line."""
    kind = event.WhichOneof("payload")
    said = _PAYLOADS[kind](getattr(event, kind)) if kind in _PAYLOADS else ""
    return printable(f"{event.sequence:>5}  {_time(event.time)}  {kind or 'unknown':<18} {said}".rstrip())


def node_name(node: str, attempt: int) -> str:
    """`repair (attempt 2)`."""
    return f"{node} (attempt {attempt})" if attempt else node


def state_line(changed: runs_pb2.StateChanged) -> str:
    """`FAILED (STUCK): why`."""
    state, outcome = wording.run_state(changed.state), wording.run_outcome(changed.outcome) if changed.outcome else ""
    reason = f": {changed.reason}" if changed.reason else ""
    return f"{state}{f' ({outcome})' if outcome not in {'', state} else ''}{reason}"


def reply_line(replied: runs_pb2.ModelReplied) -> str:
    """`coder-9 replied in 1.2 s (stop): 120 tokens in, 45 out`."""
    used = f"{replied.usage.input_tokens:,} tokens in, {replied.usage.output_tokens:,} out"
    took = in_seconds(replied.duration.ToTimedelta())
    fault = f"; no code: {replied.fault}" if replied.fault else ""
    return f"{replied.model or 'the model'} replied in {took} ({replied.finish_reason}): {used}{fault}"


def execution_line(finished: runs_pb2.ExecutionFinished) -> str:
    """`SUCCEEDED in 0.4 s`, with the tests' counts where tests ran."""
    execution = finished.execution
    line = f"{wording.execution_status(execution.status)} in {in_seconds(execution.wall_time.ToTimedelta())}"
    if finished.HasField("report"):
        line += f", tests {wording.report_outcome(finished.report.outcome)}"
    return line


def attempt_line(attempt: runs_pb2.Attempt) -> str:
    """An attempt's verdict, with its summary where it did not pass."""
    headline = wording.attempt_headline(attempt)
    return headline if attempt.passed or not attempt.summary else f"{headline}: {attempt.summary}"


def route_line(route: runs_pb2.RouteDecision) -> str:
    """`decide -> repair: why`."""
    return f"{route.source} -> {route.target}: {route.reason}"


def edited_line(edited: runs_pb2.StateEdited) -> str:
    """Which fields were changed, in whose name, and what checkpoint came of it."""
    named = f" as {edited.as_node}" if edited.as_node else ""
    return f"{', '.join(edited.fields) or 'files'} changed{named}, now checkpoint {edited.checkpoint_id}"


def checkpoint_lines(one: debug_pb2.Checkpoint) -> list[str]:
    """A checkpoint, and below it what changed there, one line a field of the state."""
    left = "" if one.on_path else " (left by an edit)"
    verdict = f"  {wording.attempt_headline(one.attempt)}" if one.HasField("attempt") else ""
    following = ", ".join(one.next) or "nothing"
    lines = [f"{one.step:>3}  {one.checkpoint_id}  {one.source}{left}  next: {following}{verdict}"]
    parts: dict[str, list[str]] = {}
    for change in one.changes:
        field, _, part = change.field.partition(".")
        parts.setdefault(field, []).append(f"{part} {_change(change)}".strip())
    for field, changes in parts.items():
        line = f"{field}: {', '.join(changes)}"
        lines.append("     " + (line if len(line) <= _CHANGE_CHARS else line[: _CHANGE_CHARS - 1] + "…"))
    return [printable(line) for line in lines]


def change_line(change: debug_pb2.FieldChange) -> str:
    """`plan.note: "" -> "mind zero"`, values cut to what fits a line."""
    return f"{change.field}: {_change(change)}"


def _change(change: debug_pb2.FieldChange) -> str:
    after = _cut(change.after) or "gone"
    return f"{_cut(change.before)} -> {after}" if change.before else f"= {after}"


def divergence_lines(divergence: debug_pb2.Divergence) -> list[str]:
    """Where two courses part, and how."""
    at = f" in {divergence.node}" if divergence.node else ""
    lines = [f"first difference at step {divergence.step}{at}: {divergence.kind}"]
    return [*lines, *(f"  {line}" for line in printable(divergence.detail).splitlines())]


def comparison_lines(answer: debug_pb2.CompareRunsResponse) -> list[str]:
    """Two runs side by side."""
    lines = [f"{which} {line}" for which, run in (("a", answer.run), ("b", answer.other)) for line in standing(run)[:1]]
    lines.append(f"{answer.common_steps} steps in common")
    if answer.HasField("divergence"):
        lines += divergence_lines(answer.divergence)
    lines += [printable(change_line(change)) for change in answer.result_changes]
    if answer.files_diff:
        lines += ["", *printable(answer.files_diff).splitlines()]
    return lines


def _cut(value: str) -> str:
    return value if len(value) <= _VALUE_CHARS else value[: _VALUE_CHARS - 1] + "…"


def _when(time: Timestamp) -> str:
    return f"{time.ToDatetime():%Y-%m-%d %H:%M:%S}Z"


def _time(time: Timestamp) -> str:
    return f"{time.ToDatetime():%H:%M:%S.%f}"[:-3]


def _finished(finished: runs_pb2.NodeFinished) -> str:
    error = f": {finished.error}" if finished.error else ""
    return f"{node_name(finished.node, finished.attempt)} {in_seconds(finished.duration.ToTimedelta())}{error}"


_PAYLOADS: dict[str, Callable[[Any], str]] = {
    "state_changed": state_line,
    "node_started": lambda started: node_name(started.node, started.attempt),
    "node_finished": _finished,
    "model_tokens": lambda tokens: f"attempt {tokens.attempt}, {len(tokens.text)} characters",
    "model_replied": lambda replied: f"attempt {replied.attempt}, {reply_line(replied)}",
    "execution_finished": lambda finished: f"attempt {finished.attempt}, {execution_line(finished)}",
    "attempt": attempt_line,
    "route": route_line,
    "wait": lambda wait: "; ".join(wait_lines(wait)),
    "state_edited": edited_line,
}
