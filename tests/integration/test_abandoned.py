"""Callers that leave: a run that nobody waits for ends, also one that was just being made, and calls end whole."""

import asyncio
import gc
import sqlite3
from contextlib import closing
from dataclasses import replace

import grpc
import pytest
from codemend.orchestrator.v1 import runs_pb2 as pb
from sqlalchemy import update
from support.openai_server import scripted_openai
from support.orchestrator import CALL_SECONDS, running_orchestrator
from support.postgres import running_postgres
from support.scripted_sandbox import scripted_sandbox
from support.staged import Staged, judged, staged_model
from support.store import new_run
from support.waiting import until

from orchestrator.runs import DirectoryStore
from orchestrator.runs.checkpoints import checkpoints_path, open_saver
from orchestrator.runs.housekeeping import DEAD_AFTER, housekeeping
from orchestrator.runs.pruning import Pruner, Retention
from orchestrator.runs.store import ReplicaRows, RunRows, open_database, sqlite_path, to_its_end
from orchestrator.runs.store.schema import REPLICAS


def stalled(gate):
    return lambda body: replace(staged_model()(body), gate=gate)


async def the_run_that_ends(client, reached=pb.RUN_STATE_CANCELLED):
    async with asyncio.timeout(60):
        while True:
            runs = (await client.stub.ListRuns(pb.ListRunsRequest(), timeout=CALL_SECONDS)).runs
            if runs and runs[0].state == reached:
                return runs[0]


async def test_a_run_that_was_being_made_when_its_caller_left_is_ended(tmp_path):
    gate = asyncio.Event()
    async with (
        scripted_sandbox(judged) as sandbox,
        scripted_openai(stalled(gate)) as model,
        running_orchestrator(sandbox=sandbox.address, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        path = tmp_path / "runs.sqlite"
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)) as held:
            await asyncio.to_thread(held.execute, "BEGIN IMMEDIATE")  # the service's own writers go on meanwhile
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.generate(Staged("left1").spec(), within=2)
            held.execute("COMMIT")
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        run = await the_run_that_ends(client)
    assert run.result.reason == "its Generate call was cancelled or ran out of time"


async def test_a_run_whose_caller_left_during_an_outage_is_ended_after_it(tmp_path, caplog):
    gate = asyncio.Event()
    with running_postgres(durable=True) as server:
        async with (
            scripted_sandbox(judged) as sandbox,
            scripted_openai(stalled(gate)) as model,
            running_orchestrator(
                sandbox=sandbox.address, model_url=model.base_url, data_dir=tmp_path, database_url=server.create()
            ) as client,
        ):
            call = asyncio.create_task(client.generate(Staged("left2").spec()))
            await model.wait_for_requests(1)
            server.stop()
            call.cancel()
            await until(lambda: "an abandoned run could not be ended" in caplog.text, 30)
            server.start()
            run = await the_run_that_ends(client)
    assert run.result.reason == "its Generate call was cancelled or ran out of time"


async def test_a_caller_cancelled_again_and_again_waits_for_the_end_of_its_work_and_nobody_complains():
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    begun, over, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work():
        begun.set()
        await over.wait()
        ended.set()
        raise ValueError("what nobody is there to hear")

    caller = asyncio.create_task(to_its_end(work()))
    await begun.wait()
    for n in range(3):
        caller.cancel(f"cancellation {n}")
        await turns()
        assert not caller.done()
    over.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()
    del caller
    await turns()
    gc.collect()
    await turns()
    assert complaints == []


async def test_a_run_is_made_whole_however_often_its_maker_is_cancelled(tmp_path):
    url = f"sqlite:///{tmp_path / 'runs.sqlite'}"
    async with open_database(url) as database:
        new = new_run()
        await cancelled_twice(RunRows(database).create(new), sqlite_path(url))
        assert (await RunRows(database).get(new.run_id)).run_id == new.run_id


async def test_a_checkpoint_is_deleted_whole_however_often_the_deletion_is_cancelled(tmp_path):
    url = f"sqlite:///{tmp_path / 'runs.sqlite'}"
    async with open_saver(url) as saver:
        await cancelled_twice(saver.adelete_thread("any"), checkpoints_path(sqlite_path(url)))
        await saver.adelete_thread("any")


async def cancelled_twice(work, path):
    """Cancels the work while somebody else writes to the file, and lets it go on then."""
    with closing(sqlite3.connect(path, isolation_level=None)) as held:
        held.execute("BEGIN IMMEDIATE")
        caller = asyncio.create_task(work)
        await turns()
        for _ in range(2):
            caller.cancel()
            await turns()
            assert not caller.done()
        held.execute("COMMIT")
    with pytest.raises(asyncio.CancelledError):
        await caller


async def turns():
    """Lets whoever can go on do so."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_heartbeats_of_replicas_that_died_long_ago_go(database_url, tmp_path):
    async with open_database(database_url) as database, open_saver(database_url) as saver:
        rows = ReplicaRows(database)
        for name in ("alive", "dead", "lately"):
            await rows.register(name, "1", "{}")
        heartbeat = {one.replica_id: one.heartbeat for one in await rows.all()}["alive"]
        async with database.write() as connection:
            for name, age in {"dead": 1.1 * DEAD_AFTER, "lately": 0.9 * DEAD_AFTER}.items():
                aged = update(REPLICAS).where(REPLICAS.c.replica_id == name).values(heartbeat=heartbeat - age)
                await connection.execute(aged)
        pruner = Pruner(database, saver, DirectoryStore(tmp_path / "artifacts"), Retention())
        async with housekeeping(pruner, rows), asyncio.timeout(30):
            while len(await rows.all()) == 3:
                pass
        assert {one.replica_id for one in await rows.all()} == {"alive", "lately"}
