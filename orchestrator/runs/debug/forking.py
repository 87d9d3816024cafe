"""Makes a new run that shares another's past up to a checkpoint, and goes its own way from there.

The past is copied, checkpoints with their ids and the part of the tape that led to them, so a fork outlives the run
that it comes from, and nothing of the other is ever changed. The checkpoints come first, the edited one among them, and
the run's record last: a fork that is refused, or whose maker dies, is no run at all.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.errors import InvalidRun, RunNotFound, StoreError, WrongState
from orchestrator.runs.assembly import RunParts
from orchestrator.runs.debug.editing import Edit, Editor
from orchestrator.runs.engine import workflow_of
from orchestrator.runs.events import NewEvent, StateEdited
from orchestrator.runs.identity import digest_of
from orchestrator.runs.manager import new_run
from orchestrator.runs.records import NewRun, Origin, OriginKind, Resume, RunRecord, Wait
from orchestrator.runs.store import TapeEntry, happened
from orchestrator.runs.traces import Point, copy_checkpoints, path_to, read_points
from orchestrator.workflows import RunSpec


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

    async def made(self, request_id: str, wanted: Fork) -> RunRecord | None:
        """The fork that this request_id made before. Raises RequestIdTaken where it was made from another request."""
        return await self._parts.manager.known(_new(request_id, wanted))

    async def fork(self, request_id: str, wanted: Fork) -> RunRecord:
        """Makes a fork, or finds the one that this request_id made.

        Raises:
            RunNotFound: there is no such run.
            InvalidRun: there is no such checkpoint, nothing comes after it, the edit does not fit, or the options do
                not fit what was done by then.
            WrongState: the run has no checkpoint yet.
            RequestIdTaken: the request_id made a run from another request.
        """
        origin = await self._parts.manager.get(wanted.run_id)
        path = await self._path(origin, wanted)
        candidates = (await self._parts.runs.spec(origin.run_id)).options.candidates
        if (asked := wanted.spec.options.candidates) != candidates:
            fault = f"must be the original's {candidates}, not {asked}: a fork begins with the original's input"
            raise InvalidRun(("options.candidates", fault))
        new = replace(_new(request_id, wanted), origin=Origin(OriginKind.FORK, origin.run_id, path[-1].checkpoint_id))
        tape = await self._tape(origin.run_id, path)
        async with self._with_past(origin.run_id, new, path):
            at, told = await self._begin(origin, path, new, wanted)
            reached = workflow_of(origin).attempts_due(at.values, at.next)
            if reached > (most := wanted.spec.options.max_attempts):
                fault = f"must be at least {reached}, not {most}: attempt {reached} is made by then, or comes next"
                raise InvalidRun(("options.max_attempts", fault))
            return await self._parts.manager.make(_standing(new, at, wanted), tape=tape, told=told)

    async def _path(self, origin: RunRecord, wanted: Fork) -> Sequence[Point]:
        """The points from the origin's beginning to where the fork branches off."""
        points = await read_points(self._parts.engine.graphs[origin.workflow], workflow_of(origin), origin.run_id)
        if not points:
            raise WrongState(f"{origin.run_id} has no checkpoint yet")
        path = path_to(points, wanted.checkpoint_id or points[-1].checkpoint_id)
        if not path:
            raise InvalidRun(("checkpoint_id", f"{origin.run_id} has no checkpoint {wanted.checkpoint_id[:80]!r}"))
        if not path[-1].next and wanted.edit is None:
            raise InvalidRun(
                ("checkpoint_id", "nothing comes after this checkpoint; choose an earlier one, or edit its state")
            )
        return path

    async def _tape(self, run_id: str, path: Sequence[Point]) -> Sequence[TapeEntry]:
        """What the steps on the path took from outside."""
        past = {step_id for point in path[:-1] for step_id in point.step_ids}
        entries = await self._parts.tapes.read(run_id)
        return [entry for entry in entries if entry.step_id.partition("/")[0] in past]

    @contextlib.asynccontextmanager
    async def _with_past(self, run_id: str, new: NewRun, path: Sequence[Point]) -> AsyncIterator[None]:
        """Copies the checkpoints, and deletes the copies where no run is made of them."""
        try:
            await copy_checkpoints(self._parts.saver, run_id, new.run_id, [point.checkpoint_id for point in path])
            yield
        finally:
            # Asked, since a call that fails or is cancelled may have made it. Whoever cannot be asked may have it, too.
            with contextlib.suppress(StoreError):
                try:
                    await self._parts.manager.get(new.run_id)
                except RunNotFound:
                    await self._parts.saver.adelete_thread(new.run_id)

    async def _begin(
        self, origin: RunRecord, path: Sequence[Point], new: NewRun, wanted: Fork
    ) -> tuple[Point, Sequence[NewEvent]]:
        """Where the fork begins, with its edit made, and the event that tells of that."""
        at, edit = path[-1], wanted.edit
        if edit is None:
            return at, ()
        fragment = await self._editor.fragment(workflow_of(origin), at, edit, path)
        made, as_node = await self._editor.write(origin.workflow, new.run_id, at, fragment, edit.as_node)
        told = StateEdited(at.checkpoint_id, made.checkpoint_id, as_node, tuple(sorted(fragment)))
        return made, [happened(told)]


def _new(request_id: str, wanted: Fork) -> NewRun:
    """The run to be made; its digest is of all that the fork is made from."""
    return replace(new_run(wanted.spec, request_id), digest=digest_of(Fork, wanted))


def _standing(new: NewRun, at: Point, wanted: Fork) -> NewRun:
    """The run at its beginning: waiting there, or on its way from there."""
    if not wanted.wait:
        return replace(new, resume=Resume(at.checkpoint_id))
    reason = "edited fork" if wanted.edit is not None else "fork"
    return replace(new, wait=Wait(at.checkpoint_id, at.next, reason))  # an open question is the original's alone
