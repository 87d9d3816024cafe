"""Two replicas over one Postgres: each answers for every run, and either can be lost, stopped, or hang.

The model is scripted and the sandbox real, so that what a cancellation must end is there to be ended.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import debug_pb2
from codemend.orchestrator.v1 import runs_pb2 as pb
from codemend.sandbox.v1 import sandbox_pb2
from sqlalchemy import select
from support.openai_server import Scripted, ScriptedServer, scripted_openai
from support.orchestrator import fence
from support.postgres import binaries, running_postgres
from support.replicas import CALL_SECONDS, Cluster, Followed, running_cluster
from support.sandbox import running_sandbox
from support.staged import Staged, prompt_of, reply, stage_of, staged_model
from support.store import VERSIONS, new_run
from support.waiting import until

from orchestrator.runs.store import Limits, Queue, RunRows, open_database
from orchestrator.runs.store.schema import RUNS
from orchestrator.sandbox_client import SandboxClient
from orchestrator.workflows.sandbox import File, ProgramJob

PROMPTLY = 8.0  # seconds, generously: what takes a second on an idle machine
TAKEN_OVER = 60.0  # seconds, generously: 30 s on an idle machine
RIGHT = "def add(a, b):\n    return a + b\n"
PASSED = pb.RUN_OUTCOME_PASSED

pytestmark = pytest.mark.timeout(180)


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[str]:
    async with running_sandbox(SANDBOX_CONCURRENCY="1") as address:
        yield address


@asynccontextmanager
async def two(sandbox: str, model: ScriptedServer, folder: Path, url: str) -> AsyncIterator[Cluster]:
    async with running_cluster(
        "one",
        "two",
        sandbox=sandbox,
        model_url=model.base_url,
        data_dir=str(folder),
        database_url=url,
        CODEMEND_GRACE="20",
    ) as cluster:
        yield cluster


class Gated:
    """A model that answers nothing until it is let."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    def __call__(self, body) -> Scripted:
        return Scripted(text=reply(prompt_of(body)), gate=self.gate)


async def followed(cluster: Cluster, run_id: str) -> Followed:
    seen = Followed(run_id)
    await cluster.follow(seen)
    return seen


async def test_a_run_is_watched_on_the_other_replica_from_any_number(
    sandbox: str, tmp_path: Path, postgres_url: str
) -> None:
    async with scripted_openai(staged_model()) as model, two(sandbox, model, tmp_path, postgres_url) as cluster:
        one, other = (replica.client for replica in cluster.replicas)
        run = await one.create(Staged("watched1", right_at=1).spec())
        live, own = await asyncio.gather(other.events(run.run_id), one.events(run.run_id))
        later = [await other.events(run.run_id, after) for after in range(len(live) + 1)]
    assert [event.sequence for event in live] == list(range(1, len(live) + 1))
    assert live == own
    assert later == [live[after:] for after in range(len(live) + 1)]


async def test_a_cancellation_at_either_replica_ends_the_model_call(
    sandbox: str, tmp_path: Path, postgres_url: str
) -> None:
    model_script = Gated()
    async with scripted_openai(model_script) as model, two(sandbox, model, tmp_path, postgres_url) as cluster:
        run = await cluster.replicas[0].client.create(Staged("hanging1").spec())
        await model.wait_for_requests(1)
        asked = [replica.client.cancel(run.run_id, "not wanted") for replica in cluster.replicas]
        ended = await asyncio.wait_for(asyncio.gather(*asked), PROMPTLY)
        await model.wait_for_disconnects(1, PROMPTLY)
        seen = await followed(cluster, run.run_id)
    assert [run.state for run in ended] == [pb.RUN_STATE_CANCELLED] * 2
    assert ended[0].result.reason == "not wanted"
    assert seen.ends == [len(seen.events)]
    assert model.in_flight == 0


async def test_a_cancellation_at_either_replica_ends_the_sandbox_job(
    sandbox: str, tmp_path: Path, postgres_url: str
) -> None:
    endless = fence("def add(a, b):\n    while True:\n        pass\n")
    direct = SandboxClient(sandbox)
    async with scripted_openai([endless] * 2) as model, two(sandbox, model, tmp_path, postgres_url) as cluster:
        for replica in cluster.replicas:
            run = await cluster.replicas[0].client.create(Staged("spinning1").spec())
            await cluster.replicas[1].client.wait_for(run.run_id, lambda event: event.node_started.node == "execute")
            ended = await asyncio.wait_for(replica.client.cancel(run.run_id, "enough"), PROMPTLY)
            # The sandbox has one place: this runs only when the endless job is gone, long before its limit of 30 s.
            await direct.run_program(
                ProgramJob((File("a.py", b"print(1)"),), "a.py"), deadline=timedelta(seconds=PROMPTLY)
            )
            assert ended.state == pb.RUN_STATE_CANCELLED
    await direct.close()


async def test_a_waiting_run_is_edited_and_resumed_at_the_other_replica_by_whoever_is_first(
    sandbox: str, tmp_path: Path, postgres_url: str
) -> None:
    async with scripted_openai(staged_model()) as model, two(sandbox, model, tmp_path, postgres_url) as cluster:
        one, other = cluster.replicas
        run = await one.client.create(Staged("edited1", right_at=1, stops=("execute",)).spec())
        told = await other.client.wait_for(run.run_id, lambda event: event.HasField("wait"))
        edit = debug_pb2.StateEdit(files=[sandbox_pb2.File(path="solution.py", content=RIGHT.encode())])
        request = debug_pb2.UpdateStateRequest(run_id=run.run_id, checkpoint_id=told.wait.checkpoint_id, edit=edit)
        edited = (await other.debug.UpdateState(request, timeout=CALL_SECONDS)).run
        go_on = debug_pb2.ResumeRunRequest(run_id=run.run_id, checkpoint_id=edited.wait.checkpoint_id)
        answers = await asyncio.gather(
            *(replica.debug.ResumeRun(go_on, timeout=CALL_SECONDS) for replica in (one, other, one, other)),
            return_exceptions=True,
        )
        seen = await followed(cluster, run.run_id)
        ended = await one.client.get(run.run_id)
    refused = [answer.code() for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert len(refused) == 3
    assert set(refused) <= {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ABORTED}
    assert (ended.result.outcome, ended.result.delivered_attempt) == (PASSED, 1)
    assert ended.result.files[0].content == RIGHT.encode()
    assert seen.ends == [len(seen.events)]


async def test_a_stopped_replica_hands_its_runs_back_and_the_other_goes_on_with_them(
    sandbox: str, tmp_path: Path, postgres_url: str
) -> None:
    script = Gated()
    tasks = [Staged(f"handed{number}", right_at=1) for number in range(1, 5)]
    async with scripted_openai(script) as model, two(sandbox, model, tmp_path, postgres_url) as cluster:
        one, other = cluster.replicas
        runs = [await one.client.create(task.spec()) for task in tasks]
        await model.wait_for_requests(len(tasks))
        stopped = asyncio.create_task(one.stop())
        await until(lambda: one.service is None)
        script.gate.set()  # their step ends only now
        seen = [await followed(cluster, run.run_id) for run in runs]
        await stopped
        ended = [await other.client.get(run.run_id) for run in runs]
    for run, task in zip(ended, tasks, strict=True):
        assert run.result.outcome == PASSED, run.result.reason
        assert run.recoveries == 0
        assert Counter(stage_of(request.prompt) for request in model.requests)[task.name, 0] == 1
    assert not [again for one_seen in seen for again in one_seen.begun_again()]


async def test_runs_of_a_killed_replica_are_taken_over_by_the_one_that_is_left(
    sandbox: str, tmp_path: Path, postgres_url: str
) -> None:
    script = Gated()
    tasks = [Staged(f"orphan{number}") for number in range(1, 5)]
    async with scripted_openai(script) as model, two(sandbox, model, tmp_path, postgres_url) as cluster:
        one, other = cluster.replicas
        runs = [await one.client.create(task.spec()) for task in tasks]
        await model.wait_for_requests(len(tasks))
        await one.kill()
        script.gate.set()
        async with asyncio.timeout(TAKEN_OVER):
            seen = [await followed(cluster, run.run_id) for run in runs]
        ended = [await other.client.get(run.run_id) for run in runs]
    assert [run.result.outcome for run in ended] == [PASSED] * len(tasks)
    assert sum(run.recoveries for run in ended) > 0
    assert [one_seen.ends for one_seen in seen] == [[len(one_seen.events)] for one_seen in seen]


async def test_a_replica_that_was_paused_writes_nothing_of_what_was_taken_from_it(
    sandbox: str, tmp_path: Path, postgres_url: str
) -> None:
    script = Gated()
    tasks = [Staged(f"paused{number}", right_at=1) for number in range(1, 5)]
    async with scripted_openai(script) as model, two(sandbox, model, tmp_path, postgres_url) as cluster:
        one, other = cluster.replicas
        runs = [await one.client.create(task.spec()) for task in tasks]
        await model.wait_for_requests(len(tasks))
        one.service.send(signal.SIGSTOP)
        script.gate.set()  # the answers lie in its sockets: it takes them as soon as it is back
        async with asyncio.timeout(TAKEN_OVER):
            for run in runs:
                await other.client.events(run.run_id)
        one.service.send(signal.SIGCONT)
        again = await one.client.generate(Staged("after1").spec())  # it is back, and works
        seen = [await other.client.events(run.run_id) for run in runs]
        ended = [await one.client.get(run.run_id) for run in runs]
    assert again.result.outcome == PASSED
    for run, events in zip(ended, seen, strict=True):
        told = Followed(run.run_id, events)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert told.ends == [len(events)]
        assert run.last_sequence == len(events)
        assert not told.begun_again()
        assert run.result.outcome == PASSED
        assert len(run.result.attempts) == 2


async def test_a_transaction_that_a_paused_replica_left_open_holds_nobody_up_for_long(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.runs.store.database.IDLE_SECONDS", 0.5)
    async with open_database(postgres_url) as paused, open_database(postgres_url) as other:
        record, _ = await RunRows(paused).create(new_run())
        held = asyncio.Event()

        async def hold() -> None:
            async with paused.write() as connection:  # a claim that goes no further
                await connection.execute(select(RUNS.c.run_id).where(RUNS.c.run_id == record.run_id).with_for_update())
                held.set()
                await asyncio.get_running_loop().create_future()

        holder = asyncio.create_task(hold())
        await held.wait()
        claimed = await asyncio.wait_for(Queue(other, Limits()).claim("other/1", VERSIONS, 1), PROMPTLY)
        holder.cancel()
        await asyncio.wait({holder})
    assert [found.run_id for found in claimed] == [record.run_id]


async def test_a_database_that_hangs_for_a_while_costs_no_run(sandbox: str, tmp_path: Path, require) -> None:
    require(binaries(), "no PostgreSQL server: apt-get install --no-install-recommends postgresql")
    script = Gated()
    tasks = [Staged(f"frozen{number}", right_at=1) for number in range(1, 4)]
    with running_postgres() as server:
        async with scripted_openai(script) as model, two(sandbox, model, tmp_path, server.create()) as cluster:
            runs = [await cluster.replicas[0].client.create(task.spec()) for task in tasks]
            await model.wait_for_requests(len(tasks))
            with server.frozen():
                script.gate.set()
                for replica in cluster.replicas:
                    await until(lambda replica=replica: "lost the lease" in replica.service.log(), TAKEN_OVER)
            seen = [await followed(cluster, run.run_id) for run in runs]
            ended = [await cluster.get(run.run_id) for run in runs]
    assert [run.result.outcome for run in ended] == [PASSED] * len(tasks)
    assert [len(run.result.attempts) for run in ended] == [2] * len(tasks)
    assert [one_seen.ends for one_seen in seen] == [[len(one_seen.events)] for one_seen in seen]
    assert not [again for one_seen in seen for again in one_seen.begun_again()]


async def test_a_database_that_cannot_be_reached_is_named_in_one_line(sandbox: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        async with running_cluster(
            "lonely",
            sandbox=sandbox,
            model_url="http://127.0.0.1:1/v1",
            data_dir=str(tmp_path),
            database_url="postgresql://nobody@127.0.0.1:1/nothing",
        ):
            pass
    said = str(caught.value)
    assert "ended with 1" in said
    assert "Postgres cannot be used" in said
    assert "Traceback" not in said
