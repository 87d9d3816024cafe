"""Makes a new run that shares another's past up to a checkpoint, and goes its own way from there.

The past is copied, checkpoints with their ids and the part of the tape that led to them, so a fork outlives the run
that it comes from, and nothing of the other is ever changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from orchestrator.errors import InvalidRun, WrongState
from orchestrator.runs.assembly import RunParts
from orchestrator.runs.debug.editing import Edit, Editor
from orchestrator.runs.engine import workflow_of
from orchestrator.runs.identity import new_run_id
from orchestrator.runs.records import Origin, OriginKind, Resume, RunRecord, Wait
from orchestrator.runs.states import RunState
from orchestrator.runs.traces import Point, copy_checkpoints, path_to, read_points
from orchestrator.workflows import RunSpec

_BEING_MADE = "being made"


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork to be made.

    Attributes:
        run_id: of the run that it comes from.
        checkpoint_id: where it branches off; empty: the newest checkpoint.
        edit: a change of the state there; None: none.
        spec: what the new run is made from: the other's request with other options or labels.
        wait: lets it wait where it begins.
    """

    run_id: str
    spec: RunSpec
    checkpoint_id: str = ""
    edit: Edit | None = None
    wait: bool = False


class Forker:
    """Makes forks."""

    def __init__(self, parts: RunParts, editor: Editor) -> None:
        self._parts = parts
        self._editor = editor

    async def fork(self, request_id: str, wanted: Fork) -> RunRecord:
        """Makes a fork, or finds the one that this request_id made.

        Raises:
            RunNotFound: there is no such run.
            InvalidRun: there is no such checkpoint, nothing comes after it, or the edit does not fit.
            WrongState: the run has no checkpoint yet.
        """
        origin = await self._parts.manager.get(wanted.run_id)
        workflow = workflow_of(origin)
        points = await read_points(self._parts.engine.graphs[origin.workflow], workflow, origin.run_id)
        if not points:
            raise WrongState(f"{origin.run_id} has no checkpoint yet")
        path = path_to(points, wanted.checkpoint_id or points[-1].checkpoint_id)
        if not path:
            raise InvalidRun(("checkpoint_id", f"{origin.run_id} has no checkpoint {wanted.checkpoint_id[:80]!r}"))
        at = path[-1]
        if not at.next and wanted.edit is None:
            raise InvalidRun(
                ("checkpoint_id", "nothing comes after this checkpoint; choose an earlier one, or edit its state")
            )
        fragment = await self._editor.fragment(workflow, at, wanted.edit) if wanted.edit is not None else None
        made_from = Origin(OriginKind.FORK, origin.run_id, at.checkpoint_id)
        wait = Wait(at.checkpoint_id, at.next, _BEING_MADE)
        record = await self._parts.manager.create(
            wanted.spec, request_id, run_id=new_run_id(datetime.now(UTC)), origin=made_from, wait=wait
        )
        if record.state is not RunState.WAITING or record.wait is None or record.wait.reason != _BEING_MADE:
            return record  # this request has made it before
        await self._copy(origin.run_id, record.run_id, path)
        if fragment is not None and wanted.edit is not None:
            at, _ = await self._editor.write(record.workflow, record.run_id, at, fragment, wanted.edit.as_node)
        return await self._begin(record, at, wanted)

    async def _begin(self, record: RunRecord, at: Point, wanted: Fork) -> RunRecord:
        if wanted.wait:
            reason = "edited fork" if wanted.edit is not None else "fork"
            ready = await self._parts.runs.stand(record, Wait(at.checkpoint_id, at.next, reason, at.interrupts))
        else:
            ready = await self._parts.manager.resume(record, Resume(at.checkpoint_id))
        return ready or await self._parts.manager.get(record.run_id)

    async def _copy(self, run_id: str, fork_id: str, path: Sequence[Point]) -> None:
        await copy_checkpoints(self._parts.saver, run_id, fork_id, [point.checkpoint_id for point in path])
        past = {step_id for point in path[:-1] for step_id in point.step_ids}
        entries = await self._parts.tapes.read(run_id)
        kept = [entry for entry in entries if entry.step_id.partition("/")[0] in past]
        await self._parts.tapes.copy(fork_id, kept)
