"""The sandbox service as its callers have it: a real process, real cells, gRPC over loopback or a socket."""

import asyncio
import json
import signal
import time

import grpc
import pytest
from codemend.rpc import error_detail, open_channel
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sandbox_pb2_grpc as pb_grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.sandbox import running_sandbox, sandbox_process
from support.waiting import until

SERVICE = "codemend.sandbox.v1.SandboxService"
SLEEP = "print('up', flush=True)\nimport time\ntime.sleep(60)"


@pytest.fixture(scope="module")
async def address():
    async with running_sandbox(SANDBOX_CONCURRENCY="2") as started:
        yield started


@pytest.fixture
async def stub(address):
    async with open_channel(address) as channel:
        yield pb_grpc.SandboxServiceStub(channel)


def program(code, **fields):
    return pb.Program(files=[pb.File(path="main.py", content=code.encode())], entry="main.py", **fields)


def execute(stub, code, timeout=30, **fields):
    return stub.Execute(pb.ExecuteRequest(program=program(code, **fields)), timeout=timeout)


def stream(stub, code, timeout=30, **fields):
    return stub.ExecuteStream(pb.ExecuteStreamRequest(program=program(code, **fields)), timeout=timeout)


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def started(call):
    """Waits until the streaming program has printed that it is up."""
    assert (await call.read()).stdout_chunk == b"up\n"


async def test_a_program_runs_with_its_files_arguments_input_and_variables(stub):
    code = "import os, sys, data\nprint(data.x, sys.argv[1:], sys.stdin.read(), os.environ['A'])\nsys.exit(3)"
    request = program(code, args=["one", "two"], stdin=b"in", env={"A": "b"})
    request.files.add(path="data.py", content=b"x = 7")
    result = (await stub.Execute(pb.ExecuteRequest(program=request), timeout=30)).result
    assert result.status == pb.EXECUTION_STATUS_FAILED
    assert result.exit_code == 3
    assert result.stdout.head == b"7 ['one', 'two'] in b\n"
    assert result.isolation.cell == "process"
    assert result.wall_time.ToMicroseconds() > 0
    assert result.queue_time.ToMicroseconds() > 0


async def test_a_command_runs_and_new_files_come_back(stub):
    argv = ["python3", "-c", "open('out.txt', 'w').write('made')"]
    request = pb.Program(command=pb.Command(argv=argv), collect=["*.txt"])
    result = (await stub.Execute(pb.ExecuteRequest(program=request), timeout=30)).result
    assert result.status == pb.EXECUTION_STATUS_SUCCEEDED, result
    assert [(file.path, file.content) for file in result.files] == [("out.txt", b"made")]


async def test_a_stream_gives_output_in_order_while_the_program_runs_and_the_result_last(stub):
    code = "print('one', flush=True)\ninput()\nprint('two')"
    events = [event async for event in stream(stub, code, stdin=b"\n")]
    assert b"".join(event.stdout_chunk for event in events) == b"one\ntwo\n"
    assert [event.WhichOneof("event") for event in events].index("result") == len(events) - 1
    assert events[-1].result.status == pb.EXECUTION_STATUS_SUCCEEDED


async def test_a_stream_is_not_held_back_until_the_end(stub):
    call = stream(stub, SLEEP)
    await started(call)
    assert call.cancel()  # it had not ended


async def test_a_program_that_prints_fast_streams_whole_to_a_caller_that_reads(stub):
    megabytes = 12
    code = f"import sys\nfor _ in range({megabytes}): sys.stdout.buffer.write(b'x' * 1048576)"
    total, last = 0, None
    async for event in stream(stub, code):
        total += len(event.stdout_chunk)
        last = event
    assert total == megabytes * 1024 * 1024
    assert last.result.status == pb.EXECUTION_STATUS_SUCCEEDED


async def test_tests_run_against_files_and_report_each_test(stub):
    request = pb.RunTestsRequest(
        files=[pb.File(path="solution.py", content=b"def double(x):\n    return 2 * x\n")],
        tests=[
            pb.File(
                path="test_solution.py",
                content=b"from solution import double\n"
                b"def test_right():\n    assert double(2) == 4\n"
                b"def test_wrong():\n    assert double(2) == 5\n",
            )
        ],
    )
    reply = await stub.RunTests(request, timeout=60)
    assert reply.report.outcome == pb.REPORT_OUTCOME_FAILED, reply
    assert (reply.report.counts.total, reply.report.counts.passed, reply.report.counts.failed) == (2, 1, 1)
    assert [case.outcome for case in reply.report.tests] == [pb.TEST_OUTCOME_PASSED, pb.TEST_OUTCOME_FAILED]
    assert "4" in reply.report.tests[1].failure.message


async def test_capabilities_say_what_is_in_force(stub):
    reply = await stub.GetCapabilities(pb.GetCapabilitiesRequest(), timeout=10)
    assert set(reply.languages) >= {"python"}
    assert list(reply.cells) == ["process"]
    assert (reply.concurrency, reply.queue_size) == (2, 256)
    assert {wall.name for wall in reply.protections} >= {"pid_namespace", "read_only_root", "rlimits"}


async def test_a_bad_request_names_every_field(stub):
    request = pb.Program(files=[pb.File(path="../x"), pb.File(path="a\0")], entry="y", language="cobol")
    error = await refused(stub.Execute(pb.ExecuteRequest(program=request), timeout=10))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    fields = {violation.field for violation in error_detail(error, error_details_pb2.BadRequest).field_violations}
    assert fields == {"program.files[0].path", "program.files[1].path", "program.entry", "program.language"}
    info = error_detail(error, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain) == ("INVALID_JOB", "codemend")


async def test_thousands_of_violations_still_reach_the_caller(stub):
    request = pb.Program(files=[pb.File(path=f"/{number}") for number in range(4000)], entry="y")
    error = await refused(stub.Execute(pb.ExecuteRequest(program=request), timeout=10))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_detail(error, error_details_pb2.BadRequest).field_violations[-1].description.startswith("and ")


async def test_a_reply_fits_into_a_message_whatever_the_program_does(stub):
    code = (
        "import sys, os\n"
        "for n in range(300): open(f'{n:03}.bin', 'wb').write(os.urandom(20_000))\n"
        "for s in (sys.stdout, sys.stderr): s.buffer.write(os.urandom(3_000_000))\n"
    )
    reply = await execute(stub, code, collect=["*.bin"])
    result = reply.result
    assert result.status == pb.EXECUTION_STATUS_SUCCEEDED, result.reason
    assert reply.ByteSize() < 4 * 1024 * 1024
    assert len(result.stdout.head) + len(result.stdout.tail) + result.stdout.dropped_bytes == 3_000_000
    assert len(result.files) + len(result.files_left_out) >= 256


@pytest.mark.parametrize("way", ["cancel", "deadline"])
async def test_a_caller_that_leaves_takes_its_job_with_it_within_a_second(way):
    async with running_sandbox(SANDBOX_CONCURRENCY="1") as target, open_channel(target) as channel:
        own = pb_grpc.SandboxServiceStub(channel)
        call = stream(own, SLEEP, timeout=2 if way == "deadline" else 30)
        await started(call)
        if way == "cancel":
            call.cancel()
        else:
            assert (await refused(call.read())).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        left = time.monotonic()
        result = (await execute(own, "print('next')")).result  # the one place is free only when the first job is gone
        assert time.monotonic() - left < 1
        assert result.stdout.head == b"next\n"


async def test_a_full_queue_refuses_with_the_time_to_come_back():
    async with running_sandbox(SANDBOX_CONCURRENCY="1", SANDBOX_QUEUE_SIZE="0") as target:
        async with open_channel(target) as channel:
            own = pb_grpc.SandboxServiceStub(channel)
            running = stream(own, SLEEP)
            await started(running)
            error = await refused(execute(own, "print(1)"))
            running.cancel()
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error_detail(error, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() >= 100
        assert error_detail(error, error_details_pb2.ErrorInfo).reason == "QUEUE_FULL"


async def test_health_and_reflection_are_served(address):
    async with open_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        replies = [reply async for reply in reflection.ServerReflectionInfo(asked, timeout=5)]
        assert SERVICE in {service.name for service in replies[0].list_services_response.service}


async def test_reflection_can_be_switched_off():
    async with running_sandbox(SANDBOX_REFLECTION="false") as target, open_channel(target) as channel:
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        error = await refused(reflection.ServerReflectionInfo(asked, timeout=5).read())
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_lets_the_running_job_end_refuses_new_ones_and_exits_with_zero(way):
    async with sandbox_process() as service, open_channel(service.address) as channel:
        stub = pb_grpc.SandboxServiceStub(channel)
        code = "print('up', flush=True)\nimport time\ntime.sleep(1.5)\nprint('done')"
        running = stream(stub, code)
        await started(running)
        service.send(way)
        await until(lambda: '"stopping"' in service.log())
        health = health_pb2_grpc.HealthStub(channel)
        reply = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=5)
        assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
        error = await refused(execute(stub, "print(1)"))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error_detail(error, error_details_pb2.ErrorInfo).reason == "SERVICE_DRAINING"
        rest = [event async for event in _rest(running)]
        assert rest[0].stdout_chunk == b"done\n"
        assert rest[-1].result.status == pb.EXECUTION_STATUS_SUCCEEDED
        assert await service.ended() == 0


async def _rest(call):
    while (event := await call.read()) is not grpc.aio.EOF:
        yield event


async def test_a_second_signal_does_not_wait_for_the_running_job():
    async with sandbox_process() as service, open_channel(service.address) as channel:
        running = stream(pb_grpc.SandboxServiceStub(channel), SLEEP)
        await started(running)
        service.send(signal.SIGTERM)
        await until(lambda: '"stopping"' in service.log())
        service.send(signal.SIGTERM)
        before = time.monotonic()
        assert await service.ended() == 0
        assert time.monotonic() - before < 5
        assert (await refused(running.read())).code() is grpc.StatusCode.UNAVAILABLE


async def test_the_ready_file_is_gone_when_the_service_is():
    async with sandbox_process() as service:
        assert (service.folder / "address").exists()
        service.send(signal.SIGTERM)
        assert await service.ended() == 0
        assert not (service.folder / "address").exists()


async def test_after_its_grace_a_stop_kills_the_running_job():
    async with sandbox_process(SANDBOX_GRACE="100ms") as service, open_channel(service.address) as channel:
        running = stream(pb_grpc.SandboxServiceStub(channel), SLEEP)
        await started(running)
        service.send(signal.SIGTERM)
        assert await service.ended() == 0
        assert "grace is over" in service.log()


async def test_a_socket_is_served_and_removed(tmp_path):
    target = f"unix:{tmp_path}/sandbox.sock"
    async with sandbox_process(address=target) as service, open_channel(service.address) as channel:
        assert service.address == target
        assert (await execute(pb_grpc.SandboxServiceStub(channel), "print(1)")).result.exit_code == 0
        service.send(signal.SIGTERM)
        await service.ended()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("env", "code", "text"),
    [
        ({"SANDBOX_QUEUE_SIZE": "-1"}, 2, "SANDBOX_QUEUE_SIZE"),
        ({"SANDBOX_DEFAULT_WALL_TIME": "1h"}, 2, "SANDBOX_MAX_WALL_TIME"),
        ({"SANDBOX_REQUIRE": "magic"}, 1, "magic"),
    ],
)
async def test_wrong_settings_end_the_service_with_their_name(env, code, text):
    with pytest.raises(AssertionError) as caught:
        async with sandbox_process(**env):
            pass
    assert f"ended with {code}" in str(caught.value)
    assert text in str(caught.value)


async def test_a_port_in_use_ends_the_service_with_the_reason(address):
    with pytest.raises(AssertionError, match="address already in use"):
        async with sandbox_process(address=address):
            pass


async def test_the_log_is_json_with_the_caller_s_request_id_and_without_what_it_sent():
    async with sandbox_process() as service, open_channel(service.address) as channel:
        request = pb.ExecuteRequest(program=program("print('pr1vate')", env={"TOKEN": "s3cret"}))
        metadata = (("x-request-id", "req-77"), ("authorization", "Bearer hidden"))
        await pb_grpc.SandboxServiceStub(channel).Execute(request, timeout=30, metadata=metadata)
        await until(lambda: "req-77" in service.log())
        log = service.log()
    assert all(json.loads(line)["time"] for line in log.splitlines())
    assert not any(word in log for word in ("pr1vate", "s3cret", "hidden"))


async def test_many_jobs_at_once_all_get_their_own_answer(stub):
    replies = await asyncio.gather(*(execute(stub, f"print({number})") for number in range(20)))
    assert [int(reply.result.stdout.head) for reply in replies] == list(range(20))


async def test_a_stream_whose_reader_stalls_loses_its_place_to_others_and_its_tenant_gets_no_second_stream():
    settings = {"SANDBOX_STREAM_STALL_TIME": "300ms", "SANDBOX_MAX_STREAMS_PER_TENANT": "1"}
    flood = SLEEP.replace("import time", "print('x' * 8 * 2**20, flush=True)\nimport time")
    async with running_sandbox(SANDBOX_CONCURRENCY="1", **settings) as address, open_channel(address) as channel:
        stub = pb_grpc.SandboxServiceStub(channel)
        call = stream(stub, flood, timeout=60)
        await started(call)
        assert (await execute(stub, "print(1)")).result.stdout.head == b"1\n"  # the flood would hold the place for 60 s
        error = await refused(stream(stub, "print(2)").read())
        assert error_detail(error, error_details_pb2.ErrorInfo).reason == "TOO_MANY_STREAMS"

        async def read_all():
            while await call.read() is not grpc.aio.EOF:
                pass

        error = await refused(read_all())
        assert error_detail(error, error_details_pb2.ErrorInfo).reason == "READER_STALLED"
        assert "0.3 s" in error.details()
