"""Conditions that runs are selected by."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, tuple_

from orchestrator.runs.records import RunRecord
from orchestrator.runs.states import ACTIVE, RunState
from orchestrator.runs.store.schema import RUNS

EDIT_TIME = timedelta(seconds=30)


def unmoved(record: RunRecord, *states: RunState) -> ColumnElement[bool]:
    """It is as the record has it, in one of these states."""
    same = (RUNS.c.run_id == record.run_id) & (RUNS.c.epoch == record.epoch) & (RUNS.c.state == record.state)
    return same & (RUNS.c.last_sequence == record.last_sequence) & RUNS.c.state.in_(states)


def editor(now: datetime) -> str:
    """What stands in the place of an owner while somebody edits a run; sorts by time."""
    return f"edit/{int(now.timestamp()):012d}"


def unedited() -> ColumnElement[bool]:
    """Nobody edits the run, or whoever began to has died over it."""
    return RUNS.c.owner.is_(None) | (RUNS.c.owner < editor(datetime.now(UTC) - EDIT_TIME))


def asked_to_end() -> ColumnElement[bool]:
    """Somebody asked for its end, and it has not ended."""
    return RUNS.c.cancel_reason.is_not(None) & RUNS.c.state.in_(sorted(ACTIVE))


def overdue(now: datetime) -> ColumnElement[bool]:
    """It waits for a replica, and its time is up."""
    return (RUNS.c.state == RunState.QUEUED) & (RUNS.c.deadline < now)


def unserved(graphs: Iterable[tuple[str, int]]) -> ColumnElement[bool]:
    """It waits for a replica with its graph, which is none of these: each a workflow's name and version."""
    return (RUNS.c.state == RunState.QUEUED) & tuple_(RUNS.c.workflow, RUNS.c.graph_version).not_in(sorted(graphs))
