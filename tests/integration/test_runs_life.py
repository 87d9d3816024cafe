"""The life of a queued run over real gRPC: limits, turns between tenants, priorities, deadlines, a run that kills.

The model is scripted and answers only when it is let; the sandbox's verdicts are scripted, too.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import runs_pb2 as pb
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from support.openai_server import Scripted, scripted_openai
from support.orchestrator import CALL_SECONDS, Client, running_orchestrator
from support.scripted_sandbox import scripted_sandbox
from support.staged import Staged, judged, prompt_of, reply, stage_of
from support.store import new_run

from orchestrator.runs.store import Claim, EventRows, Limits, Queue, RunRows, happened, open_database
from orchestrator.workflows import WORKFLOWS, NodeFinished

VERSIONS = {name: workflow.version for name, workflow in WORKFLOWS.items()}
PASSED = pb.RUN_OUTCOME_PASSED


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[str]:
    async with scripted_sandbox(judged) as service:
        yield service.address


class Gated:
    """A model that answers nothing until it is let; `most` is how many calls of one kind it had at one time."""

    def __init__(self, kind: Callable[[str], str] = lambda _: "") -> None:
        self.gate = asyncio.Event()
        self.asked: list[str] = []
        self.most: dict[str, int] = {}
        self._kind = kind
        self._now: dict[str, int] = {}

    async def __call__(self, body) -> Scripted:
        prompt = prompt_of(body)
        name, _ = stage_of(prompt)
        kind = self._kind(name)
        self.asked.append(name)
        self._now[kind] = self._now.get(kind, 0) + 1
        self.most[kind] = max(self.most.get(kind, 0), self._now[kind])
        await self.gate.wait()
        self._now[kind] -= 1
        return Scripted(text=reply(prompt))


async def create(client: Client, task: Staged, tenant: str = "", **options) -> pb.Run:
    request = pb.CreateRunRequest(spec=task.spec(**options))
    metadata = [("x-codemend-tenant", tenant)] if tenant else []
    return (await client.stub.CreateRun(request, timeout=CALL_SECONDS, metadata=metadata)).run


async def all_ended(client: Client, runs: list[pb.Run]) -> list[pb.Run]:
    for run in runs:
        await client.events(run.run_id)
    return [await client.get(run.run_id) for run in runs]


async def test_no_more_runs_are_at_work_than_there_is_room_for(sandbox: str, tmp_path: Path) -> None:
    script = Gated()
    async with (
        scripted_openai(script) as model,
        running_orchestrator(
            sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path, max_concurrent_runs=2
        ) as client,
    ):
        runs = [await create(client, Staged(f"crowd{number}")) for number in range(5)]
        await model.wait_for_requests(2)
        states = [(await client.get(run.run_id)).state for run in runs]
        script.gate.set()
        ended = await all_ended(client, runs)
    assert states == [pb.RUN_STATE_RUNNING] * 2 + [pb.RUN_STATE_QUEUED] * 3
    assert script.most == {"": 2}
    assert script.asked == [f"crowd{number}" for number in range(5)]
    assert [run.result.outcome for run in ended] == [PASSED] * 5


async def test_a_tenant_has_no_more_runs_at_work_than_it_may(sandbox: str, tmp_path: Path) -> None:
    script = Gated(lambda name: name.rstrip("0123456789"))
    async with (
        scripted_openai(script) as model,
        running_orchestrator(
            sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path, tenant_concurrent_runs=1
        ) as client,
    ):
        runs = [await create(client, Staged(f"a{number}"), "a") for number in range(3)]
        runs += [await create(client, Staged(f"b{number}"), "b") for number in range(3)]
        await model.wait_for_requests(2)
        script.gate.set()
        ended = await all_ended(client, runs)
    assert set(script.asked[:2]) == {"a0", "b0"}
    assert script.most == {"a": 1, "b": 1}
    assert [run.result.outcome for run in ended] == [PASSED] * 6


async def test_tenants_take_turns_and_within_one_the_lowest_priority_number_goes_first(
    sandbox: str, tmp_path: Path
) -> None:
    script = Gated()
    async with (
        scripted_openai(script) as model,
        running_orchestrator(
            sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path, max_concurrent_runs=1
        ) as client,
    ):
        runs = [await create(client, Staged("a0"), "a")]
        await model.wait_for_requests(1)
        runs += [
            await create(client, Staged("a1"), "a", priority=5),
            await create(client, Staged("a2"), "a", priority=1),
            await create(client, Staged("a3"), "a", priority=5),
            await create(client, Staged("b0"), "b", priority=1000),
        ]
        script.gate.set()
        await all_ended(client, runs)
    assert script.asked == ["a0", "b0", "a2", "a1", "a3"]


async def test_a_run_whose_time_is_up_in_the_queue_ends_there(sandbox: str, tmp_path: Path) -> None:
    script = Gated()
    async with (
        scripted_openai(script) as model,
        running_orchestrator(
            sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path, max_concurrent_runs=1
        ) as client,
    ):
        first = await create(client, Staged("first0"))
        await model.wait_for_requests(1)
        late = await create(client, Staged("late0"), timeout=Duration(seconds=1))
        events = await client.events(late.run_id)
        ended = await client.get(late.run_id)
        script.gate.set()
        await all_ended(client, [first])
    assert ended.result.outcome == pb.RUN_OUTCOME_BUDGET_EXHAUSTED
    assert "in the queue" in ended.result.reason
    assert not ended.HasField("start_time")
    assert [event.state_changed.state for event in events] == [pb.RUN_STATE_QUEUED, pb.RUN_STATE_FAILED]
    assert script.asked == ["first0"]


async def test_a_run_beyond_the_queue_is_refused_and_told_when_to_come_back(sandbox: str, tmp_path: Path) -> None:
    script = Gated()
    async with (
        scripted_openai(script) as model,
        running_orchestrator(
            sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path, max_concurrent_runs=1, queue_size=1
        ) as client,
    ):
        runs = [await create(client, Staged("full0"))]
        await model.wait_for_requests(1)
        runs.append(await create(client, Staged("full1")))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await create(client, Staged("full2"))
        script.gate.set()
        ended = await all_ended(client, runs)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    status, info = rpc_status.from_call(caught.value), error_details_pb2.RetryInfo()
    assert any(item.Unpack(info) for item in status.details)
    assert info.retry_delay.ToTimedelta().total_seconds() > 0
    assert [run.result.outcome for run in ended] == [PASSED] * 2


@pytest.mark.parametrize(("gets_on", "outcome"), [(False, pb.RUN_OUTCOME_ERROR), (True, pb.RUN_OUTCOME_UNVERIFIED)])
async def test_a_run_that_kills_its_replicas_is_given_up_and_one_that_gets_on_is_not(
    sandbox: str, tmp_path: Path, *, gets_on: bool, outcome: int
) -> None:
    url = f"sqlite:///{tmp_path / 'runs.sqlite'}"
    async with open_database(url) as database:
        runs, queue = RunRows(database), Queue(database, Limits())
        new = new_run(Staged("deadly1").spec().codegen.task, graph_version=VERSIONS["codegen"])
        await runs.create(new)
        for life in range(1, 8):
            (record,) = await queue.claim(f"dead/{life}", VERSIONS, 1)
            if gets_on:
                finished = NodeFinished("generate", life, timedelta(), step_id=f"step-{life}")
                await EventRows(database).append(Claim(new.run_id, record.epoch), [happened(finished)])
            if life < 7:
                assert await runs.take_from(new.run_id, f"dead/{life}", record.epoch, "its replica dead died")
    script = Gated()
    script.gate.set()
    async with (
        scripted_openai(script) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        events = await client.events(new.run_id)
        ended = await client.get(new.run_id)
    assert ended.recoveries == 7
    assert ended.result.outcome == outcome, ended.result.reason
    assert ("died before a step ended" in ended.result.reason) is not gets_on
    assert bool(script.asked) is gets_on
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
