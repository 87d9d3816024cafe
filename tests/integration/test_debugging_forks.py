"""Forks over gRPC: whole or not made at all, once per request, with options that fit their past."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import debug_pb2 as dpb
from codemend.orchestrator.v1 import debug_pb2_grpc, regression_pb2, regression_pb2_grpc
from codemend.orchestrator.v1 import runs_pb2 as pb
from codemend.rpc import error_detail, open_channel
from codemend.sandbox.v1 import sandbox_pb2
from google.rpc import error_details_pb2
from support.debugging import ADDS, RIGHT, SECONDS, WRONG, Debugger
from support.openai_server import scripted_openai
from support.orchestrator import orchestrator_process, spec
from support.sandbox import running_sandbox
from support.waiting import until

NOTE = json.dumps({"plan": {"note": "Use the plus sign."}})
PASSED = pb.RUN_OUTCOME_PASSED


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[str]:
    async with running_sandbox() as address:
        yield address


async def threads(d: Debugger) -> set[str]:
    """Ids of runs, made or not, that have checkpoints."""
    return {one.config["configurable"]["thread_id"] async for one in d.client.parts.runs.saver.alist(None)}


def fields(error: grpc.aio.AioRpcError) -> dict[str, str]:
    """What a refused request is refused for, by its fields."""
    found = error_detail(error, error_details_pb2.BadRequest)
    return {one.field: one.description for one in found.field_violations}


@pytest.mark.parametrize(
    ("values", "as_node"),
    [('{"base": 1}', "nope"), ('{"decision": {"target": "nowhere"}}', ""), ('{"nothing": 1}', "")],
)
async def test_a_fork_whose_edit_does_not_fit_leaves_nothing_behind(debug: Any, values: str, as_node: str) -> None:
    d = await debug(WRONG, RIGHT)
    run = await d.client.generate(spec(tests=ADDS))
    at = await d.at(run.run_id, "repair")
    for wait in (False, True):
        edit = dpb.StateEdit(values_json=values, as_node=as_node)
        error = await d.refused("ForkRun", run_id=run.run_id, checkpoint_id=at, edit=edit, wait=wait)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert await d.runs() == [run.run_id]
    assert await threads(d) == {run.run_id}


async def test_a_fork_that_the_full_queue_refuses_leaves_nothing_behind(debug: Any) -> None:
    never = asyncio.Event()
    d = await debug(WRONG, RIGHT, *[never] * 2, max_concurrent_runs=1, queue_size=1)
    run = await d.client.generate(spec(tests=ADDS))
    others = [await d.client.create(spec(tests=ADDS)) for _ in range(2)]
    error = await d.refused("ForkRun", run_id=run.run_id, checkpoint_id=await d.at(run.run_id, "repair"))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(await d.runs()) == 3
    assert await threads(d) <= {run.run_id, *(other.run_id for other in others)}
    for other in others:
        await d.client.cancel(other.run_id)


async def test_a_fork_whose_maker_dies_on_the_way_is_no_run(sandbox: str, tmp_path: Path) -> None:
    async with scripted_openai([WRONG, RIGHT, RIGHT]) as model:
        env = {"CODEMEND_DATA_DIR": str(tmp_path)}
        async with orchestrator_process(sandbox=sandbox, model_url=model.base_url, **env) as service:
            run = await service.client.generate(spec(tests=ADDS))
            with closing(sqlite3.connect(tmp_path / "runs.sqlite", isolation_level=None)) as held:
                held.execute("BEGIN IMMEDIATE")  # the fork's past can be written, and its record cannot
                async with open_channel(service.address) as channel:
                    stub = debug_pb2_grpc.DebugServiceStub(channel)
                    edit = dpb.StateEdit(values_json=NOTE, as_node="decide")
                    call = stub.ForkRun(dpb.ForkRunRequest(run_id=run.run_id, edit=edit, request_id="once"))
                    await until(lambda: _edited_copies(tmp_path, run.run_id) == 1, SECONDS)
                    service.process.kill()
                    with pytest.raises(grpc.aio.AioRpcError):
                        await call
        async with (
            orchestrator_process(sandbox=sandbox, model_url=model.base_url, **env) as service,
            open_channel(service.address) as channel,
        ):
            d = Debugger(service.client, debug_pb2_grpc.DebugServiceStub(channel), model)
            assert await d.runs() == [run.run_id]
            fork = (await d.call("ForkRun", run_id=run.run_id, edit=edit, request_id="once")).run
            await d.client.events(fork.run_id)
            assert (await d.client.get(fork.run_id)).result.outcome == PASSED
            assert await d.runs() == [fork.run_id, run.run_id]


def _edited_copies(folder: Path, run_id: str) -> int:
    """How many runs other than this have an edited checkpoint."""
    query = "SELECT count(*) FROM checkpoints WHERE thread_id <> ? AND CAST(metadata AS TEXT) LIKE '%\"update\"%'"
    with closing(sqlite3.connect(folder / "runs-checkpoints.sqlite")) as connection:
        return int(connection.execute(query, (run_id,)).fetchone()[0])


async def test_a_fork_whose_caller_leaves_while_its_record_is_written_is_whole(debug: Any, tmp_path: Path) -> None:
    d = await debug(WRONG, RIGHT, RIGHT)
    run = await d.client.generate(spec(tests=ADDS))
    edit = dpb.StateEdit(values_json=NOTE, as_node="decide")
    with closing(sqlite3.connect(tmp_path / "runs.sqlite", isolation_level=None)) as held:
        held.execute("BEGIN IMMEDIATE")
        call = d.stub.ForkRun(dpb.ForkRunRequest(run_id=run.run_id, edit=edit, request_id="once"))
        await until(lambda: _edited_copies(tmp_path, run.run_id) == 1, SECONDS)
        call.cancel()
        held.execute("ROLLBACK")
    fork = (await d.call("ForkRun", run_id=run.run_id, edit=edit, request_id="once")).run
    assert (await d.settled(fork.run_id)).result.outcome == PASSED
    assert await d.runs() == [fork.run_id, run.run_id]
    await until(lambda: _edited_copies(tmp_path, run.run_id) == 1, SECONDS)  # the copies of the one that is not made go


async def test_the_events_of_a_fork_tell_what_it_does_and_not_how_it_was_made(debug: Any) -> None:
    d = await debug(WRONG, RIGHT, RIGHT)
    run = await d.client.generate(spec(tests=ADDS))
    at = await d.at(run.run_id, "repair")
    fork = (await d.call("ForkRun", run_id=run.run_id, checkpoint_id=at)).run
    first, *rest = await d.client.events(fork.run_id)
    assert first.state_changed.state == pb.RUN_STATE_QUEUED
    assert not [event for event in rest if event.HasField("wait")]
    edit = dpb.StateEdit(values_json=NOTE)
    waiting = (await d.call("ForkRun", run_id=run.run_id, checkpoint_id=at, edit=edit, wait=True)).run
    assert waiting.wait.reason == "edited fork"
    assert waiting.last_sequence == 3
    await d.client.cancel(waiting.run_id)
    kinds = [event.WhichOneof("payload") for event in await d.client.events(waiting.run_id)]
    assert kinds[:3] == ["state_changed", "state_edited", "wait"]


async def test_a_fork_stops_at_its_breakpoints_but_not_where_it_begins(debug: Any) -> None:
    d = await debug(WRONG, RIGHT, RIGHT)
    run = await d.client.generate(spec(tests=ADDS))
    options = pb.RunOptions(interrupt_before=["repair", "finalize"])
    at = await d.at(run.run_id, "repair")
    fork = (await d.call("ForkRun", run_id=run.run_id, checkpoint_id=at, options=options)).run
    assert (await d.settled(fork.run_id)).wait.reason == "before finalize"


MENDED = sandbox_pb2.File(path="solution.py", content=b"def add(a, b):\n    return b + a\n")


@pytest.mark.parametrize(
    "other",
    [
        {"checkpoint_id": ""},
        {"wait": False},
        {"edit": None},
        {"edit": dpb.StateEdit(files=[MENDED], as_node="repair")},
        {"edit": dpb.StateEdit(values_json='{"base": 0}', files=[MENDED])},
        {"options": pb.RunOptions(max_attempts=5)},
        {"labels": {"try": "2"}},
        {"run_id": ""},
    ],
    ids=["checkpoint", "wait", "no edit", "as_node", "values", "options", "labels", "run"],
)
async def test_a_request_id_is_of_one_fork_alone(debug: Any, other: dict[str, Any]) -> None:
    d = await debug(WRONG, RIGHT)
    run = await d.client.generate(spec(tests=ADDS))
    twin = (await d.call("ForkRun", run_id=run.run_id, checkpoint_id=await d.at(run.run_id, "repair"), wait=True)).run
    wanted = {
        "request_id": "once",
        "run_id": run.run_id,
        "checkpoint_id": await d.at(run.run_id, "execute"),
        "edit": dpb.StateEdit(files=[MENDED]),
        "wait": True,
    }
    made = (await d.call("ForkRun", **wanted)).run
    assert (await d.call("ForkRun", **wanted)).run.run_id == made.run_id
    changed = {**wanted, **other}
    error = await d.refused("ForkRun", **{**changed, "run_id": changed["run_id"] or twin.run_id})
    assert error.code() == grpc.StatusCode.ALREADY_EXISTS
    assert made.run_id in error.details()
    assert await d.runs() == [made.run_id, twin.run_id, run.run_id]


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_equal_forks_at_one_time_are_one_fork_also_once_it_has_ended(
    debug: Any, request: Any, database: str
) -> None:
    url = request.getfixturevalue("postgres_url") if database == "postgres" else ""
    d = await debug(WRONG, RIGHT, RIGHT, database_url=url)
    run = await d.client.generate(spec(tests=ADDS))
    wanted = {"request_id": "once", "run_id": run.run_id, "checkpoint_id": await d.at(run.run_id, "repair")}
    answers = await asyncio.gather(*(d.call("ForkRun", **wanted) for _ in range(5)))
    (fork_id,) = {answer.run.run_id for answer in answers}
    assert (await d.settled(fork_id)).result.outcome == PASSED
    assert (await d.call("ForkRun", **wanted)).run.run_id == fork_id
    assert await threads(d) == {run.run_id, fork_id}


async def test_candidates_over_the_original_s_attempts_are_refused_wherever_options_are_laid_over(debug: Any) -> None:
    d = await debug(RIGHT)
    run = await d.client.generate(spec(tests=ADDS, max_attempts=6))
    options = pb.RunOptions(candidates=9)
    first = await d.at(run.run_id, "__start__")
    fork = await d.refused("ForkRun", run_id=run.run_id, checkpoint_id=first, options=options)
    replay = await d.refused("ReplayRun", run_id=run.run_id, options=options)
    wanted = {"options.candidates": "must be at most max_attempts (6), not 9"}
    assert (fields(fork), fields(replay)) == (wanted, wanted)
    assert await d.runs() == [run.run_id]


async def test_fewer_attempts_than_the_original_s_candidates_are_refused(debug: Any) -> None:
    d = await debug(*[RIGHT] * 3)
    run = await d.client.generate(spec(tests=ADDS, candidates=3))
    error = await d.refused("ReplayRun", run_id=run.run_id, options=pb.RunOptions(max_attempts=2))
    assert fields(error) == {"options.max_attempts": "must be at least candidates (3), not 2"}


async def test_candidates_over_a_case_s_attempts_fail_it_and_those_that_fit_are_played(debug: Any) -> None:
    d = await debug(RIGHT)
    run = await d.client.generate(spec(tests=ADDS, max_attempts=6))
    async with open_channel(d.client.address) as channel:
        keeper = regression_pb2_grpc.RegressionServiceStub(channel)
        await keeper.CreateCase(regression_pb2.CreateCaseRequest(run_id=run.run_id, name="add"), timeout=SECONDS)
        results = {}
        for candidates in (9, 5, 1):
            request = regression_pb2.RunSuiteRequest(options=pb.RunOptions(candidates=candidates))
            first, *_ = [answer async for answer in keeper.RunSuite(request, timeout=SECONDS)]
            results[candidates] = first.case_result
    assert "options.candidates: must be at most max_attempts (6), not 9" in results[9].reason
    assert "max_attempts" not in results[5].reason
    assert [result.passed for result in results.values()] == [False, False, True]


async def test_a_fork_has_the_first_drafts_of_the_run_that_it_comes_from(debug: Any) -> None:
    d = await debug(WRONG, RIGHT)
    run = await d.client.generate(spec(tests=ADDS))
    for following in ("__start__", "repair"):
        wanted = {"run_id": run.run_id, "checkpoint_id": await d.at(run.run_id, following)}
        error = await d.refused("ForkRun", **wanted, options=pb.RunOptions(candidates=3))
        assert "must be the original's 1, not 3" in fields(error)["options.candidates"]
    made = (await d.call("ForkRun", **wanted, options=pb.RunOptions(candidates=1), wait=True)).run
    assert await d.runs() == [made.run_id, run.run_id]


async def test_a_fork_is_refused_what_the_sandbox_does_not_offer(debug: Any) -> None:
    d = await debug(WRONG, RIGHT)
    run = await d.client.generate(spec(tests=ADDS))
    options = pb.RunOptions(environment="nope", limits=sandbox_pb2.Limits(processes=100_000))
    at = await d.at(run.run_id, "repair")
    fork = await d.refused("ForkRun", run_id=run.run_id, checkpoint_id=at, options=options)
    live = await d.refused("ReplayRun", run_id=run.run_id, live_from="execute", options=options)
    for error in (fork, live):
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert set(fields(error)) == {"options.environment", "options.limits.processes"}
    assert await d.runs() == [run.run_id]


@pytest.mark.parametrize(
    ("following", "attempts", "due"),
    [("repair", 1, 2), ("execute", 1, 2), ("decide", 1, 2), ("finalize", 1, 2), ("repair", 2, 0), ("decide", 2, 0)],
)
async def test_a_fork_has_at_least_the_attempts_that_are_made_or_come_next(
    debug: Any, following: str, attempts: int, due: int
) -> None:
    d = await debug(WRONG, RIGHT, RIGHT)
    run = await d.client.generate(spec(tests=ADDS))
    wanted = {
        "run_id": run.run_id,
        "checkpoint_id": await d.at(run.run_id, following),
        "options": pb.RunOptions(max_attempts=attempts),
    }
    if due:
        fault = f"must be at least {due}, not {attempts}: attempt {due} is made by then, or comes next"
        assert fields(await d.refused("ForkRun", **wanted)) == {"options.max_attempts": fault}
        assert await d.runs() == [run.run_id]
    else:
        made = (await d.call("ForkRun", **wanted)).run
        assert len((await d.settled(made.run_id)).result.attempts) == attempts


async def test_the_node_in_whose_name_a_fork_was_edited_is_kept_and_replayed(debug: Any) -> None:
    d = await debug(WRONG, RIGHT, RIGHT)
    run = await d.client.generate(spec(tests=ADDS))
    at = await d.at(run.run_id, "finalize")
    last = (await d.call("GetCheckpoint", run_id=run.run_id, checkpoint_id=at)).checkpoint
    edit = dpb.StateEdit(values_json='{"base": 1}', as_node="execute")
    made = (await d.call("ForkRun", run_id=run.run_id, checkpoint_id=at, edit=edit)).run
    fork = await d.settled(made.run_id)
    (told,) = [event.state_edited for event in await d.client.events(fork.run_id) if event.HasField("state_edited")]
    assert (told.as_node, list(told.fields), told.parent_checkpoint_id) == ("execute", ["base"], last.checkpoint_id)
    replayed = await d.call("ReplayRun", run_id=fork.run_id)
    assert not replayed.HasField("divergence"), replayed.divergence
    assert replayed.equal_steps == len((await d.call("ListCheckpoints", run_id=fork.run_id)).checkpoints)
