"""The database behind runs: their rows, events, tapes, artifacts and cases, on SQLite or Postgres."""

from orchestrator.runs.store.admission import QueueBound
from orchestrator.runs.store.artifacts import ArtifactRows
from orchestrator.runs.store.cases import CaseRow, CaseRows
from orchestrator.runs.store.claims import Claim
from orchestrator.runs.store.database import (
    ANSWER_SECONDS,
    BUSY_SECONDS,
    CONNECT_SECONDS,
    SQLITE_PRAGMAS,
    Database,
    open_database,
    sqlite_path,
)
from orchestrator.runs.store.events import EventRows, happened
from orchestrator.runs.store.queue import Limits, Queue
from orchestrator.runs.store.replicas import Replica, ReplicaRows
from orchestrator.runs.store.runs import RunRows
from orchestrator.runs.store.tape import TapeEntry, TapeRows
from orchestrator.runs.store.whole import to_its_end, whole

__all__ = [
    "ANSWER_SECONDS",
    "BUSY_SECONDS",
    "CONNECT_SECONDS",
    "SQLITE_PRAGMAS",
    "ArtifactRows",
    "CaseRow",
    "CaseRows",
    "Claim",
    "Database",
    "EventRows",
    "Limits",
    "Queue",
    "QueueBound",
    "Replica",
    "ReplicaRows",
    "RunRows",
    "TapeEntry",
    "TapeRows",
    "happened",
    "open_database",
    "sqlite_path",
    "to_its_end",
    "whole",
]
