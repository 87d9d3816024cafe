"""A loaded sandbox service as its callers have it: tenants, quotas, deadlines, idempotency keys, metrics; real jobs."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import statistics
import time

import grpc
import pytest
from codemend.rpc import error_detail, open_channel
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sandbox_pb2_grpc as pb_grpc
from google.rpc import error_details_pb2
from support import footprint
from support.sandbox import running_sandbox, sandbox_process
from support.scraped import families, metrics_address
from support.waiting import until

FOREVER = "import time\ntime.sleep(60)"


def short(seconds):
    return f"import time\ntime.sleep({seconds})"


class Caller:
    """One tenant's calls."""

    def __init__(self, stub, tenant=""):
        self.stub = stub
        self.metadata = [("x-codemend-tenant", tenant)] if tenant else []

    def execute(self, code="pass", key="", timeout=60, **fields):
        program = pb.Program(files=[pb.File(path="main.py", content=code.encode())], entry="main.py", **fields)
        request = pb.ExecuteRequest(program=program, idempotency_key=key)
        return self.stub.Execute(request, timeout=timeout, metadata=self.metadata)

    def tests(self, key="", timeout=60):
        test = pb.File(path="test_a.py", content=b"def test_a(): pass")
        request = pb.RunTestsRequest(tests=[test], idempotency_key=key)
        return self.stub.RunTests(request, timeout=timeout, metadata=self.metadata)

    def stream(self, code, timeout=60):
        program = pb.Program(files=[pb.File(path="main.py", content=code.encode())], entry="main.py")
        request = pb.ExecuteStreamRequest(program=program)
        return self.stub.ExecuteStream(request, timeout=timeout, metadata=self.metadata)

    async def occupies(self):
        """A job that runs until its call is cancelled, once it has started."""
        call = self.stream("print('up', flush=True)\n" + FOREVER)
        assert (await call.read()).stdout_chunk == b"up\n"
        return call


@pytest.fixture
async def channels():
    opened = []

    def connect(address):
        opened.append(open_channel(address))
        return pb_grpc.SandboxServiceStub(opened[-1])

    yield connect
    for channel in opened:
        await channel.close()


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def timed(call, ends):
    reply = await call
    ends.append(reply.result.queue_time.ToTimedelta().total_seconds())
    return reply


async def test_a_flooding_tenant_does_not_keep_a_quiet_one_waiting(channels):
    flood_waits, quiet_waits, quiet_turns = [], [], []
    async with running_sandbox(SANDBOX_CONCURRENCY="2", SANDBOX_QUEUE_SIZE="600") as address:
        stub = channels(address)
        flood, quiet = Caller(stub, "flood"), Caller(stub, "quiet")
        calls = [asyncio.create_task(timed(flood.execute(short(0.01)), flood_waits)) for _ in range(200)]
        await until(lambda: len(flood_waits) >= 10, 30)
        for _ in range(10):
            before = len(flood_waits)
            await timed(quiet.execute(short(0.01)), quiet_waits)
            quiet_turns.append(len(flood_waits) - before)
        finished_before_the_flood = sum(call.done() for call in calls) < 200
        await asyncio.gather(*calls)
    assert finished_before_the_flood
    # While a quiet job waits and runs, each of the two places ends about one job of the flood.
    assert statistics.median(quiet_turns) <= 4, quiet_turns
    assert max(quiet_turns) <= 12, quiet_turns
    assert statistics.median(quiet_waits) < statistics.median(flood_waits) / 10


async def test_a_tenant_of_long_jobs_does_not_starve_one_of_short_ones(channels):
    order = []

    async def run(caller, name, seconds):
        await caller.execute(short(seconds))
        order.append(name)

    async with running_sandbox(SANDBOX_CONCURRENCY="2", SANDBOX_QUEUE_SIZE="600") as address:
        stub = channels(address)
        long, brief = Caller(stub, "long"), Caller(stub, "brief")
        calls = [asyncio.create_task(run(long, "long", 0.6)) for _ in range(12)]
        await until(lambda: "long" in order, 30)
        calls += [asyncio.create_task(run(brief, "brief", 0.01)) for _ in range(16)]
        await asyncio.gather(*calls)
    # Equal shares of time: sixteen short jobs take about as long as three long ones; taken job by job in turn, all
    # twelve long ones would have been done before the last short one.
    done = len(order) - order[::-1].index("brief")
    assert order[:done].count("long") <= 8, order


async def test_many_tenants_that_flood_together_finish_side_by_side(channels):
    order = []

    async def run(caller, name):
        await caller.execute(short(0.01))
        order.append(name)

    env = {"SANDBOX_CONCURRENCY": "2", "SANDBOX_QUEUE_SIZE": "400", "SANDBOX_METRICS_ADDRESS": "127.0.0.1:0"}
    async with sandbox_process(**env) as service:
        stub = channels(service.address)
        callers = {name: Caller(stub, name) for name in ("a", "b", "c", "d")}
        blockers = [await Caller(stub, "other").occupies() for _ in range(2)]
        calls = [asyncio.create_task(run(caller, name)) for name, caller in callers.items() for _ in range(25)]
        await until_gauge(service, "jobs_waiting", 100)
        for blocker in blockers:
            blocker.cancel()
        await asyncio.gather(*calls)
    first_half = order[:50]
    assert all(first_half.count(name) >= 6 for name in "abcd"), first_half


async def until_gauge(service, name, value):
    """Waits until a metric has this value."""
    async with asyncio.timeout(30):
        while (await scraped(service))[f"codemend_sandbox_{name}"]["",] != value:
            pass


async def test_a_tenant_s_limits_are_named_when_it_meets_them_and_others_are_served(channels):
    env = {"SANDBOX_CONCURRENCY": "1", "SANDBOX_TENANT_WAITING": "2", "SANDBOX_METRICS_ADDRESS": "127.0.0.1:0"}
    async with sandbox_process(**env) as service:
        stub = channels(service.address)
        greedy, modest = Caller(stub, "greedy"), Caller(stub, "modest")
        blocker = await greedy.occupies()
        waiting = [greedy.execute() for _ in range(2)]
        await until_gauge(service, "jobs_waiting", 2)
        error = await refused(greedy.execute())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error_detail(error, error_details_pb2.ErrorInfo).reason == "TENANT_LIMIT"
        quota = error_detail(error, error_details_pb2.QuotaFailure).violations[0]
        assert (quota.subject, quota.description) == ("tenant:greedy", "2 waiting")
        delay = error_detail(error, error_details_pb2.RetryInfo).retry_delay.ToTimedelta().total_seconds()
        assert 0 < delay <= 60
        served = modest.execute()
        blocker.cancel()
        assert (await served).result.status == pb.EXECUTION_STATUS_SUCCEEDED
        await asyncio.gather(*waiting)


async def test_a_tenant_s_running_limit_leaves_places_to_others(channels):
    async with running_sandbox(SANDBOX_CONCURRENCY="2", SANDBOX_TENANT_RUNNING="1") as address:
        stub = channels(address)
        greedy, modest = Caller(stub, "greedy"), Caller(stub, "modest")
        blocker = await greedy.occupies()
        held_back = greedy.execute()
        for _ in range(3):
            assert (await modest.execute()).result.exit_code == 0
        assert not held_back.done()
        blocker.cancel()
        assert (await held_back).result.exit_code == 0


async def test_a_tenant_s_name_must_be_short_and_plain(channels):
    async with running_sandbox() as address:
        stub = channels(address)
        for name in ("a b", "x" * 129, "a/b"):
            error = await refused(Caller(stub, name).execute())
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error_detail(error, error_details_pb2.BadRequest).field_violations[0].field == "x-codemend-tenant"


async def test_a_deadline_that_cannot_be_met_is_refused_at_once(channels):
    async with sandbox_process(SANDBOX_CONCURRENCY="1", SANDBOX_METRICS_ADDRESS="127.0.0.1:0") as service:
        caller = Caller(channels(service.address))
        await caller.execute(short(2))
        blocker = await caller.occupies()
        waiting = [caller.execute() for _ in range(4)]
        await until_gauge(service, "jobs_waiting", 4)
        began = time.monotonic()
        error = await refused(caller.execute(timeout=4))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "a turn is expected in" in error.details()
        assert time.monotonic() - began < 3
        blocker.cancel()
        await asyncio.gather(*waiting)


async def test_a_job_whose_deadline_passes_in_the_queue_never_starts(channels):
    async with sandbox_process(SANDBOX_CONCURRENCY="1", SANDBOX_METRICS_ADDRESS="127.0.0.1:0") as service:
        caller = Caller(channels(service.address))
        blocker = await caller.occupies()
        late = [caller.execute(timeout=0.3, key=f"k{number}" if number % 2 else "") for number in range(6)]
        for call in late:
            assert (await refused(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        blocker.cancel()
        await caller.execute()
        figures = await scraped(service)
        assert figures["codemend_sandbox_queue_seconds"]["_count", "program"] == 2
        assert figures["codemend_sandbox_refusals"]["_total", "deadline"] == len(late)


async def test_fifty_duplicates_run_one_job_and_a_later_one_gets_the_same_result(channels):
    async with sandbox_process(SANDBOX_METRICS_ADDRESS="127.0.0.1:0") as service:
        caller = Caller(channels(service.address), "t")
        code = "import os, time\ntime.sleep(0.3)\nprint(os.urandom(16).hex())"
        replies = await asyncio.gather(*(caller.execute(code, key="once") for _ in range(50)))
        later = await caller.execute(code, key="once")
        assert {reply.result.stdout.head for reply in [*replies, later]} == {replies[0].result.stdout.head}
        other = await Caller(channels(service.address), "u").execute(code, key="once")
        assert other.result.stdout.head != later.result.stdout.head
        error = await refused(caller.execute("print(2)", key="once"))
        assert error.code() is grpc.StatusCode.ALREADY_EXISTS
        reports = await asyncio.gather(*(caller.tests(key="once") for _ in range(5)))
        assert {reply.report.outcome for reply in reports} == {pb.REPORT_OUTCOME_PASSED}
        figures = await scraped(service)
        ran = figures["codemend_sandbox_jobs"]
        assert (ran["_total", "program", "SUCCEEDED"], ran["_total", "tests", "SUCCEEDED"]) == (2, 1)
        assert figures["codemend_sandbox_idempotency_results"]["",] == 3


async def test_a_result_is_forgotten_when_its_window_has_passed(channels):
    async with running_sandbox(SANDBOX_IDEMPOTENCY_WINDOW="200ms") as address:
        caller = Caller(channels(address))
        code = "import os\nprint(os.urandom(16).hex())"
        first = (await caller.execute(code, key="k")).result.stdout.head
        async with asyncio.timeout(20):
            while (await caller.execute(code, key="k")).result.stdout.head == first:
                pass


def kill_templates(service):
    for pid in footprint.children(service):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def test_a_call_lost_to_a_dead_template_is_unavailable_and_the_same_key_runs_it_again(channels):
    async with sandbox_process(SANDBOX_CONCURRENCY="1", SANDBOX_METRICS_ADDRESS="127.0.0.1:0") as service:
        caller = Caller(channels(service.address))
        running = asyncio.ensure_future(refused(caller.execute(short(30), key="k")))
        await until_gauge(service, "jobs_running", 1)
        while not running.done():  # one that dies before it gets its order is started again
            kill_templates(service.process.pid)
            await asyncio.wait({running}, timeout=0.05)
        error = await running
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error_detail(error, error_details_pb2.RetryInfo) is not None
        again = await caller.execute("print('again')", key="k")  # a lost call leaves its key free
        assert again.result.stdout.head == b"again\n"


async def test_a_call_lost_to_a_killed_service_is_unavailable_and_the_same_key_runs_on_the_next(channels):
    async with sandbox_process() as service:
        caller = Caller(channels(service.address))
        started = await caller.occupies()
        lost = asyncio.ensure_future(refused(caller.execute(short(30), key="k")))
        service.send(signal.SIGKILL)
        assert (await lost).code() is grpc.StatusCode.UNAVAILABLE
        started.cancel()
        async with sandbox_process(service.address) as next_one:
            caller = Caller(channels(next_one.address))
            assert (await caller.execute(short(0), key="k")).result.exit_code == 0


async def scraped(service):
    """The metrics of a service, read over HTTP: family -> (the name's ending, *label values) -> value."""
    reader, writer = await asyncio.open_connection(*metrics_address(service.log()))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n")
    head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
    writer.close()
    assert re.match(rb"HTTP/1\.1 200 ", head)
    return families(body.decode())


async def test_a_scraper_finds_jobs_times_refusals_and_protections(channels):
    env = {"SANDBOX_CONCURRENCY": "1", "SANDBOX_QUEUE_SIZE": "0", "SANDBOX_METRICS_ADDRESS": "127.0.0.1:0"}
    async with sandbox_process(**env) as service:
        caller = Caller(channels(service.address))
        await caller.execute(short(0.2))
        await caller.execute("raise SystemExit(3)")
        await caller.tests()
        blocker = await caller.occupies()
        assert (await refused(caller.execute())).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        figures = await scraped(service)
        blocker.cancel()
    jobs = figures["codemend_sandbox_jobs"]
    assert (jobs["_total", "program", "SUCCEEDED"], jobs["_total", "program", "FAILED"]) == (1, 1)
    assert figures["codemend_sandbox_test_reports"]["_total", "PASSED"] == 1
    assert figures["codemend_sandbox_refusals"]["_total", "queue_full"] == 1
    assert figures["codemend_sandbox_jobs_running"]["",] == 1
    assert 0.2 < figures["codemend_sandbox_run_seconds"]["_sum", "program"] < 10
    assert figures["codemend_sandbox_cell_seconds"]["_count", "tests"] == 1
    assert figures["codemend_sandbox_protection_in_force"]["", "process", "rlimits"] == 1


async def test_a_metrics_port_that_is_taken_stops_the_start_and_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AssertionError, match=f"cannot listen on 127.0.0.1:{port} for metrics: .*in use"):
            async with running_sandbox(SANDBOX_METRICS_ADDRESS=f"127.0.0.1:{port}"):
                pass
