"""Runs: their life from request to result, their events, and what is kept of them."""

from orchestrator.runs.artifacts import DirectoryStore
from orchestrator.runs.checkpoints import open_saver
from orchestrator.runs.engine import CodegenEngine
from orchestrator.runs.events import EventLog, Payload, RunEvent, StateChanged
from orchestrator.runs.housekeeping import housekeeping
from orchestrator.runs.manager import Engine, Policy, RunManager
from orchestrator.runs.run import Run
from orchestrator.runs.states import RunResult, RunState

__all__ = [
    "CodegenEngine",
    "DirectoryStore",
    "Engine",
    "EventLog",
    "Payload",
    "Policy",
    "Run",
    "RunEvent",
    "RunManager",
    "RunResult",
    "RunState",
    "StateChanged",
    "housekeeping",
    "open_saver",
]
