"""Looks into runs without changing them: their points, their traces, two of them side by side, and replays."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.errors import InvalidRun, WrongState
from orchestrator.runs.assembly import RunParts
from orchestrator.runs.engine import workflow_of
from orchestrator.runs.outcome import diff
from orchestrator.runs.records import Origin, OriginKind, RunRecord
from orchestrator.runs.states import RunResult
from orchestrator.runs.traces import (
    OF_ITS_TIME,
    Divergence,
    FieldChange,
    Point,
    Trace,
    changes,
    compare,
    own_path,
    read_points,
)
from orchestrator.workflows import Attempt, RunOptions, encode, load_files
from orchestrator.workflows.sandbox import File

_OF_ITSELF = OF_ITS_TIME | {"node_time", "diff_hash"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs side by side."""

    one: RunRecord
    two: RunRecord
    common_steps: int
    divergence: Divergence | None
    result_changes: Sequence[FieldChange]
    files_diff: str


class Looker:
    """Reads runs for whoever debugs them. All methods raise RunNotFound where there is no such run."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts

    async def points(self, run_id: str) -> Sequence[Point]:
        """All checkpoints of a run, oldest first. Raises GraphChanged where they cannot be read here."""
        record = await self._parts.manager.get(run_id)
        return await read_points(self._parts.engine.graphs[record.workflow], workflow_of(record), run_id)

    async def point(self, run_id: str, checkpoint_id: str) -> tuple[Point, Sequence[Point]]:
        """A checkpoint (empty: the newest) and all of them. Raises InvalidRun where there is no such one."""
        points = await self.points(run_id)
        if not points:
            raise WrongState(f"{run_id} has no checkpoint yet")
        found = points[-1] if not checkpoint_id else next((p for p in points if p.checkpoint_id == checkpoint_id), None)
        if found is None:
            raise InvalidRun(("checkpoint_id", f"{run_id} has no checkpoint {checkpoint_id[:80]!r}"))
        return found, points

    async def files(self, record: RunRecord, point: Point) -> Sequence[File]:
        """Files of the draft that waits at a point, or else of the newest attempt that has code."""
        name = workflow_of(record).code_hash(point.values)
        return await load_files(self._parts.artifacts, name) if name else ()

    def attempt(self, record: RunRecord, point: Point) -> Attempt | None:
        """The newest attempt that had a verdict at a point."""
        attempts = workflow_of(record).progress(point.values, ()).attempts
        return attempts[-1] if attempts else None

    async def trace(self, run_id: str) -> Trace:
        """What a run did on its path."""
        points = await self.points(run_id)
        path = own_path(points)
        return Trace(path, await self._parts.tapes.read(run_id))

    async def compare(self, run_id: str, other_run_id: str) -> Comparison:
        """Two runs side by side."""
        one, two = await self._parts.manager.get(run_id), await self._parts.manager.get(other_run_id)
        common, divergence = compare(await self.trace(run_id), await self.trace(other_run_id), done_anew=True)
        files = [await self._delivered(record.result) for record in (one, two)]
        return Comparison(one, two, common, divergence, changes(_summary(one), _summary(two)), diff(*files))

    async def _delivered(self, result: RunResult | None) -> Sequence[File]:
        return await load_files(self._parts.artifacts, result.files_hash) if result and result.files_hash else ()

    async def replay(
        self, run_id: str, live_from: str, options: RunOptions | None
    ) -> tuple[RunRecord, int, Divergence | None]:
        """Replays a run to its end: the replay, how many steps were equal, and the first that was not.

        Raises:
            WrongState: the run has not ended.
            InvalidRun: the workflow has no node `live_from`.
        """
        original = await self._parts.manager.get(run_id)
        workflow = workflow_of(original)
        if not original.has_ended:
            raise WrongState(f"{run_id} is {original.state}; a run can be replayed once it has ended")
        if live_from and live_from not in workflow.nodes:
            raise InvalidRun(
                ("live_from", f"there is no node {live_from[:80]!r}; there are {', '.join(workflow.nodes)}")
            )
        spec = await self._parts.runs.spec(run_id)
        spec = replace(spec, options=options or spec.options)
        spec = replace(spec, options=replace(spec.options, interrupt_before=(), interrupt_after=()))
        record = await self._parts.manager.create(spec, origin=Origin(OriginKind.REPLAY, run_id, live_from=live_from))
        record = await self._parts.manager.wait_until(record.run_id)
        both = await self.trace(run_id), await self.trace(record.run_id)
        equal, divergence = compare(*both, done_anew=bool(live_from))
        return record, equal, divergence


def _summary(record: RunRecord) -> str:
    """What is compared of two results, as JSON: without times, and without hashes of what is compared itself."""
    if record.result is None:
        return "{}"
    result = json.loads(encode(RunResult, record.result))
    kept = {name: value for name, value in result.items() if name not in _OF_ITSELF}
    kept["attempts"] = [
        {name: value for name, value in attempt.items() if name not in OF_ITS_TIME} for attempt in result["attempts"]
    ]
    return json.dumps(kept)
