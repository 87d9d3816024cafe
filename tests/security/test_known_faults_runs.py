"""Faults that other agent services were seen to have with runs, each as a test of what happens here instead.

On resuming, interrupting, cancelling, working on one run at once, changed graphs, and checkpoints that were tampered
with. The replicas' own tests (`test_replicas.py`, `test_crashes.py`) hold those that need two processes or a crash.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import grpc
import ormsgpack
import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import debug_pb2, debug_pb2_grpc
from codemend.orchestrator.v1 import runs_pb2 as pb
from codemend.rpc import open_channel
from sqlalchemy import update
from support.openai_server import scripted_openai
from support.orchestrator import CALL_SECONDS, Client, running_orchestrator
from support.scripted_sandbox import scripted_sandbox
from support.staged import Staged, judged, staged_model

from orchestrator.runs.checkpoints import serializer
from orchestrator.runs.store.schema import RUNS
from orchestrator.workflows import CODEGEN, WORKFLOWS

REFUSED = grpc.StatusCode.FAILED_PRECONDITION
VERSION = WORKFLOWS[CODEGEN].version
OTHER_VERSION = VERSION + 7


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[str]:
    async with scripted_sandbox(judged) as service:
        yield service.address


@pytest_asyncio.fixture
async def service(sandbox: str, tmp_path: Path) -> AsyncIterator[Client]:
    async with (
        scripted_openai(staged_model()) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        yield client


class Debugger:
    """Resumes over gRPC."""

    def __init__(self, client: Client) -> None:
        self._channel = open_channel(client.address)
        self._stub = debug_pb2_grpc.DebugServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def resume(self, run_id: str, checkpoint_id: str = "", **fields) -> pb.Run:
        request = debug_pb2.ResumeRunRequest(run_id=run_id, checkpoint_id=checkpoint_id, **fields)
        return (await self._stub.ResumeRun(request, timeout=CALL_SECONDS)).run


async def waiting(client: Client, after: int = 0, run_id: str = "", **task) -> pb.RunEvent:
    """The next event that says that the run waits; a new run where none is named."""
    run_id = run_id or (await client.create(Staged("fault1", **task).spec())).run_id
    return await client.wait_for(run_id, lambda event: event.HasField("wait") and event.sequence > after)


async def test_d3_of_many_that_resume_a_run_at_once_one_does_and_the_others_are_told(service: Client) -> None:
    told = await waiting(service, stops=("execute",))
    async with Debugger(service) as debugger:
        asked = (debugger.resume(told.run_id, told.wait.checkpoint_id) for _ in range(5))
        answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    events = await service.events(told.run_id)
    assert len(refused) == 4
    assert {error.code() for error in refused} <= {REFUSED, grpc.StatusCode.ABORTED}
    assert sum(event.node_started.node == "execute" for event in events) == 1


async def test_d6_a_second_resume_is_refused_and_not_passed_over(service: Client) -> None:
    told = await waiting(service, stops=("execute",))
    async with Debugger(service) as debugger:
        await debugger.resume(told.run_id, told.wait.checkpoint_id)
        await service.events(told.run_id)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await debugger.resume(told.run_id, told.wait.checkpoint_id)
    assert caught.value.code() == REFUSED
    assert "SUCCEEDED" in caught.value.details()


async def test_d7_an_answer_to_a_question_that_nobody_asked_is_refused(service: Client) -> None:
    told = await waiting(service, stops=("execute",))
    async with Debugger(service) as debugger:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await debugger.resume(told.run_id, answers={"nobody-asked": "true"})
    assert caught.value.code() == REFUSED
    assert "nobody-asked" in caught.value.details()
    assert (await service.get(told.run_id)).state == pb.RUN_STATE_WAITING


async def test_d8_breakpoints_hold_after_every_resume_and_after_a_new_start(sandbox: str, tmp_path: Path) -> None:
    stops = []
    async with scripted_openai(staged_model()) as model:
        after, run_id = 0, ""
        for _ in range(3):  # a service of its own each time
            async with running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as client:
                if run_id:
                    async with Debugger(client) as debugger:
                        await debugger.resume(run_id)
                told = await waiting(client, after, run_id, right_at=2, stops=("execute",))
                after, run_id = told.sequence, told.run_id
                events = await client.get(run_id)
                stops.append((told.wait.reason, events.state))
    assert stops == [("before execute", pb.RUN_STATE_WAITING)] * 3
    assert len(model.requests) == 3


async def test_d9_and_d10_a_waiting_run_is_cancelled_at_once_and_cannot_be_resumed(service: Client) -> None:
    told = await waiting(service, stops=("execute",))
    ended = await service.cancel(told.run_id, "not wanted")
    async with Debugger(service) as debugger:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await debugger.resume(told.run_id)
    assert (ended.state, ended.result.reason) == (pb.RUN_STATE_CANCELLED, "not wanted")
    assert ended.result.delivered_attempt == 1
    assert caught.value.code() == REFUSED


async def test_d11_events_are_numbered_without_gaps_from_any_number_on(service: Client) -> None:
    run = await service.generate(Staged("numbered1", right_at=1).spec())
    events = await service.events(run.run_id)
    assert [event.sequence for event in events] == list(range(1, run.last_sequence + 1))
    for after in range(len(events) + 1):
        assert await service.events(run.run_id, after) == events[after:]


async def test_d18_a_run_of_another_graph_is_not_resumed_and_both_versions_are_named(service: Client) -> None:
    told = await waiting(service, stops=("execute",))
    await set_version(service, told.run_id)
    async with Debugger(service) as debugger:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await debugger.resume(told.run_id)
    assert caught.value.code() == REFUSED
    assert f"version {OTHER_VERSION}" in caught.value.details()
    assert f"version {VERSION}" in caught.value.details()
    assert (await service.get(told.run_id)).state == pb.RUN_STATE_WAITING


async def set_version(client: Client, run_id: str) -> None:
    """Lets a run have been begun by a service with another graph."""
    assert client.parts is not None
    async with client.parts.runs.database.write() as connection:
        await connection.execute(update(RUNS).where(RUNS.c.run_id == run_id).values(graph_version=OTHER_VERSION))


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5])
def test_d19_a_checkpoint_that_names_a_function_calls_nothing(tmp_path: Path, code: int) -> None:
    proof = tmp_path / "called"
    argument = f"touch {proof}"
    for module in ("os", "posix"):
        named = {
            0: (module, "system", argument),
            1: (module, "system", [argument]),
            2: (module, "system", {"command": argument}),
            3: (module, "system", argument, "__call__"),
            4: (module, "system", argument, "__call__"),
            5: (module, "system", {"command": argument}, "__call__"),
        }[code]
        forged = ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(named)))
        try:
            given = serializer().loads_typed(("msgpack", forged))
        except Exception as error:  # noqa: BLE001 - a refusal of any kind is right
            given = type(error).__name__
        assert given != 0, f"the function was called: {given!r}"
    assert not proof.exists()
