"""A run as a tree, built from its events: what each node was given and returned, what it cost, and why it went on so.

An event belongs to the step that it names, or else to the newest step of its node or attempt: candidates work side by
side, and their events come mixed.
"""

from collections.abc import Iterable

from codemend.orchestrator.v1 import runs_pb2
from rich.text import Text
from rich.tree import Tree

from orchestrator.cli import runs_view, wording
from orchestrator.cli.terminal import in_bytes, in_seconds, printable

_PREVIEW_CHARS = 100  # of a field that a node returned


class RunTree:
    """The tree of one run; `root` can be printed at any time."""

    def __init__(self, run: runs_pb2.Run) -> None:
        self.root = Tree(Text(f"{run.run_id} {wording.run_state(run.state)}", style="bold"))
        self._steps: dict[str, Tree] = {}
        self._newest: dict[str | int, Tree] = {}  # by a node's name, and by an attempt's number

    def add(self, events: Iterable[runs_pb2.RunEvent]) -> "RunTree":
        """Takes up events, in order; returns itself."""
        for event in events:
            self._add(event)
        return self

    def _add(self, event: runs_pb2.RunEvent) -> None:
        kind = event.WhichOneof("payload")
        if kind is not None and (take := getattr(self, f"_on_{kind}", None)) is not None:
            take(getattr(event, kind))

    def _on_state_changed(self, changed: runs_pb2.StateChanged) -> None:
        if changed.state != runs_pb2.RUN_STATE_WAITING:  # the event after it says what for
            _leaf(self.root, runs_view.state_line(changed), "cyan")

    def _on_model_replied(self, replied: runs_pb2.ModelReplied) -> None:
        _leaf(self._of_attempt(replied.attempt), runs_view.reply_line(replied))

    def _on_execution_finished(self, finished: runs_pb2.ExecutionFinished) -> None:
        leaf = _leaf(self._of_attempt(finished.attempt), runs_view.execution_line(finished))
        for line in wording.failures(finished.report):
            _leaf(leaf, line)

    def _on_attempt(self, attempt: runs_pb2.Attempt) -> None:
        style = "green" if attempt.passed else "yellow"
        _leaf(self._of_attempt(attempt.number), runs_view.attempt_line(attempt), style)

    def _on_route(self, route: runs_pb2.RouteDecision) -> None:
        _leaf(self._newest.get(route.source, self.root), f"-> {route.target}: {route.reason}", "magenta")

    def _on_wait(self, wait: runs_pb2.Wait) -> None:
        for line in runs_view.wait_lines(wait):
            _leaf(self.root, line, "cyan")

    def _on_state_edited(self, edited: runs_pb2.StateEdited) -> None:
        _leaf(self.root, f"edited: {runs_view.edited_line(edited)}", "cyan")

    def _of_attempt(self, number: int) -> Tree:
        return self._newest.get(number, self.root)

    def _on_node_started(self, started: runs_pb2.NodeStarted) -> None:
        if (step := self._steps.get(started.step_id)) is not None:
            _leaf(step, "begun again", "cyan")
            return
        step = _leaf(self.root, f"{runs_view.node_name(started.node, started.attempt)}, at work", "bold")
        if started.step_id:
            self._steps[started.step_id] = step
        self._newest[started.node] = step
        if started.attempt:
            self._newest[started.attempt] = step

    def _on_node_finished(self, finished: runs_pb2.NodeFinished) -> None:
        step = self._steps.get(finished.step_id) or self._newest.get(finished.node)
        if step is None:
            step = _leaf(self.root, "")
        label = f"{runs_view.node_name(finished.node, finished.attempt)}  {in_seconds(finished.duration.ToTimedelta())}"
        if finished.usage.model_calls:
            label += f", {finished.usage.input_tokens:,} tokens in, {finished.usage.output_tokens:,} out"
        step.label = Text(printable(label), style="bold")
        if finished.error:
            _leaf(step, f"error: {finished.error}", "red")
        if finished.input_bytes:
            given = ", ".join(f"{field} {in_bytes(size)}" for field, size in sorted(finished.input_bytes.items()))
            _leaf(step, f"given: {given}", "dim")
        for field, preview in sorted(finished.output_previews.items()):
            cut = preview if len(preview) <= _PREVIEW_CHARS else preview[: _PREVIEW_CHARS - 1] + "…"
            _leaf(step, f"{field} = {cut}")


def _leaf(parent: Tree, text: str, style: str = "") -> Tree:
    return parent.add(Text(printable(text), style=style))
