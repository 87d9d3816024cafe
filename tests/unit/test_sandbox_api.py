import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import grpc
import pytest
from codemend.rpc import RpcServer, error_detail, open_channel, parse_address
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sandbox_pb2_grpc as pb_grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from support.cells import HeldCells, succeeded
from support.waiting import until

from sandbox_service import errors
from sandbox_service.api import ERRORS
from sandbox_service.domain import LIMIT_NAMES, ReportOutcome, TestReport
from sandbox_service.scheduler import Scheduler
from sandbox_service.server import SERVICE, make_keys, make_servicer
from sandbox_service.settings import Settings
from sandbox_service.streaming import STREAM_BYTES

PROGRAM = pb.Program(files=[pb.File(path="main.py", content=b"print(1)")], entry="main.py")


class Service:
    def __init__(self, stub, cells, scheduler):
        self.stub = stub
        self.cells = cells
        self.scheduler = scheduler

    def execute(self, **options):
        return self.stub.Execute(pb.ExecuteRequest(program=PROGRAM), **{"timeout": 10, **options})

    def stream(self, **options):
        return self.stub.ExecuteStream(pb.ExecuteStreamRequest(program=PROGRAM), **{"timeout": 10, **options})


@asynccontextmanager
async def serving(**settings):
    settings = Settings(**{"address": "127.0.0.1:0", "concurrency": 1, "queue_size": 1, **settings})
    cells = HeldCells()
    scheduler = Scheduler(cells, concurrency=settings.concurrency, queue_size=settings.queue_size)
    server = RpcServer(ERRORS, reflection=False, maximum_calls=100, stall=settings.stream_stall_time)
    servicer = make_servicer(scheduler, cells, settings, make_keys(settings))
    server.add(SERVICE, lambda target: pb_grpc.add_SandboxServiceServicer_to_server(servicer, target))
    bound = await server.start(parse_address(settings.address))
    async with open_channel(str(bound)) as channel:
        yield Service(pb_grpc.SandboxServiceStub(channel), cells, scheduler)
    await scheduler.stop()
    await server.stop()


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def all_errors(kind=errors.SandboxError):
    for derived in kind.__subclasses__():
        yield derived
        yield from all_errors(derived)


@pytest.mark.parametrize("kind", list(all_errors()), ids=lambda kind: kind.__name__)
def test_every_error_of_the_service_has_a_rule_of_its_own(kind):
    assert kind in ERRORS._rules


def test_the_reasons_of_the_rules_are_distinct_and_well_formed():
    reasons = [rule.reason for rule in ERRORS._rules.values()]
    assert len(set(reasons)) == len(reasons)
    assert all(len(reason) <= 63 and reason.replace("_", "").isalpha() and reason.isupper() for reason in reasons)


async def test_a_program_reaches_the_cell_with_every_field_and_the_defaults():
    async with serving() as service:
        request = pb.Program(
            files=[pb.File(path="m.py", content=b"x", executable=True)],
            entry="m.py",
            args=["-v"],
            stdin=b"in",
            env={"A": "b"},
            collect=["*.txt"],
            limits=pb.Limits(wall_time=Duration(seconds=3), processes=5),
        )
        call = service.stub.Execute(pb.ExecuteRequest(program=request), timeout=10)
        await service.cells.running(1)
        job = service.cells.started[0]
        service.cells.release(0)
        assert (await call).result.status == pb.EXECUTION_STATUS_SUCCEEDED
    assert (job.language, job.environment) == ("python", "base")
    assert (job.entry, job.args, job.stdin, job.env, job.collect) == ("m.py", ("-v",), b"in", {"A": "b"}, ("*.txt",))
    assert (job.files[0].path, job.files[0].content, job.files[0].executable) == ("m.py", b"x", True)
    assert (job.limits.wall_time.total_seconds(), job.limits.processes) == (3, 5)
    assert job.limits.memory_bytes == Settings().default_memory_bytes


async def test_a_command_reaches_the_cell():
    async with serving() as service:
        request = pb.ExecuteRequest(program=pb.Program(command=pb.Command(argv=["python3", "-V"])))
        call = service.stub.Execute(request, timeout=10)
        await service.cells.running(1)
        assert service.cells.started[0].argv == ("python3", "-V")
        service.cells.release(0)
        await call


async def test_a_test_run_comes_back_with_its_report():
    async with serving() as service:
        request = pb.RunTestsRequest(tests=[pb.File(path="test_a.py")], select=["test_a.py::t"])
        call = service.stub.RunTests(request, timeout=10)
        await service.cells.running(1)
        assert service.cells.started[0].select == ("test_a.py::t",)
        service.cells.release(0, replace(succeeded(), report=TestReport(ReportOutcome.NO_TESTS, reason="none")))
        assert (await call).report.outcome == pb.REPORT_OUTCOME_NO_TESTS


async def test_a_test_run_without_a_report_is_a_fault():
    async with serving() as service:
        call = service.stub.RunTests(pb.RunTestsRequest(tests=[pb.File(path="test_a.py")]), timeout=10)
        await service.cells.running(1)
        service.cells.release(0)
        error = await refused(call)
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error_detail(error, error_details_pb2.ErrorInfo).reason == "CELL_FAILURE"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ExecuteRequest(), "program"),
        (pb.ExecuteRequest(program=pb.Program()), "program.start"),
        (pb.ExecuteRequest(program=pb.Program(command=pb.Command())), "program.start"),
        (pb.ExecuteRequest(program=pb.Program(entry="a.py")), "program.entry"),
    ],
)
async def test_a_wrong_program_is_refused_with_its_field(request_, field):
    async with serving() as service:
        error = await refused(service.stub.Execute(request_, timeout=10))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        violations = error_detail(error, error_details_pb2.BadRequest).field_violations
        assert [violation.field for violation in violations] == [field]
        assert service.cells.started == []


@pytest.mark.parametrize(
    "duration",
    [
        Duration(),
        Duration(seconds=-1),
        Duration(nanos=-1),
        Duration(seconds=601),
        Duration(seconds=2**63 - 1, nanos=2**31 - 1),
        Duration(seconds=-(2**63), nanos=-(2**31)),
    ],
)
async def test_a_time_out_of_range_is_refused_however_far_out_it_is(duration):
    program = pb.Program(limits=pb.Limits(wall_time=duration))
    program.MergeFrom(PROGRAM)
    async with serving() as service:
        error = await refused(service.stub.Execute(pb.ExecuteRequest(program=program), timeout=10))
    violations = error_detail(error, error_details_pb2.BadRequest).field_violations
    assert [violation.field for violation in violations] == ["program.limits.wall_time"]


@pytest.mark.parametrize("name", [name for name in LIMIT_NAMES if not name.endswith("_time")])
async def test_a_limit_set_to_zero_is_refused_and_not_taken_for_unset(name):
    program = pb.Program(limits=pb.Limits(**{name: 0}))
    program.MergeFrom(PROGRAM)
    async with serving() as service:
        error = await refused(service.stub.Execute(pb.ExecuteRequest(program=program), timeout=10))
    assert f"program.limits.{name}: is 0; must be positive" in error.details()


async def test_a_full_queue_says_when_to_come_back():
    async with serving() as service:
        calls = [service.execute() for _ in range(2)]
        await service.cells.running(1)
        await until(lambda: service.scheduler.stats().waiting == 1)
        error = await refused(service.execute())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error_detail(error, error_details_pb2.RetryInfo).retry_delay.seconds == 1
        for call in calls:
            call.cancel()


@pytest.mark.parametrize("method", ["execute", "stream"])
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (errors.CellUnavailable("no memory for a cell"), grpc.StatusCode.UNAVAILABLE),
        (errors.CellFailure("secret of the host"), grpc.StatusCode.INTERNAL),
        (errors.InvalidJob(("program.x", "cannot be given")), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_what_a_cell_fails_with_becomes_its_status(method, failure, code):
    async with serving() as service:
        call = getattr(service, method)()
        waiting = asyncio.ensure_future(call.read() if method == "stream" else refused(call))
        await service.cells.running(1)
        service.cells.fail(0, failure)
        error = await (refused(waiting) if method == "stream" else waiting)
    assert error.code() is code
    assert "secret" not in error.details()


async def test_a_stream_brings_output_as_it_comes_and_the_result_last():
    async with serving() as service:
        call = service.stream()
        await service.cells.running(1)
        sink = service.cells.sinks[0]
        sink(1, b"out")
        assert (await call.read()).stdout_chunk == b"out"
        sink(2, b"err")
        assert (await call.read()).stderr_chunk == b"err"
        sink(1, b"last")
        service.cells.release(0)
        assert (await call.read()).stdout_chunk == b"last"
        assert (await call.read()).result.status == pb.EXECUTION_STATUS_SUCCEEDED
        assert await call.read() is grpc.aio.EOF


async def test_a_stream_whose_caller_leaves_kills_its_job():
    async with serving() as service:
        call = service.stream()
        await service.cells.running(1)
        assert call.cancel()
        await until(lambda: len(service.cells.killed) == 1)


async def test_a_stream_of_which_nothing_is_read_for_too_long_loses_its_job_and_says_so():
    async with serving(stream_stall_time=timedelta(seconds=0.2)) as service:
        call = service.stream(timeout=60)
        await service.cells.running(1)
        for _ in range(8):
            service.cells.sinks[0](1, b"x" * 2**20)
        await until(lambda: service.scheduler.stats().running == 0)

        async def read_all():
            while True:
                assert (await call.read()).stdout_chunk

        error = await refused(read_all())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "0.2 s" in error.details()


async def test_a_tenant_s_streams_are_limited_and_a_refused_one_starts_no_job():
    async with serving(max_streams_per_tenant=1) as service:
        call = service.stream()
        await service.cells.running(1)
        error = await refused(service.stream().read())
        assert error_detail(error, error_details_pb2.ErrorInfo).reason == "TOO_MANY_STREAMS"
        assert service.scheduler.stats().waiting == 0
        service.cells.release(0)
        assert (await call.read()).result
        assert await call.read() is grpc.aio.EOF
        again = service.stream()
        await service.cells.running(2)
        again.cancel()


async def test_a_stream_that_is_not_read_loses_its_job_and_says_so():
    async with serving() as service:
        call = service.stream()
        await service.cells.running(1)
        service.cells.sinks[0](1, b"x" * (STREAM_BYTES + 1))
        error = await refused(call.read())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error_detail(error, error_details_pb2.ErrorInfo).reason == "READER_TOO_SLOW"
        await until(lambda: len(service.cells.killed) == 1)


async def test_capabilities_tell_limits_protections_and_places():
    async with serving(max_processes=99) as service:
        reply = await service.stub.GetCapabilities(pb.GetCapabilitiesRequest(), timeout=5)
    assert (list(reply.cells), list(reply.languages), list(reply.environments)) == (["held"], ["python"], ["base"])
    assert dict(reply.language_versions) == {"python": "3.11.7"}
    assert (reply.concurrency, reply.queue_size) == (1, 1)
    assert (reply.default_limits.processes, reply.maximum_limits.processes) == (64, 99)
    assert [(wall.name, wall.in_force) for wall in reply.protections] == [("rlimits", True), ("own_uid", False)]
    assert reply.version
