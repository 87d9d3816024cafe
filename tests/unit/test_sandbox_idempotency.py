"""Idempotency keys: the memory alone, and the RPCs that use it over cells that the test ends by hand."""

import asyncio
from datetime import timedelta

import grpc
import pytest
from codemend.rpc import RpcServer, error_detail, open_channel, parse_address
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sandbox_pb2_grpc as pb_grpc
from google.rpc import error_details_pb2
from support.cells import HeldCells
from support.waiting import until

from sandbox_service import idempotency
from sandbox_service.api import ERRORS
from sandbox_service.errors import CellUnavailable, InvalidJob, KeyReused, QueueFull, TenantQueueFull
from sandbox_service.idempotency import ENTRY_BYTES, IdempotencyKeys, Scope, check_key
from sandbox_service.scheduler import Scheduler
from sandbox_service.server import SERVICE, make_keys, make_servicer
from sandbox_service.settings import Settings

HERE = Scope("tenant", "Execute")


class Work:
    """Work that the test ends, and that counts how often it ran."""

    def __init__(self):
        self.ran = 0
        self.killed = 0
        self.end = asyncio.get_running_loop().create_future()

    async def __call__(self):
        self.ran += 1
        try:
            return await asyncio.shield(self.end)
        except asyncio.CancelledError:
            self.killed += 1
            raise


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def make(window=60, maximum_bytes=10 * ENTRY_BYTES, clock=None):
    return IdempotencyKeys(
        window=timedelta(seconds=window), maximum_bytes=maximum_bytes, size_of=len, clock=clock or Clock()
    )


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def call(keys, work, key="key", fingerprint=b"f", scope=HERE):
    return asyncio.create_task(keys.once(scope, key, fingerprint, work))


async def result(text=b"result"):
    return text


async def test_the_second_call_gets_the_first_result_and_runs_nothing():
    keys, work = make(), Work()
    work.end.set_result(b"once")
    assert await call(keys, work) == b"once"
    assert await call(keys, work) == b"once"
    assert (work.ran, keys.replayed, keys.remembered) == (1, 1, 1)


async def test_fifty_calls_at_once_run_one_job_and_all_get_its_result():
    keys, work = make(), Work()
    calls = [call(keys, work) for _ in range(50)]
    await settle()
    assert work.ran == 1
    work.end.set_result(b"once")
    assert set(await asyncio.gather(*calls)) == {b"once"}


async def test_only_so_many_calls_wait_for_another_s_result_and_no_tenant_takes_all_their_places(monkeypatch):
    monkeypatch.setattr(idempotency, "MAXIMUM_TENANT_DUPLICATES", 3)
    monkeypatch.setattr(idempotency, "MAXIMUM_DUPLICATES", 5)
    keys, work = make(), Work()
    first = [call(keys, work, scope=Scope(tenant, "Execute")) for tenant in ("a", "b", "c")]
    await settle()
    waiting = [call(keys, work, scope=Scope(tenant, "Execute")) for tenant in ("a", "a", "a", "b", "b")]
    await settle()
    for tenant, number in (("a", 3), ("c", 0)):
        with pytest.raises(TenantQueueFull, match=f"{number} calls waiting for the results of others"):
            await call(keys, work, scope=Scope(tenant, "Execute"))
    waiting.pop().cancel()
    await settle()
    waiting.append(call(keys, work, scope=Scope("c", "Execute")))
    work.end.set_result(b"x")
    assert set(await asyncio.gather(*first, *waiting)) == {b"x"}
    assert not keys._duplicates


async def test_no_key_remembers_nothing():
    keys, work = make(), Work()
    work.end.set_result(b"x")
    for _ in range(2):
        await call(keys, work, key="")
    assert (work.ran, keys.remembered) == (2, 0)


@pytest.mark.parametrize("is_running", [True, False])
async def test_another_request_under_the_same_key_is_refused(is_running):
    keys, work = make(), Work()
    first = call(keys, work)
    await settle()
    if not is_running:
        work.end.set_result(b"x")
        await first
    with pytest.raises(KeyReused, match="'key' was used for another request"):
        await call(keys, work, fingerprint=b"other")
    assert work.ran == 1
    first.cancel()


@pytest.mark.parametrize("scope", [Scope("other", "Execute"), Scope("tenant", "RunTests")])
async def test_a_key_is_one_key_for_one_tenant_and_one_rpc_only(scope):
    keys = make()
    await call(keys, result)
    assert await call(keys, lambda: result(b"own"), fingerprint=b"other", scope=scope) == b"own"


async def test_a_caller_that_leaves_ends_its_own_wait_alone():
    keys, work = make(), Work()
    leaver, other = call(keys, work), call(keys, work)
    await settle()
    leaver.cancel()
    await asyncio.wait({leaver})
    assert leaver.cancelled()
    assert work.killed == 0
    work.end.set_result(b"kept")
    assert await other == b"kept"


async def test_work_is_killed_when_all_its_callers_have_left_and_its_key_is_free_again():
    keys, work = make(), Work()
    callers = [call(keys, work) for _ in range(3)]
    await settle()
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    assert (work.ran, work.killed) == (1, 1)
    assert await call(keys, result, fingerprint=b"other") == b"result"


async def test_who_comes_while_abandoned_work_is_being_killed_does_not_wait_for_it():
    keys = make()
    lets_go = asyncio.Event()

    async def stubborn():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await lets_go.wait()
            raise

    leaver = call(keys, stubborn)
    await settle()
    leaver.cancel()
    await settle()
    assert not leaver.done()
    assert await call(keys, result) == b"result"
    lets_go.set()
    await asyncio.wait({leaver})
    assert await call(keys, stubborn) == b"result"


@pytest.mark.parametrize("error", [QueueFull("full", timedelta()), CellUnavailable("none"), ValueError("a fault")])
async def test_an_error_is_told_to_all_who_wait_and_is_not_remembered(error):
    keys, work = make(), Work()
    calls = [call(keys, work) for _ in range(3)]
    await settle()
    work.end.set_exception(error)
    assert set(await asyncio.gather(*calls, return_exceptions=True)) == {error}
    assert await call(keys, result) == b"result"


async def test_a_result_is_forgotten_when_its_window_has_passed():
    clock = Clock()
    keys = make(window=60, clock=clock)
    await call(keys, result)
    clock.now = 59.9
    assert await call(keys, lambda: result(b"new")) == b"result"
    clock.now = 60
    assert await call(keys, lambda: result(b"new"), fingerprint=b"other") == b"new"


async def test_the_oldest_results_go_when_the_bytes_are_used_up():
    keys = make(maximum_bytes=3 * (ENTRY_BYTES + 100))
    for number in range(5):
        await call(keys, lambda: result(b"x" * 100), key=f"k{number}")
    assert (keys.remembered, keys.remembered_bytes) == (3, 3 * (ENTRY_BYTES + 100))
    again = [await call(keys, lambda: result(b"new"), key=f"k{number}") for number in (4, 3, 2, 0)]
    assert [len(text) for text in again] == [100, 100, 100, 3]


async def test_a_result_that_is_larger_than_the_memory_is_given_and_not_remembered():
    keys = make()
    assert len(await call(keys, lambda: result(b"x" * 10 * ENTRY_BYTES))) == 10 * ENTRY_BYTES
    assert (keys.remembered, keys.remembered_bytes) == (0, 0)


@pytest.mark.parametrize("key", ["", "run_1/2", "é" * 64, "a b"])
def test_a_key_is_any_short_printable_text(key):
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["x" * 129, "é" * 65, "a\nb", "\0", "\x7f"])
def test_any_other_key_is_refused_with_its_field(key):
    with pytest.raises(InvalidJob) as caught:
        check_key(key)
    assert caught.value.violations[0][0] == "idempotency_key"


class Service:
    def __init__(self, stub, cells, scheduler):
        self.stub, self.cells, self.scheduler = stub, cells, scheduler

    def execute(self, key="key", code=b"print(1)", tenant="t", timeout=10):
        program = pb.Program(files=[pb.File(path="main.py", content=code)], entry="main.py", env={"A": "1", "B": "2"})
        request = pb.ExecuteRequest(program=program, idempotency_key=key)
        return self.stub.Execute(request, timeout=timeout, metadata=[("x-codemend-tenant", tenant)])


@pytest.fixture
async def service():
    settings = Settings(address="127.0.0.1:0", concurrency=1, queue_size=1)
    cells = HeldCells()
    scheduler = Scheduler(cells, concurrency=1, queue_size=1)
    server = RpcServer(ERRORS, reflection=False, maximum_calls=200)
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


async def test_fifty_duplicate_calls_run_one_job(service):
    calls = [service.execute() for _ in range(50)]
    await service.cells.running(1)
    service.cells.release(0)
    replies = await asyncio.gather(*calls)
    assert {reply.result.status for reply in replies} == {pb.EXECUTION_STATUS_SUCCEEDED}
    assert (await service.execute()).result == replies[0].result
    assert len(service.cells.started) == 1


async def test_another_program_under_the_same_key_already_exists(service):
    first = service.execute()
    await service.cells.running(1)
    error = await refused(service.execute(code=b"print(2)"))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    assert error_detail(error, error_details_pb2.ErrorInfo).reason == "IDEMPOTENCY_KEY_REUSED"
    service.cells.release(0)
    await first


async def test_another_tenant_s_key_is_another_key(service):
    calls = [service.execute(tenant=tenant) for tenant in ("t", "u")]
    await service.cells.running(1)
    service.cells.release(0)
    await service.cells.running(2)
    service.cells.release(1)
    await asyncio.gather(*calls)


async def test_a_key_that_is_none_is_refused_with_its_field(service):
    error = await refused(service.execute(key="x" * 129))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_detail(error, error_details_pb2.BadRequest).field_violations[0].field == "idempotency_key"


async def test_a_caller_s_deadline_ends_its_own_wait_and_the_others_get_the_result(service):
    hasty, patient = service.execute(timeout=0.2), service.execute()
    await service.cells.running(1)
    assert (await refused(hasty)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    service.cells.release(0)
    assert (await patient).result.exit_code == 0
    assert service.cells.killed == []


async def test_the_job_is_killed_when_every_caller_has_left_and_the_same_key_runs_it_again(service):
    calls = [service.execute() for _ in range(3)]
    await service.cells.running(1)
    for one in calls:
        one.cancel()
    await until(lambda: len(service.cells.killed) == 1)
    again = service.execute()
    await service.cells.running(2)
    service.cells.release(1)
    assert (await again).result.exit_code == 0


async def test_a_job_whose_callers_have_all_left_in_the_queue_never_starts(service):
    first = service.execute(key="first")
    await service.cells.running(1)
    assert (await refused(service.execute(key="late", timeout=0.1))).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: service.scheduler.stats().waiting == 0)
    service.cells.release(0)
    await first
    assert len(service.cells.started) == 1


async def test_a_refusal_is_not_remembered(service):
    held = [service.execute(key=key) for key in ("one", "two")]
    await service.cells.running(1)
    await until(lambda: service.scheduler.stats().waiting == 1)
    assert (await refused(service.execute())).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for index in range(2):
        await service.cells.running(index + 1)
        service.cells.release(index)
    await asyncio.gather(*held)
    again = service.execute()
    await service.cells.running(3)
    service.cells.release(2)
    assert (await again).result.exit_code == 0
