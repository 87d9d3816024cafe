"""Runs to be stored, for tests of the database: requests, results, events and tape entries made up in one line each."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from orchestrator.runs import NewRun, RunState, digest, new_run_id
from orchestrator.runs.states import RunResult
from orchestrator.runs.store import Claim, Database, Limits, Queue, RunRows, TapeEntry
from orchestrator.workflows import CodegenTask, Outcome, RunOptions, RunSpec

VERSIONS = {"codegen": 1}
PASSED = RunResult(Outcome.PASSED, "attempt 1 passed", 1)
CANCELLED = RunResult(Outcome.CANCELLED, "asked to")


def new_run(task: str = "double a number", request_id: str = "", **changes) -> NewRun:
    """A run to be made; `changes` are of its spec or of itself."""
    of_spec = {key: changes.pop(key) for key in ("tenant", "labels") if key in changes}
    timeout = changes.pop("timeout", timedelta(minutes=10))
    spec = RunSpec("codegen", CodegenTask(task), RunOptions(timeout=timeout), **of_spec)
    now = datetime.now(UTC)
    return replace(NewRun(new_run_id(now), request_id, spec, digest(spec), 1, now), **changes)


async def claimed(database: Database, owner: str = "one/1", **changes) -> Claim:
    """A run at work."""
    record, _ = await RunRows(database).create(new_run(**changes))
    given = await Queue(database, Limits()).claim(owner, VERSIONS, 1)
    assert [found.run_id for found in given] == [record.run_id], "another run was in the queue"
    return Claim(record.run_id, given[0].epoch)


async def ended(database: Database, result: RunResult = PASSED, **changes) -> str:
    """Id of a run that has ended."""
    claim = await claimed(database, **changes)
    assert await RunRows(database).finish(claim, result)
    return claim.run_id


def entry(name: str, step_id: str = "step", response: str = "{}") -> TapeEntry:
    """An entry of a tape."""
    return TapeEntry(step_id, name, "model", "0" * 64, "{}", response, timedelta(seconds=1.5))


ENDED = {RunState.SUCCEEDED, RunState.CANCELLED, RunState.FAILED}
