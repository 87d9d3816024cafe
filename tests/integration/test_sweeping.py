"""What sweeps end, over real gRPC: runs that nobody can go on with, and that were cancelled; and no other run."""

import asyncio
import shutil
from datetime import timedelta

import pytest
from codemend.orchestrator.v1 import runs_pb2 as pb
from support.openai_server import Scripted, scripted_openai
from support.orchestrator import running_orchestrator
from support.scripted_sandbox import scripted_sandbox
from support.staged import Staged, judged, prompt_of, reply, staged_model
from support.store import new_run
from support.waiting import until

from orchestrator.runs import RunState, Wait, replica, sweeping
from orchestrator.runs.store import RunRows, open_database
from orchestrator.workflows import WORKFLOWS

CURRENT = WORKFLOWS["codegen"].version
OTHER = CURRENT + 98
AT = Wait("checkpoint-1", ("verify",), "before verify")

pytestmark = pytest.mark.timeout(120)


async def test_a_run_whose_graph_no_replica_has_is_ended_with_both_versions_named(tmp_path):
    task = Staged("swept1").spec().codegen.task
    async with open_database(f"sqlite:///{tmp_path / 'runs.sqlite'}") as database:
        rows = RunRows(database)
        foreign, _ = await rows.create(new_run(task, graph_version=OTHER))
        paused, _ = await rows.create(new_run(task, graph_version=OTHER, wait=AT))
        ours, _ = await rows.create(new_run(task, graph_version=CURRENT))
    async with (
        scripted_sandbox(judged) as sandbox,
        scripted_openai(lambda body: Scripted(text=reply(prompt_of(body)))) as model,
        running_orchestrator(sandbox=sandbox.address, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        for run in (foreign, ours):
            await client.events(run.run_id)
        ended, left, done = [await client.get(run.run_id) for run in (foreign, paused, ours)]
    assert ended.result.outcome == pb.RUN_OUTCOME_ERROR
    assert f"version {OTHER} of 'codegen'" in ended.result.reason
    assert f'"codegen": {CURRENT}' in ended.result.reason
    assert left.state == pb.RUN_STATE_WAITING
    assert done.result.outcome != pb.RUN_OUTCOME_ERROR, done.result.reason


async def test_a_run_whose_files_are_lost_can_be_cancelled_and_holds_no_other_up(tmp_path):
    async with (
        scripted_sandbox(judged) as sandbox,
        scripted_openai(lambda body: Scripted(text=reply(prompt_of(body)))) as model,
        running_orchestrator(sandbox=sandbox.address, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        tasks = [Staged(f"lost{number}", right_at=1, stops=("repair",)) for number in (1, 2)]
        lost, other = [await client.create(task.spec()) for task in tasks]
        for run in (lost, other):
            await client.parts.runs.manager.wait_until(run.run_id, {RunState.WAITING})
        await asyncio.to_thread(shutil.rmtree, tmp_path / "artifacts")
        ended = await client.cancel(lost.run_id, "its files are lost")
        await client.cancel(other.run_id, "so are this one's")
        for run in (lost, other):
            await client.events(run.run_id)
    assert ended.state == pb.RUN_STATE_CANCELLED
    assert ended.result.reason == "its files are lost; what it had come to cannot be read any more"


async def test_runs_wait_on_while_their_replica_cannot_write(tmp_path, monkeypatch):
    monkeypatch.setattr(replica, "BEAT", timedelta(seconds=0.1))
    monkeypatch.setattr(replica, "LEASE", timedelta(seconds=0.5))
    monkeypatch.setattr(replica, "STALE", timedelta(seconds=0.8))
    monkeypatch.setattr(sweeping, "SWEEP", timedelta(seconds=0.1))
    looks = []
    look = replica.Replica.others

    async def looked(self):
        alive = await look(self)
        looks.append([seen for seen in alive if seen.owner == self.owner])
        return alive

    monkeypatch.setattr(replica.Replica, "others", looked)
    delay = [0.5]  # seconds before each piece of a reply: the run at work outlasts the lock
    async with (
        scripted_sandbox(judged) as sandbox,
        scripted_openai(staged_model(lambda: delay[0])) as model,
        running_orchestrator(
            sandbox=sandbox.address, model_url=model.base_url, data_dir=tmp_path, max_concurrent_runs=1
        ) as client,
    ):
        at_work, waiting = [await client.create(Staged(f"held{number}").spec()) for number in (1, 2)]
        await until(lambda: bool(model.requests), seconds=30)
        async with open_database(f"sqlite:///{tmp_path / 'runs.sqlite'}") as database, database.write():
            looks.clear()
            await until(lambda: len(looks) > 3 and not looks[-1] and not looks[-2], seconds=30)
        delay[0] = 0.0
        for run in (at_work, waiting):
            await client.events(run.run_id)
        ended = [await client.get(run.run_id) for run in (at_work, waiting)]
    assert [run.result.outcome for run in ended] == [pb.RUN_OUTCOME_PASSED] * 2
