"""Conditions that runs are selected by."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import ColumnElement, tuple_

from orchestrator.runs.states import ACTIVE, RunState
from orchestrator.runs.store.schema import RUNS


def asked_to_end() -> ColumnElement[bool]:
    """Somebody asked for its end, and it has not ended."""
    return RUNS.c.cancel_reason.is_not(None) & RUNS.c.state.in_(sorted(ACTIVE))


def overdue(now: datetime) -> ColumnElement[bool]:
    """It waits for a replica, and its time is up."""
    return (RUNS.c.state == RunState.QUEUED) & (RUNS.c.deadline < now)


def unserved(graphs: Iterable[tuple[str, int]]) -> ColumnElement[bool]:
    """It waits for a replica with its graph, which is none of these: each a workflow's name and version."""
    return (RUNS.c.state == RunState.QUEUED) & tuple_(RUNS.c.workflow, RUNS.c.graph_version).not_in(sorted(graphs))
