"""The rows of runs: made once per request, and moved from state to state by compare-and-swap alone.

Each change names the claim or the states that it starts from, so a late writer changes nothing, and a terminal state
is never left. The event that tells of a change is added in the same transaction.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, func, insert, literal, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.errors import RequestIdTaken, RunNotFound
from orchestrator.runs.events import NewEvent, StateChanged
from orchestrator.runs.records import Breakpoints, NewRun, Resume, RunFilter, RunRecord, Wait
from orchestrator.runs.states import ACTIVE, TERMINAL, RunResult, RunState
from orchestrator.runs.store.admission import Crowded, QueueBound, admit, check_room
from orchestrator.runs.store.claims import Claim, held
from orchestrator.runs.store.conditions import editor, unedited, unmoved
from orchestrator.runs.store.database import Database
from orchestrator.runs.store.events import add_events, happened
from orchestrator.runs.store.rows import COLUMNS, new_row, read_record
from orchestrator.runs.store.schema import RUN_LABELS, RUNS, UtcTime
from orchestrator.runs.store.tape import TapeEntry, begin_tape
from orchestrator.runs.store.text import as_text
from orchestrator.runs.store.whole import whole
from orchestrator.workflows import RunSpec, decode


class RunRows:
    """Reads and changes the rows of runs. All methods raise StoreUnavailable where the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # The lock of those that make runs near the queue's bound: one of this process waits for it, and takes up a
        # connection meanwhile, and the others of this process wait for that one.
        self._crowd = asyncio.Lock()

    async def create(
        self,
        new: NewRun,
        *,
        tape: Sequence[TapeEntry] = (),
        told: Sequence[NewEvent] = (),
        bound: QueueBound | None = None,
    ) -> tuple[RunRecord, bool]:
        """Makes a run, or finds the one that its request_id made; and whether it was made.

        Args:
            new: the run.
            tape: what it has taken before it begins: that of a fork is its origin's.
            told: events between that of its state and that of what it waits for.
            bound: of the queue, for a run that is to be queued; None: it has room for any.

        Raises:
            RequestIdTaken: the request_id made a run from another request.
            QueueFull: too many runs wait.
        """
        try:
            return await self._create(new, tape, told, bound, alone=False)
        except Crowded:
            async with self._crowd:
                return await self._create(new, tape, told, bound, alone=True)

    @whole
    async def _create(
        self,
        new: NewRun,
        tape: Sequence[TapeEntry],
        told: Sequence[NewEvent],
        bound: QueueBound | None,
        *,
        alone: bool,
    ) -> tuple[RunRecord, bool]:
        try:
            async with self._database.write() as connection:
                if new.request_id and (known := await self._by_request(connection, new)) is not None:
                    return known, False
                state = RunState.QUEUED if new.wait is None else RunState.WAITING
                if bound is not None and state is RunState.QUEUED:
                    await admit(connection, bound, new.spec.tenant, alone=alone)
                waits = [happened(new.wait)] if new.wait is not None else []
                events = [happened(StateChanged(state)), *told, *waits]
                since = await _artifacts_since(connection, new)
                row = {**new_row(new), "artifacts_since": since, "last_sequence": len(events)}
                await connection.execute(insert(RUNS).values(row))
                labels = [{"run_id": new.run_id, "label": key, "value": text} for key, text in new.spec.labels.items()]
                if labels:
                    await connection.execute(insert(RUN_LABELS), labels)
                await begin_tape(connection, new.run_id, tape)
                await add_events(connection, new.run_id, 1, events)
                return await _record(connection, new.run_id), True
        except IntegrityError:  # another replica made it in between
            async with self._database.read() as connection:
                known = await self._by_request(connection, new)
            if known is None:
                raise
            return known, False

    async def _by_request(self, connection: AsyncConnection, new: NewRun) -> RunRecord | None:
        same = (RUNS.c.tenant == new.spec.tenant) & (RUNS.c.request_id == new.request_id)
        row = (await connection.execute(select(*COLUMNS).where(same))).mappings().one_or_none()
        if row is None:
            return None
        record = read_record(row, await _labels(connection, [row["run_id"]]))
        if record.digest != new.digest:
            text = f"request_id {new.request_id!r} was used for {record.run_id}, made from another request"
            raise RequestIdTaken(text)
        return record

    @whole
    async def check_room(self, bound: QueueBound, tenant: str) -> None:
        """Whether a run may be queued as things stand. Raises QueueFull."""
        async with self._database.read() as connection:
            await check_room(connection, bound, tenant)

    @whole
    async def known(self, new: NewRun) -> RunRecord | None:
        """The run that this request_id made before. Raises RequestIdTaken where it was made from another request."""
        async with self._database.read() as connection:
            return await self._by_request(connection, new) if new.request_id else None

    @whole
    async def find_request(self, tenant: str, request_id: str) -> str:
        """Id of the run that this request_id made; empty: there is none."""
        same = (RUNS.c.tenant == tenant) & (RUNS.c.request_id == request_id)
        async with self._database.read() as connection:
            return (await connection.execute(select(RUNS.c.run_id).where(same))).scalar_one_or_none() or ""

    @whole
    async def get(self, run_id: str) -> RunRecord:
        """The run. Raises RunNotFound."""
        async with self._database.read() as connection:
            return await _record(connection, run_id)

    @whole
    async def spec(self, run_id: str) -> RunSpec:
        """What the run is made from. Raises RunNotFound."""
        async with self._database.read() as connection:
            content = (
                await connection.execute(select(RUNS.c.spec).where(RUNS.c.run_id == run_id))
            ).scalar_one_or_none()
        if content is None:
            raise RunNotFound(run_id)
        return decode(RunSpec, bytes(content))

    @whole
    async def list(self, wanted: RunFilter) -> Sequence[RunRecord]:
        """A page of runs, newest first."""
        query = select(*COLUMNS).where(RUNS.c.tenant == wanted.tenant)
        if wanted.states:
            query = query.where(RUNS.c.state.in_(sorted(wanted.states)))
        if wanted.workflow:
            query = query.where(RUNS.c.workflow == wanted.workflow)
        if wanted.before:
            query = query.where(RUNS.c.run_id < wanted.before)
        for label, value in wanted.labels.items():
            has = select(RUN_LABELS.c.run_id).where(RUN_LABELS.c.label == label, RUN_LABELS.c.value == value)
            query = query.where(RUNS.c.run_id.in_(has))
        query = query.order_by(RUNS.c.run_id.desc()).limit(wanted.limit)
        async with self._database.read() as connection:
            return await _records(connection, query)

    @whole
    async def select(self, *conditions: ColumnElement[bool], limit: int = 1000) -> Sequence[RunRecord]:
        """Runs of any tenant, those first that the queue would give out first."""
        query = select(*COLUMNS).where(*conditions).order_by(RUNS.c.priority, RUNS.c.create_time).limit(limit)
        async with self._database.read() as connection:
            return await _records(connection, query)

    @whole
    async def at_work(self) -> Sequence[tuple[Claim, str]]:
        """The claims of all runs at work, each with its owner."""
        query = select(RUNS.c.run_id, RUNS.c.epoch, RUNS.c.owner).where(RUNS.c.state == RunState.RUNNING)
        async with self._database.read() as connection:
            return [(Claim(row.run_id, row.epoch), row.owner or "") for row in await connection.execute(query)]

    @whole
    async def progress(self, run_ids: Iterable[str]) -> Mapping[str, tuple[RunState, int]]:
        """State and newest event's number of each of these runs that there is."""
        query = select(RUNS.c.run_id, RUNS.c.state, RUNS.c.last_sequence).where(RUNS.c.run_id.in_(list(run_ids)))
        async with self._database.read() as connection:
            return {row.run_id: (RunState(row.state), row.last_sequence) for row in await connection.execute(query)}

    @whole
    async def hand_back(self, claim: Claim, reason: str) -> bool:
        """RUNNING to QUEUED by whoever holds the claim; False where it is lost."""
        changes = {"state": RunState.QUEUED, "owner": None}
        events = [happened(StateChanged(RunState.QUEUED, reason))]
        return await self._change(claim.run_id, held(claim), changes, events) is not None

    @whole
    async def take_from(self, run_id: str, owner: str, epoch: int, reason: str) -> bool:
        """RUNNING to QUEUED for a run whose owner has died; False where it has moved on."""
        dead = held(Claim(run_id, epoch)) & (RUNS.c.owner == owner)
        changes = {"state": RunState.QUEUED, "owner": None, "recoveries": RUNS.c.recoveries + 1}
        events = [happened(StateChanged(RunState.QUEUED, reason))]
        return await self._change(run_id, dead, changes, events) is not None

    @whole
    async def wait(self, claim: Claim, wait: Wait) -> bool:
        """RUNNING to WAITING; its time stands still. False where the claim is lost."""
        async with self._database.write() as connection:
            deadline = (await connection.execute(select(RUNS.c.deadline).where(held(claim)))).scalar_one_or_none()
            left = max(deadline - datetime.now(UTC), timedelta()) if deadline is not None else timedelta()
            changes = {
                "state": RunState.WAITING,
                "owner": None,
                "wait": as_text(Wait, wait),
                "resume": None,
                "deadline": None,
                "time_left_us": left // timedelta(microseconds=1),
            }
            events = [happened(StateChanged(RunState.WAITING, wait.reason)), happened(wait)]
            return await _changed(connection, claim.run_id, held(claim), changes, events) is not None

    @whole
    async def resume(
        self, record: RunRecord, resume: Resume, breakpoints: Breakpoints | None = None
    ) -> RunRecord | None:
        """WAITING to QUEUED, as `record` has it; None where it has moved on since."""
        changes = {
            "state": RunState.QUEUED,
            "wait": None,
            "resume": as_text(Resume, resume),
            "owner": None,
            "time_left_us": None,
            "deadline": datetime.now(UTC) + (record.time_left or timedelta()),
        }
        if breakpoints is not None:
            changes["breakpoints"] = as_text(Breakpoints, breakpoints)
        return await self._change(
            record.run_id,
            unmoved(record, RunState.WAITING) & unedited(),
            changes,
            [happened(StateChanged(RunState.QUEUED, "resumed"))],
        )

    @whole
    async def hold(self, record: RunRecord) -> RunRecord | None:
        """A WAITING run for one editor alone, in a new epoch; None where somebody else was faster.

        Nobody resumes or edits it until `edited`, `release`, or its `EDIT_TIME` has passed: then its editor has died.
        """
        changes = {"epoch": RUNS.c.epoch + 1, "owner": editor(datetime.now(UTC))}
        return await self._change(record.run_id, unmoved(record, RunState.WAITING) & unedited(), changes, [])

    @whole
    async def release(self, held_record: RunRecord) -> None:
        """Ends what `hold` began, without an edit."""
        await self._change(held_record.run_id, unmoved(held_record, RunState.WAITING), {"owner": None}, [])

    @whole
    async def edited(self, record: RunRecord, wait: Wait, event: NewEvent) -> RunRecord | None:
        """WAITING at a checkpoint to WAITING at the one that an edit made; None where it has moved on since."""
        return await self._change(
            record.run_id, unmoved(record, RunState.WAITING), {"wait": as_text(Wait, wait), "owner": None}, [event]
        )

    @whole
    async def request_cancel(self, run_id: str, reason: str) -> RunRecord:
        """Asks for a run's end. The first reason stays; a run that has ended is left as it is. Raises RunNotFound."""
        active = (RUNS.c.run_id == run_id) & RUNS.c.state.in_(sorted(ACTIVE)) & RUNS.c.cancel_reason.is_(None)
        return await self._change(run_id, active, {"cancel_reason": reason}, []) or await self.get(run_id)

    @whole
    async def finish(self, claim: Claim, result: RunResult, events: Sequence[NewEvent] = ()) -> bool:
        """RUNNING to the result's state, after these last events; False where the claim is lost."""
        return await self._finish(claim.run_id, held(claim), result, events)

    @whole
    async def finish_idle(self, record: RunRecord, result: RunResult) -> bool:
        """QUEUED or WAITING to the result's state, as `record` has it; False where it has moved on since."""
        return await self._finish(record.run_id, unmoved(record, RunState.QUEUED, RunState.WAITING), result, ())

    async def _finish(
        self, run_id: str, condition: ColumnElement[bool], result: RunResult, events: Sequence[NewEvent]
    ) -> bool:
        changes = {
            "state": result.state,
            "owner": None,
            "wait": None,
            "resume": None,
            "end_time": datetime.now(UTC),
            "result": as_text(RunResult, result),
        }
        last = happened(StateChanged(result.state, result.reason, result.outcome))
        return await self._change(run_id, condition, changes, [*events, last]) is not None

    @whole
    async def due(self, ended_before: datetime, keep: int, limit: int | None = None) -> Sequence[str]:
        """Ended runs that ended longer ago, or that are not among the `keep` that ended last; the oldest first.

        A run that one at work comes from is left out: it may still be read.
        """
        ended = RUNS.c.state.in_(sorted(TERMINAL))
        other = RUNS.alias()
        needed = select(other.c.run_id).where(other.c.origin_run_id == RUNS.c.run_id, other.c.state.in_(sorted(ACTIVE)))
        newest_first = (RUNS.c.end_time.desc(), RUNS.c.run_id.desc())
        over = select(RUNS.c.end_time, RUNS.c.run_id).where(ended).order_by(*newest_first).offset(keep).limit(1)
        async with self._database.read() as connection:
            old = RUNS.c.end_time < ended_before
            if (first := (await connection.execute(over)).one_or_none()) is not None:
                old |= tuple_(RUNS.c.end_time, RUNS.c.run_id) <= tuple_(
                    literal(first.end_time, UtcTime()), literal(first.run_id)
                )
            query = select(RUNS.c.run_id).where(ended, old, ~needed.exists())
            query = query.order_by(RUNS.c.end_time, RUNS.c.run_id).limit(limit)
            return (await connection.execute(query)).scalars().all()

    @whole
    async def artifact_users(self, before: datetime) -> Sequence[tuple[RunRecord, datetime]]:
        """All runs that may have an artifact that was last kept before that; each with the time since when it may."""
        query = select(*COLUMNS).where(RUNS.c.artifacts_since < before)  # one statement: a run is in one state in it
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return [(read_record(row, {}), row["artifacts_since"]) for row in rows]

    @whole
    async def delete(self, run_ids: Sequence[str]) -> int:
        """Deletes ended runs with all that hangs on them; gives back how many there were."""
        ended = RUNS.c.run_id.in_(run_ids) & RUNS.c.state.in_(sorted(TERMINAL))
        async with self._database.write() as connection:
            return (await connection.execute(delete(RUNS).where(ended))).rowcount

    async def _change(
        self, run_id: str, condition: ColumnElement[bool], changes: Mapping[str, Any], events: Sequence[NewEvent]
    ) -> RunRecord | None:
        async with self._database.write() as connection:
            return await _changed(connection, run_id, condition, changes, events)


async def _artifacts_since(connection: AsyncConnection, new: NewRun) -> datetime:
    if new.origin is None:
        return new.create_time
    of_origin = select(RUNS.c.artifacts_since).where(RUNS.c.run_id == new.origin.run_id)
    since = (await connection.execute(of_origin)).scalar_one_or_none()
    return new.create_time if since is None else since


async def claim_row(connection: AsyncConnection, run_id: str, owner: str) -> RunRecord:
    """QUEUED to RUNNING in a new epoch, in the transaction that has found it QUEUED."""
    changes = {
        "state": RunState.RUNNING,
        "owner": owner,
        "epoch": RUNS.c.epoch + 1,
        "start_time": func.coalesce(RUNS.c.start_time, literal(datetime.now(UTC), UtcTime())),
    }
    waiting = (RUNS.c.run_id == run_id) & (RUNS.c.state == RunState.QUEUED)
    record = await _changed(connection, run_id, waiting, changes, [happened(StateChanged(RunState.RUNNING))])
    if record is None:
        raise RunNotFound(run_id)
    return record


async def _changed(
    connection: AsyncConnection,
    run_id: str,
    condition: ColumnElement[bool],
    changes: Mapping[str, Any],
    events: Sequence[NewEvent],
) -> RunRecord | None:
    counted = {**changes, "last_sequence": RUNS.c.last_sequence + len(events)}
    changed = update(RUNS).where(condition).values(counted).returning(*COLUMNS)
    row = (await connection.execute(changed)).mappings().one_or_none()
    if row is None:
        return None
    await add_events(connection, run_id, row["last_sequence"] - len(events) + 1, events)
    return read_record(row, await _labels(connection, [run_id]))


async def _record(connection: AsyncConnection, run_id: str) -> RunRecord:
    found = await _records(connection, select(*COLUMNS).where(RUNS.c.run_id == run_id))
    if not found:
        raise RunNotFound(run_id)
    return found[0]


async def _records(connection: AsyncConnection, query: Select[Any]) -> Sequence[RunRecord]:
    rows = (await connection.execute(query)).mappings().all()
    labels = await _labels(connection, [row["run_id"] for row in rows])
    return [read_record(row, labels) for row in rows]


async def _labels(connection: AsyncConnection, run_ids: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    found: dict[str, dict[str, str]] = {}
    if run_ids:
        query = select(RUN_LABELS).where(RUN_LABELS.c.run_id.in_(run_ids)).order_by(RUN_LABELS.c.label)
        for row in await connection.execute(query):
            found.setdefault(row.run_id, {})[row.label] = row.value
    return found
