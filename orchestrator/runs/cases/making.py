"""Makes a case of a run that has ended: its request, its tape, its way, and what came of it."""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from orchestrator.errors import ArtifactMissing, WrongState
from orchestrator.models import ModelSpec
from orchestrator.runs.assembly import RunParts
from orchestrator.runs.cases.body import CaseBody, Expectation, RecordedAnswer, RecordedModel, RecordedStep, digest_of
from orchestrator.runs.cases.playing import way
from orchestrator.runs.engine import workflow_of
from orchestrator.runs.records import RunRecord
from orchestrator.runs.states import RunResult
from orchestrator.runs.store import CaseRow, TapeEntry
from orchestrator.runs.traces import Point, edited_as, fork_behind, last_node, own_path, read_points
from orchestrator.workflows import Effect, Outcome, RunSpec

_HASH = re.compile('"([0-9a-f]{64})"')
_START = "__start__"


class CaseMaker:
    """Makes cases of runs.

    Args:
        parts: what serves runs.
        model: how the model is called by now; how it was for a call of the run, the run's tape says.
    """

    def __init__(self, parts: RunParts, model: ModelSpec) -> None:
        self._parts = parts
        self._model = model

    async def make(self, tenant: str, run_id: str, name: str, expected: Outcome | None) -> CaseRow:
        """Makes a case and keeps it; a case of the same name and content is left as it is.

        Args:
            tenant: whose case it is to be.
            run_id: of the run.
            name: of the case; empty: the run's id.
            expected: the outcome to expect; None: the run's own.

        Raises:
            RunNotFound: there is no such run.
            WrongState: the run has not ended, was cancelled, or was broken off between two steps.
            CaseNameTaken: another case has the name.
        """
        record = await self._parts.manager.get(run_id)
        result = _result(record)
        body = await self._body(record, result, expected)
        row = case_row(body, tenant=tenant, name=name or run_id, run_id=run_id)
        await self._parts.cases.add([row])
        return await self._parts.cases.get(tenant, row.name)

    async def _body(self, record: RunRecord, result: RunResult, expected: Outcome | None) -> CaseBody:
        workflow = workflow_of(record)
        points = await read_points(self._parts.engine.graphs[record.workflow], workflow, record.run_id)
        path = own_path(points)
        if not path or path[-1].next:
            raise WrongState(f"{record.run_id} was broken off before its graph came to its end: {result.reason}")
        begin = await self._begin(record, path)
        past = {step_id for point in path[:begin] for step_id in point.step_ids}
        entries = await self._parts.tapes.read(record.run_id)
        tape = [entry for entry in entries if entry.step_id.partition("/")[0] not in past]
        as_nodes = await self._as_nodes(record, path, begin)
        own = path[begin:]
        is_own = expected is None or expected is result.outcome
        expectation = Expectation(
            outcome=expected or result.outcome,
            path=way(own) if is_own else (),
            files_hash=result.files_hash if is_own else "",
        )
        return CaseBody(
            graph_version=record.graph_version,
            spec=_portable(await self._parts.runs.spec(record.run_id)),
            model=self._recorded(tape),
            expectation=expectation,
            tape=tuple(RecordedAnswer.of(entry) for entry in tape),
            path=tuple(_step(point, as_nodes.get(point.checkpoint_id, "")) for point in own),
            artifacts=await self._artifacts([point for point in own if point.checkpoint_id in as_nodes]),
        )

    async def _begin(self, record: RunRecord, path: Sequence[Point]) -> int:
        """Index of the point where the run's own way begins: what a fork shares was asked for with other options."""
        origin = await fork_behind(self._parts.runs, record.origin)
        if origin is None:
            return 0
        shared = [index for index, point in enumerate(path) if point.checkpoint_id == origin.checkpoint_id]
        return shared[0] if shared and last_node(path[: shared[0] + 1]) != _START else 0

    async def _as_nodes(self, record: RunRecord, path: Sequence[Point], begin: int) -> dict[str, str]:
        """In whose name the state was given at a point, where it was: by an edit, or at a fork's beginning."""
        told = await edited_as(self._parts.events, record.run_id)
        found = {path[begin].checkpoint_id: last_node(path[: begin + 1])} if begin else {}
        for index, point in enumerate(path[begin:], begin):
            if point.source == "update" and point.checkpoint_id not in found:
                found[point.checkpoint_id] = told.get(point.checkpoint_id) or last_node(path[:index])
        return found

    async def _artifacts(self, given: Sequence[Point]) -> dict[str, bytes]:
        """What these states refer to; what is no longer kept is left out, and is missed only where it is read."""
        contents: dict[str, bytes] = {}
        for name in sorted({name for point in given for name in _HASH.findall(point.state_json)}):
            try:
                contents[name] = await self._parts.artifacts.get(name)
            except ArtifactMissing:
                continue
        return contents

    def _recorded(self, tape: Sequence[TapeEntry]) -> RecordedModel:
        """The model that answered first, as the service calls it now: for what the tape does not say."""
        replies = (RecordedAnswer.of(entry).response for entry in tape if entry.kind == Effect.MODEL)
        named = (reply["answer"]["model"] for reply in replies if "answer" in reply)
        return RecordedModel(
            name=next(named, self._model.model),
            temperature=self._model.temperature,
            max_output_tokens=self._model.max_output_tokens,
            context_tokens=self._model.context_tokens,
        )


def case_row(body: CaseBody, *, tenant: str, name: str, run_id: str = "") -> CaseRow:
    """The row of a new case."""
    content = body.dump()
    return CaseRow(
        case_id=f"case_{secrets.token_hex(12)}",
        tenant=tenant,
        name=name,
        run_id=run_id,
        create_time=datetime.now(UTC),
        workflow=body.spec.workflow,
        graph_version=body.graph_version,
        tape_entries=len(body.tape),
        expectation=body.expectation.model_dump_json(),
        digest=digest_of(content),
        body=content,
    )


def _result(record: RunRecord) -> RunResult:
    if record.result is None:
        raise WrongState(f"{record.run_id} is {record.state}; a run can be made a case once it has ended")
    if record.result.outcome is Outcome.CANCELLED:
        raise WrongState(f"{record.run_id} was cancelled; a case needs a run that came to an end of its own")
    return record.result


def _portable(spec: RunSpec) -> RunSpec:
    """The request without whose it was, and without breakpoints, at which nobody would stand."""
    return replace(spec, tenant="", options=replace(spec.options, interrupt_before=(), interrupt_after=()))


def _step(point: Point, as_node: str) -> RecordedStep:
    return RecordedStep.model_validate(
        {
            "step": point.step,
            "source": point.source,
            "next": point.next,
            "as_node": as_node,
            "state": json.loads(point.state_json),
        }
    )
