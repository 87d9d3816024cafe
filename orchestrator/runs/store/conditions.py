"""Conditions that runs are selected by."""

from sqlalchemy import ColumnElement

from orchestrator.runs.states import ACTIVE, RunState
from orchestrator.runs.store.schema import RUNS


def asked_to_end() -> ColumnElement[bool]:
    """Somebody asked for its end, and it has not ended."""
    return RUNS.c.cancel_reason.is_not(None) & RUNS.c.state.in_(sorted(ACTIVE))


def running() -> ColumnElement[bool]:
    """A replica works on it, or should."""
    return RUNS.c.state == RunState.RUNNING


def queued() -> ColumnElement[bool]:
    """It waits for a replica."""
    return RUNS.c.state == RunState.QUEUED
