"""Runs over both services' stubs, for tests that take them apart: an orchestrator, its model, and what they need."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from codemend.orchestrator.v1 import debug_pb2 as pb
from codemend.orchestrator.v1 import debug_pb2_grpc, runs_pb2
from codemend.rpc import open_channel

from orchestrator.runs import RunState
from support.openai_server import ScriptedServer, scripted_openai
from support.orchestrator import Client, fence, running_orchestrator, spec

SECONDS = 60
RIGHT = fence("def add(a, b):\n    return a + b")
WRONG = fence("def add(a, b):\n    return a - b")
ADDS = {"test_solution.py": "from solution import add\n\ndef test_one():\n    assert add(1, 2) == 3\n"}


class Debugger:
    """An orchestrator, its model, and both stubs."""

    def __init__(self, client: Client, stub: Any, model: ScriptedServer) -> None:
        self.client, self.stub, self.model = client, stub, model

    async def call(self, name: str, **fields: Any) -> Any:
        """One call of DebugService."""
        return await getattr(self.stub, name)(getattr(pb, f"{name}Request")(**fields), timeout=SECONDS)

    async def refused(self, name: str, **fields: Any) -> grpc.aio.AioRpcError:
        """The error of a call that is refused."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.call(name, **fields)
        return caught.value

    async def at(self, run_id: str, *following: str) -> str:
        """Id of a run's newest checkpoint after which these nodes come."""
        found = (await self.call("ListCheckpoints", run_id=run_id)).checkpoints
        return next(one.checkpoint_id for one in found if list(one.next) == list(following))

    async def runs(self) -> list[str]:
        """Ids of all runs, newest first."""
        answer = await self.client.stub.ListRuns(runs_pb2.ListRunsRequest(), timeout=SECONDS)
        return [run.run_id for run in answer.runs]

    async def settled(self, run_id: str) -> runs_pb2.Run:
        """The run, once it waits or has ended."""
        idle = frozenset(RunState) - {RunState.QUEUED, RunState.RUNNING}
        async with asyncio.timeout(SECONDS):
            await self.client.parts.runs.manager.wait_until(run_id, idle)
        return await self.client.get(run_id)

    async def stopped(self, **options: Any) -> runs_pb2.Run:
        """A new run, once it waits at its first breakpoint."""
        made = await self.client.create(spec(tests=ADDS, **options))
        run = await self.settled(made.run_id)
        assert run.state == runs_pb2.RUN_STATE_WAITING
        return run

    async def go_on(self, run_id: str, **fields: Any) -> runs_pb2.Run:
        """Resumes a run and waits until it waits again or has ended."""
        await self.call("ResumeRun", run_id=run_id, **fields)
        return await self.settled(run_id)


@asynccontextmanager
async def debugging(*replies: Any, sandbox: str, data_dir: Path, **settings: Any) -> AsyncIterator[Debugger]:
    """An orchestrator whose model gives these replies. `settings` are fields of Settings."""
    async with (
        scripted_openai(list(replies)) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=data_dir, **settings) as client,
        open_channel(client.address) as channel,
    ):
        yield Debugger(client, debug_pb2_grpc.DebugServiceStub(channel), model)
