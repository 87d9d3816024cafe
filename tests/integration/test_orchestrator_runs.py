"""The life of runs over real gRPC: idempotent creation, watching, cancelling, many at once, the service's stop."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import runs_pb2 as pb
from codemend.rpc import open_channel
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from support.openai_server import Scripted, scripted_openai
from support.orchestrator import fence, orchestrator_process, running_orchestrator, spec
from support.sandbox import running_sandbox

from orchestrator.runs import RunFilter
from orchestrator.runs.pruning import Pruner, Retention
from orchestrator.sandbox_client import SandboxClient
from orchestrator.workflows import Attempt
from orchestrator.workflows.sandbox import File, ProgramJob

TESTS = {"test_solution.py": "from solution import add\n\ndef test_one():\n    assert add(1, 2) == 3\n"}
RIGHT = fence("def add(a, b):\n    return a + b")
WRONG = fence("def add(a, b):\n    return a - b")
LOOP = fence("while True:\n    pass")
STALL = Scripted(text=RIGHT, stall_after=3)


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[str]:
    async with running_sandbox(SANDBOX_CONCURRENCY="1") as address:
        yield address


def detail(error: grpc.aio.AioRpcError, kind):
    found = kind()
    return next((found for item in rpc_status.from_call(error).details if item.Unpack(found)), None)


def checkpoint_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("runs-checkpoints*"))


async def test_a_repeated_request_id_gives_the_same_run_and_asks_the_model_once(sandbox: str, tmp_path: Path) -> None:
    async with (
        scripted_openai([RIGHT]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        first, second = await asyncio.gather(
            client.create(spec(tests=TESTS), "once"), client.generate(spec(tests=TESTS), "once")
        )
        third = await client.create(spec(tests=TESTS), "once")
    assert first.run_id == second.run_id == third.run_id
    assert third.result.outcome == pb.RUN_OUTCOME_PASSED
    assert len(model.requests) == 1


async def test_a_request_id_of_another_request_already_exists(sandbox: str, tmp_path: Path) -> None:
    async with (
        scripted_openai([RIGHT]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        await client.create(spec(tests=TESTS), "once")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.create(spec("Another task.", tests=TESTS), "once")
    assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS


async def test_every_watcher_sees_every_later_event_once_and_in_order(sandbox: str, tmp_path: Path) -> None:
    async with (
        scripted_openai([WRONG, RIGHT]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        run = await client.create(spec(tests=TESTS))
        live = await asyncio.gather(client.events(run.run_id), client.events(run.run_id, after=3))
        ended = await client.get(run.run_id)
        late = await client.events(run.run_id)
        rest = await client.events(run.run_id, after=ended.last_sequence - 1)
    assert [event.sequence for event in live[0]] == list(range(1, ended.last_sequence + 1))
    assert live[1] == live[0][3:]
    assert late == live[0]
    assert rest == live[0][-1:]
    assert rest[0].state_changed.state == pb.RUN_STATE_SUCCEEDED
    assert rest[0].state_changed.outcome == pb.RUN_OUTCOME_PASSED
    tokens = "".join(event.model_tokens.text for event in late if event.model_tokens.attempt == 1)
    assert tokens == WRONG


async def test_tokens_are_left_out_when_asked(sandbox: str, tmp_path: Path) -> None:
    async with (
        scripted_openai([RIGHT]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        run = await client.generate(spec(tests=TESTS, omit_tokens=True))
        events = await client.events(run.run_id)
    assert not any(event.HasField("model_tokens") for event in events)


async def test_cancelling_generate_drops_its_model_call_within_a_second(sandbox: str, tmp_path: Path) -> None:
    async with (
        scripted_openai([STALL]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        call = client.stub.Generate(pb.GenerateRequest(spec=spec(tests=TESTS)))
        await model.wait_for_requests(1)
        (run,) = await client.parts.runs.manager.list(RunFilter(tenant=""))
        await client.wait_for(run.run_id, lambda event: event.HasField("model_tokens"))
        call.cancel()
        cancelled_at = time.monotonic()
        await model.wait_for_disconnects(1, timeout=2)
        events = await client.events(run.run_id)
    assert model.disconnects[0] - cancelled_at < 1
    assert events[-1].state_changed.state == pb.RUN_STATE_CANCELLED


async def test_cancelling_a_run_kills_its_sandbox_job_and_delivers_the_best_attempt(
    sandbox: str, tmp_path: Path
) -> None:
    async with (
        scripted_openai([WRONG, LOOP]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        run = await client.create(spec(tests=TESTS))
        await model.wait_for_requests(2)
        await client.wait_for(
            run.run_id, lambda event: event.node_started.node == "execute" and event.node_started.attempt == 2
        )
        started = time.monotonic()
        ended = await client.cancel(run.run_id, "enough")
        acknowledged = time.monotonic() - started
        direct = SandboxClient(sandbox)
        # The sandbox has one place: this runs only when the looping job is gone, long before its limit of 10 s.
        await direct.run_program(ProgramJob((File("a.py", b"print(1)"),), "a.py"), deadline=timedelta(seconds=5))
        freed = time.monotonic() - started
        await direct.close()
    assert acknowledged < 1
    assert freed < 2
    assert ended.state == pb.RUN_STATE_CANCELLED
    assert ended.result.outcome == pb.RUN_OUTCOME_CANCELLED
    assert ended.result.reason == "enough"
    assert ended.result.delivered_attempt == 1
    assert b"a - b" in ended.result.files[0].content


async def test_a_run_cancelled_while_its_first_draft_is_executed_delivers_that_draft(
    sandbox: str, tmp_path: Path
) -> None:
    async with (
        scripted_openai([LOOP]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        run = await client.create(spec(tests=TESTS))
        await client.wait_for(run.run_id, lambda event: event.node_started.node == "execute")
        ended = await client.cancel(run.run_id, "enough")
        events = await client.events(run.run_id)
    assert ended.result.outcome == pb.RUN_OUTCOME_CANCELLED
    assert ended.result.delivered_attempt == 1
    assert [file.path for file in ended.result.files] == ["solution.py"]
    assert [attempt.summary for attempt in ended.result.attempts] == ["cancelled while the code was executed"]
    assert [event.attempt.number for event in events if event.HasField("attempt")] == [1]


async def test_cancelling_an_ended_run_leaves_it_as_it_is(sandbox: str, tmp_path: Path) -> None:
    async with (
        scripted_openai([RIGHT]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        run = await client.generate(spec(tests=TESTS))
        assert await client.cancel(run.run_id) == run


async def test_the_end_of_a_generate_call_with_a_request_id_leaves_its_run_going(sandbox: str, tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with (
        scripted_openai([Scripted(text=RIGHT, gate=gate)]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.generate(spec(tests=TESTS), "kept", within=1)
        gate.set()
        run = await client.generate(spec(tests=TESTS), "kept")
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert run.result.outcome == pb.RUN_OUTCOME_PASSED
    assert len(model.requests) == 1


async def test_the_deadline_of_a_generate_call_ends_its_run(sandbox: str, tmp_path: Path) -> None:
    async with (
        scripted_openai([STALL]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.generate(spec(tests=TESTS), within=1)
        await model.wait_for_disconnects(1, timeout=2)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


async def test_many_runs_at_once_never_mix(sandbox: str, tmp_path: Path) -> None:
    def reply(body):
        prompt = body["messages"][-1]["content"]
        secret = prompt.split("secret is ")[1][:8]
        right = "must not stay as it is" in prompt
        return fence(f"SECRET = '{secret if right else 'wrong-' + secret}'")

    def run_spec(secret: str) -> pb.RunSpec:
        check = f"from solution import SECRET\nassert SECRET == '{secret}', SECRET\n"
        return spec(f"The secret is {secret}.", check_script=check, timeout=Duration(seconds=100))

    secrets = [f"{number:08d}" for number in range(20)]
    async with (
        scripted_openai(reply) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        runs = await asyncio.gather(*(client.generate(run_spec(secret), within=100) for secret in secrets))
        logs = await asyncio.gather(*(client.events(run.run_id) for run in runs))
    assert len({run.run_id for run in runs}) == 20
    for secret, run, log in zip(secrets, runs, logs, strict=True):
        assert run.result.outcome == pb.RUN_OUTCOME_PASSED
        assert [attempt.number for attempt in run.result.attempts] == [1, 2]
        assert secret.encode() in run.result.files[0].content
        others = [other for other in secrets if other != secret]
        assert not any(other in str(log) + str(run) for other in others)


async def test_a_full_queue_says_when_to_come_back(sandbox: str, tmp_path: Path) -> None:
    async with (
        scripted_openai([STALL] * 3) as model,
        running_orchestrator(
            sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path, max_concurrent_runs=1, queue_size=1
        ) as client,
    ):
        running = await client.create(spec(tests=TESTS))
        waiting = await client.create(spec(tests=TESTS))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.create(spec(tests=TESTS))
        await model.wait_for_requests(1)
        assert (await client.get(waiting.run_id)).state == pb.RUN_STATE_QUEUED
        assert (await client.cancel(waiting.run_id)).state == pb.RUN_STATE_CANCELLED
        assert (await client.get(running.run_id)).state == pb.RUN_STATE_RUNNING
        await client.create(spec(tests=TESTS))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert detail(caught.value, error_details_pb2.RetryInfo).retry_delay.seconds >= 1


async def test_a_run_whose_time_is_up_in_the_queue_never_starts(sandbox: str, tmp_path: Path) -> None:
    async with (
        scripted_openai([STALL]) as model,
        running_orchestrator(
            sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path, max_concurrent_runs=1
        ) as client,
    ):
        await client.create(spec(tests=TESTS))
        run = await client.generate(spec(tests=TESTS, timeout=Duration(seconds=1)))
    assert run.result.outcome == pb.RUN_OUTCOME_BUDGET_EXHAUSTED
    assert not run.HasField("start_time")
    assert len(model.requests) == 1


async def test_a_forgotten_run_leaves_no_checkpoints_and_a_kept_one_reads_back(sandbox: str, tmp_path: Path) -> None:
    async with (
        scripted_openai([RIGHT, RIGHT]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as client,
    ):
        first = await client.generate(spec(tests=TESTS))
        second = await client.generate(spec(tests=TESTS))
        parts, saver = client.parts.runs, client.parts.runs.saver
        await Pruner(parts.database, saver, parts.artifacts, Retention(timedelta(hours=1), keep_runs=1)).prune()
        forgotten = await saver.aget_tuple({"configurable": {"thread_id": first.run_id}})
        kept = await saver.aget_tuple({"configurable": {"thread_id": second.run_id}})
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.get(first.run_id)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert forgotten is None
    (attempt,) = kept.checkpoint["channel_values"]["attempts"]
    assert isinstance(attempt, Attempt)
    assert attempt.code_hash == second.result.attempts[0].code_hash
    assert b"a + b" not in checkpoint_bytes(tmp_path)


async def test_an_unknown_run_is_not_found(sandbox: str, tmp_path: Path) -> None:
    async with running_orchestrator(sandbox=sandbox, model_url="http://127.0.0.1:1/v1", data_dir=tmp_path) as client:
        for ask in (client.get("run_x"), client.cancel("run_x"), client.events("run_x")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask
            assert caught.value.code() == grpc.StatusCode.NOT_FOUND
            assert detail(caught.value, error_details_pb2.ResourceInfo).resource_name == "run_x"


async def test_a_wrong_request_is_told_every_field(sandbox: str, tmp_path: Path) -> None:
    async with running_orchestrator(sandbox=sandbox, model_url="http://127.0.0.1:1/v1", data_dir=tmp_path) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.create(spec(" ", entry_point="not a name", max_attempts=101, candidates=17))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    fields = [item.field for item in detail(caught.value, error_details_pb2.BadRequest).field_violations]
    assert fields == [
        "spec.codegen.task",
        "spec.codegen.entry_point",
        "spec.options.max_attempts",
        "spec.options.candidates",
    ]


async def test_a_stopping_service_refuses_new_runs_and_hands_those_at_work_back(sandbox: str) -> None:
    gate = asyncio.Event()
    async with (
        scripted_openai([Scripted(text=RIGHT, gate=gate)]) as model,
        orchestrator_process(sandbox=sandbox, model_url=model.base_url) as service,
    ):
        client = service.client
        channel = open_channel(client.address)
        health = health_pb2_grpc.HealthStub(channel)
        name = health_pb2.HealthCheckRequest(service="codemend.orchestrator.v1.RunService")
        states = health.Watch(name)
        assert (await states.read()).status == health_pb2.HealthCheckResponse.SERVING
        run = await client.create(spec(tests=TESTS))
        watch = asyncio.create_task(client.wait_for(run.run_id, is_handed_back))
        await model.wait_for_requests(1)
        service.send(signal.SIGTERM)
        async with asyncio.timeout(10):
            while (await states.read()).status == health_pb2.HealthCheckResponse.SERVING:
                pass
        states.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.create(spec(tests=TESTS))
        gate.set()
        handed_back = await watch
        await channel.close()
        code = await service.ended()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert handed_back.state_changed.reason == "the service is stopping"
    assert code == 0


def is_handed_back(event: pb.RunEvent) -> bool:
    return event.state_changed.state == pb.RUN_STATE_QUEUED and event.sequence > 1


async def test_a_run_that_outlasts_the_grace_is_broken_off_and_leaves_no_secret(sandbox: str) -> None:
    async with (
        scripted_openai([STALL], api_key="sk-the-secret-key") as model,
        orchestrator_process(
            sandbox=sandbox, model_url=model.base_url, CODEMEND_GRACE="0.2s", OPENAI_API_KEY="sk-the-secret-key"
        ) as service,
    ):
        run = await service.client.create(spec(tests=TESTS))
        watch = asyncio.create_task(service.client.wait_for(run.run_id, is_handed_back))
        await model.wait_for_requests(1)
        service.send(signal.SIGTERM)
        handed_back = await watch
        code = await service.ended()
        left = [path for path in (service.folder / "data").rglob("*") if path.is_file()]
        texts = [service.log(), *(path.read_bytes().decode("latin-1") for path in left)]
    assert handed_back.state_changed.reason == "the service is stopping"
    assert code == 0
    assert any("checkpoints" in path.name for path in left)
    assert not any("sk-the-secret-key" in text for text in texts)
