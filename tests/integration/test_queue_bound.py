"""The queue's bound when many make runs at once, in one process and in several, on SQLite and Postgres."""

import asyncio
from collections import Counter
from dataclasses import replace

import grpc
import pytest
from codemend.orchestrator.v1 import runs_pb2 as pb
from codemend.rpc import error_detail
from google.rpc import error_details_pb2
from support.openai_server import scripted_openai
from support.orchestrator import CALL_SECONDS, running_orchestrator
from support.scripted_sandbox import scripted_sandbox
from support.staged import Staged, judged, staged_model
from support.store import new_run

from orchestrator.errors import QueueFull
from orchestrator.runs import RunFilter, RunState
from orchestrator.runs.store import QueueBound, RunRows, open_database


@pytest.mark.parametrize("waiting", [0, 1, 5, 70])
async def test_of_all_that_make_runs_at_once_as_many_do_as_may_wait(database_url, waiting):
    bound = QueueBound(waiting, 0, "nobody/1", 0)
    async with open_database(database_url) as one, open_database(database_url) as other:
        places = RunRows(one), RunRows(other)
        made = await asyncio.gather(
            *(places[n % 2].create(new_run(), bound=bound) for n in range(waiting + 30)), return_exceptions=True
        )
        waits = await places[0].list(RunFilter("", frozenset({RunState.QUEUED}), limit=200))
    assert Counter(type(one) for one in made) == Counter({tuple: waiting, QueueFull: 30})
    assert len(waits) == waiting


async def test_a_tenant_at_its_bound_leaves_the_others_their_places(database_url):
    bound = QueueBound(100, 3, "nobody/1", 0)
    async with open_database(database_url) as one, open_database(database_url) as other:
        places = RunRows(one), RunRows(other)
        tenants = ["greedy"] * 20 + ["modest"] * 3
        made = await asyncio.gather(
            *(places[n % 2].create(new_run(tenant=tenant), bound=bound) for n, tenant in enumerate(tenants)),
            return_exceptions=True,
        )
    kept = Counter(record[0].tenant for record in made if isinstance(record, tuple))
    assert kept == {"greedy": 3, "modest": 3}


async def test_a_crowd_of_callers_gets_the_free_places_and_the_queue_and_the_rest_is_told_to_come_back(
    database_url, tmp_path
):
    gate = asyncio.Event()
    settings = {"database_url": database_url} if database_url.startswith("postgres") else {}
    async with (
        scripted_sandbox(judged) as sandbox,
        scripted_openai(lambda body: replace(staged_model()(body), gate=gate)) as model,
        running_orchestrator(
            sandbox=sandbox.address,
            model_url=model.base_url,
            data_dir=tmp_path,
            max_concurrent_runs=3,
            queue_size=5,
            **settings,
        ) as client,
    ):
        made = await asyncio.gather(
            *(client.create(Staged(f"crowd{n}").spec()) for n in range(40)), return_exceptions=True
        )
        refused = [one for one in made if isinstance(one, grpc.aio.AioRpcError)]
        assert {one.code() for one in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert all(error_detail(one, error_details_pb2.RetryInfo).retry_delay.seconds >= 1 for one in refused)
        assert len(refused) == 40 - 3 - 5
        runs = (await client.stub.ListRuns(pb.ListRunsRequest(), timeout=CALL_SECONDS)).runs
        assert len(runs) == 3 + 5


async def test_all_that_repeat_one_request_get_its_run_though_it_took_the_last_place(database_url, tmp_path):
    gate = asyncio.Event()
    settings = {"database_url": database_url} if database_url.startswith("postgres") else {}
    async with (
        scripted_sandbox(judged) as sandbox,
        scripted_openai(lambda body: replace(staged_model()(body), gate=gate)) as model,
        running_orchestrator(
            sandbox=sandbox.address,
            model_url=model.base_url,
            data_dir=tmp_path,
            max_concurrent_runs=1,
            queue_size=1,
            **settings,
        ) as client,
    ):
        await client.create(Staged("first1").spec())
        repeats = await asyncio.gather(*(client.create(Staged("last1").spec(), "once") for _ in range(30)))
        assert len({run.run_id for run in repeats}) == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.create(Staged("late1").spec())
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
