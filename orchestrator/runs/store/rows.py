"""Between a run's record and its row."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import RowMapping

from orchestrator.runs.records import Breakpoints, NewRun, Origin, OriginKind, Resume, RunRecord, Wait
from orchestrator.runs.states import RunResult, RunState
from orchestrator.runs.store.schema import RUNS
from orchestrator.runs.store.text import as_text, from_text
from orchestrator.workflows import RunSpec, encode

COLUMNS = [column for column in RUNS.c if column.name != "spec"]  # which may have megabytes
_MICROSECOND = timedelta(microseconds=1)


def new_row(new: NewRun) -> dict[str, Any]:
    """The row of a run to be made."""
    timeout, waits = new.spec.options.timeout, new.wait is not None
    return {
        "run_id": new.run_id,
        "tenant": new.spec.tenant,
        "request_id": new.request_id or None,
        "workflow": new.spec.workflow,
        "graph_version": new.graph_version,
        "digest": new.digest,
        "spec": encode(RunSpec, new.spec),
        "priority": new.spec.options.priority,
        "state": RunState.WAITING if waits else RunState.QUEUED,
        "epoch": 0,
        "create_time": new.create_time,
        "deadline": None if waits else new.create_time + timeout,
        "time_left_us": timeout // _MICROSECOND if waits else None,
        "breakpoints": as_text(Breakpoints, new.breakpoints),
        "wait": as_text(Wait, new.wait),
        "resume": as_text(Resume, new.resume),
        "last_sequence": 0,
        "origin_kind": new.origin.kind if new.origin is not None else None,
        "origin_run_id": new.origin.run_id if new.origin is not None else None,
        "origin_checkpoint_id": new.origin.checkpoint_id if new.origin is not None else None,
        "origin_live_from": new.origin.live_from if new.origin is not None else None,
        "recoveries": 0,
        "artifacts_since": new.create_time,
    }


def read_record(row: RowMapping, labels: Mapping[str, Mapping[str, str]]) -> RunRecord:
    """The record of a row, with its own among the labels of several runs."""
    left = row["time_left_us"]
    return RunRecord(
        run_id=row["run_id"],
        tenant=row["tenant"],
        request_id=row["request_id"] or "",
        workflow=row["workflow"],
        graph_version=row["graph_version"],
        digest=row["digest"],
        priority=row["priority"],
        state=RunState(row["state"]),
        epoch=row["epoch"],
        owner=row["owner"] or "",
        create_time=row["create_time"],
        start_time=row["start_time"],
        end_time=row["end_time"],
        deadline=row["deadline"],
        time_left=None if left is None else left * _MICROSECOND,
        cancel_reason=row["cancel_reason"],
        breakpoints=from_text(Breakpoints, row["breakpoints"]) or Breakpoints(),
        wait=from_text(Wait, row["wait"]),
        resume=from_text(Resume, row["resume"]),
        result=from_text(RunResult, row["result"]),
        last_sequence=row["last_sequence"],
        origin=_origin(row),
        recoveries=row["recoveries"],
        labels=labels.get(row["run_id"], {}),
    )


def _origin(row: RowMapping) -> Origin | None:
    if row["origin_kind"] is None:
        return None
    return Origin(
        OriginKind(row["origin_kind"]),
        row["origin_run_id"],
        row["origin_checkpoint_id"] or "",
        row["origin_live_from"] or "",
    )
