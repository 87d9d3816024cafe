"""The right to write for a run that is at work: the run's id and the epoch in which it was claimed."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_

from orchestrator.runs.states import RunState
from orchestrator.runs.store.schema import RUNS


@dataclass(frozen=True, slots=True)
class Claim:
    """Lost as soon as the run is claimed anew, waits, is handed back, or ends."""

    run_id: str
    epoch: int


def held(claim: Claim) -> ColumnElement[bool]:
    """The condition that the claim is not lost."""
    return and_(RUNS.c.run_id == claim.run_id, RUNS.c.epoch == claim.epoch, RUNS.c.state == RunState.RUNNING)
