"""Runs: their life from request to result, their events, and what is kept of them."""

from orchestrator.runs.artifacts import DirectoryStore
from orchestrator.runs.assembly import RunParts, RunSettings, running_runs
from orchestrator.runs.events import NewEvent, Payload, RunEvent, StateChanged, StateEdited
from orchestrator.runs.identity import created_at, digest, new_run_id
from orchestrator.runs.manager import Policy, RunManager, new_run
from orchestrator.runs.observing import Observer
from orchestrator.runs.pruning import Retention
from orchestrator.runs.records import (
    Breakpoints,
    Interrupt,
    NewRun,
    Origin,
    OriginKind,
    Resume,
    RunFilter,
    RunRecord,
    Wait,
)
from orchestrator.runs.states import TERMINAL, RunResult, RunState
from orchestrator.runs.store import Limits

__all__ = [
    "TERMINAL",
    "Breakpoints",
    "DirectoryStore",
    "Interrupt",
    "Limits",
    "NewEvent",
    "NewRun",
    "Observer",
    "Origin",
    "OriginKind",
    "Payload",
    "Policy",
    "Resume",
    "Retention",
    "RunEvent",
    "RunFilter",
    "RunManager",
    "RunParts",
    "RunRecord",
    "RunResult",
    "RunSettings",
    "RunState",
    "StateChanged",
    "StateEdited",
    "Wait",
    "created_at",
    "digest",
    "new_run",
    "new_run_id",
    "running_runs",
]
