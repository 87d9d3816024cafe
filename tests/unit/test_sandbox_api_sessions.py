"""The RPCs of sessions over cells that run nothing: what a job is given, and what a cell's word is worth."""

import asyncio
import contextlib
import gc
import gzip
import inspect
from contextlib import asynccontextmanager
from datetime import timedelta

import grpc
import pytest
from codemend.rpc import RpcServer, error_detail, open_channel, parse_address
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sandbox_pb2_grpc as pb_grpc
from codemend.sandbox.v1 import sessions_pb2 as sessions
from google.rpc import error_details_pb2
from support.cells import HeldCells, succeeded
from support.jobs import limits
from support.sessions import FILES, Sessions, archive, file_parts, member
from support.waiting import until

from sandbox_service.api import ERRORS, uploads
from sandbox_service.api import downloads as api_downloads
from sandbox_service.api import sessions as api_sessions
from sandbox_service.cells.changes import ChangesReader
from sandbox_service.domain import Entry, EntryKind, File, JobOutcome, Lease, WorkspaceChanges
from sandbox_service.guest.exchange import workspace as records
from sandbox_service.scheduler import Scheduler
from sandbox_service.server import SERVICE, make_keys, make_servicer, make_sessions
from sandbox_service.settings import Settings

MIB = 1024 * 1024
FILE, DIRECTORY = EntryKind.FILE, EntryKind.DIRECTORY


class Service(Sessions):
    def __init__(self, channel, cells, store):
        super().__init__(pb_grpc.SandboxServiceStub(channel))
        self.channel, self.cells, self.store = channel, cells, store


@asynccontextmanager
async def serving(**settings):
    values = Settings(**{"address": "127.0.0.1:0", "concurrency": 1, "queue_size": 5, **settings})
    cells = HeldCells()
    store = make_sessions(values, cells)
    scheduler = Scheduler(cells, concurrency=values.concurrency, queue_size=values.queue_size)
    server = RpcServer(ERRORS, reflection=False, maximum_calls=100, stall=values.stream_stall_time)
    servicer = make_servicer(scheduler, cells, values, make_keys(values), store)
    server.add(SERVICE, lambda target: pb_grpc.add_SandboxServiceServicer_to_server(servicer, target))
    bound = await server.start(parse_address(values.address))
    async with open_channel(str(bound)) as channel:
        yield Service(channel, cells, store)
    await scheduler.stop()
    await server.stop()


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def ended(changes):
    return JobOutcome(succeeded().result, None, changes)


async def test_a_job_gets_the_workspace_without_what_its_own_files_replace_and_the_session_s_terms():
    async with serving() as service, service.session({"a": "1", "d/b": "2"}, "t", disk_bytes=3 * MIB) as bench:
        running = bench.begin("pass", more={"a": "new", "e": "own"})
        await service.cells.running(1)
        job, lease = service.cells.started[0], service.cells.leases[0]
        assert list(job.workspace) == [Entry(b"d", DIRECTORY), Entry(b"d/b", FILE, b"2")]
        assert list(job.files) == [File("a", b"new"), File("e", b"own")]
        assert (job.workspace_bytes, job.limits.disk_bytes) == (3 * MIB, 3 * MIB)
        assert lease == Lease("t", bench.id)
        service.cells.release(0, ended(WorkspaceChanges(removed=(b"e",), left_out=(b"\xff",))))
        update = (await running).result.workspace
        assert (update.kept, update.written, update.removed, list(update.left_out)) == (True, 1, 0, ["\\xff"])
        assert (await bench.download()).files == {"a": b"new", "d/b": b"2"}


async def test_a_job_outside_of_sessions_has_no_workspace_and_no_update():
    async with serving() as service:
        request = pb.ExecuteRequest(program=pb.Program(command=pb.Command(argv=["x"])))
        call = service.stub.Execute(request, timeout=10)
        await service.cells.running(1)
        assert service.cells.started[0].workspace is None
        service.cells.release(0)
        assert not (await call).result.HasField("workspace")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (None, "as a whole"),
        (WorkspaceChanges(oversize_bytes=5 * MIB), str(5 * MIB)),
        (WorkspaceChanges(written=(Entry(b"big", FILE, bytes(4 * MIB)),)), str(MIB)),
        (WorkspaceChanges(refusal="all sessions are full"), "all sessions are full"),
    ],
    ids=["no word", "too large by the cell's word", "too large as it came", "more than all sessions may hold"],
)
async def test_changes_that_are_not_kept_leave_everything_and_say_why(changes, reason):
    async with serving() as service, service.session({"a": "1"}, disk_bytes=MIB) as bench:
        running = bench.begin("pass", more={"own": "x"})
        await service.cells.running(1)
        service.cells.release(0, ended(changes))
        update = (await running).result.workspace
        assert not update.kept
        assert reason in update.reason
        assert (await bench.download()).files == {"a": b"1"}
        assert (await bench.state()).jobs == 1


async def test_what_running_jobs_bring_counts_against_all_sessions_bytes_until_they_have_ended():
    async with (
        serving(session_bytes=8 * MIB, concurrency=2) as service,
        service.session({"a": "1"}) as first,
        service.session({"a": "1"}) as second,
    ):
        running = [first.begin("pass"), second.begin("pass")]
        await service.cells.running(2)
        readers = [ChangesReader(job.workspace_bytes, job.reserve) for job in service.cells.started]
        for reader in readers:  # as their cells tell it, at one time: each of them alone has room for it
            reader.feed(records.RECORD.pack(records.FILE, 0, 1, 5 * MIB) + b"b")
        assert service.store.held_bytes == 5 * MIB + 2 * 4096
        for reader in readers:
            reader.feed(bytes(5 * MIB) + records.RECORD.pack(records.END, 0, 0, 0))
        for number, reader in enumerate(readers):
            service.cells.release(number, ended(reader.changes()))
        kept, refused_one = [(await call).result.workspace for call in running]
        assert kept.kept
        assert not refused_one.kept
        assert refused_one.reason == f"all sessions together may hold {8 * MIB} bytes"
        assert set((await first.download()).files) == {"a", "b"}
        assert (await second.download()).files == {"a": b"1"}
        assert service.store.held_bytes == 5 * MIB + 2 * 4096


async def test_changes_that_cannot_be_are_a_fault_of_the_service_and_change_nothing():
    async with serving() as service, service.session({"a": "1"}) as bench:
        running = bench.begin("pass")
        await service.cells.running(1)
        service.cells.release(0, ended(WorkspaceChanges(written=(Entry(b"../up", FILE),))))
        assert (await refused(running)).code() is grpc.StatusCode.INTERNAL
        assert (await bench.download()).files == {"a": b"1"}


async def test_a_session_can_be_deleted_while_its_job_waits_for_a_place():
    async with serving() as service, service.session() as first, service.session() as second:
        running = first.begin("pass")
        await service.cells.running(1)
        waiting = second.begin("pass")
        async with asyncio.timeout(5):
            while (await refused(second.run("none"))).code() is not grpc.StatusCode.ABORTED:
                pass
        await second.delete()
        assert (await refused(waiting)).code() is grpc.StatusCode.NOT_FOUND
        service.cells.release(0, ended(WorkspaceChanges()))
        assert (await running).result.workspace.kept
        assert len(service.cells.started) == 1


async def test_limits_are_held_against_what_lies_there_after_the_call_s_files_replaced_some():
    async with serving() as service, service.session({"a": bytes(2 * MIB)}) as bench:
        error = await refused(bench.python("pass", limits=limits(disk_bytes=MIB)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        running = bench.begin("pass", more={"a": "small"}, limits=limits(disk_bytes=MIB))
        await service.cells.running(1)
        service.cells.release(0, ended(WorkspaceChanges()))
        assert (await running).result.workspace.kept
        assert (await bench.state()).used_bytes == 4096


async def test_an_upload_that_brings_nothing_more_ends_and_frees_the_session(monkeypatch):
    monkeypatch.setattr(uploads, "STALL_TIME", timedelta(seconds=0.2))
    async with serving() as service, service.session({"a": "1"}) as bench:
        call = service.stub.UploadFiles(timeout=20)
        await call.write(sessions.UploadFilesRequest(start=sessions.UploadStart(session=bench.id, format=FILES)))
        for part in file_parts({"b": "2"}):
            await call.write(part)
        error = await refused(call)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "0.2 s" in error.details()
        assert (await bench.download()).files == {"a": b"1"}


async def test_an_upload_into_a_session_that_is_deleted_meanwhile_finds_none():
    async with serving() as service:
        bench = await service.create()
        call = service.stub.UploadFiles(timeout=20)
        await call.write(sessions.UploadFilesRequest(start=sessions.UploadStart(session=bench.id, format=FILES)))
        async with asyncio.timeout(5):
            while (await refused(bench.run("none"))).code() is not grpc.StatusCode.ABORTED:
                pass
        await bench.delete()
        await call.write(file_parts({"b": "2"})[0])  # its answer may come before more could be written
        assert (await refused(call)).code() is grpc.StatusCode.NOT_FOUND
        assert service.store.held_bytes == 0


async def stalled_download(service, session, tenant="", size=40 * MIB):
    """A download of which one message was read."""
    request = sessions.DownloadFilesRequest(session=session, format=FILES)
    call = service.stub.DownloadFiles(request, timeout=60, metadata=(("x-codemend-tenant", tenant),))
    assert (await call.read()).file.size == size
    return call


def downloads():
    """Workspaces that downloads hold, by the generators that hold them."""
    gc.collect()
    mine = api_downloads.messages.__code__
    return [thing for thing in gc.get_objects() if inspect.isgenerator(thing) and thing.gi_code is mine]


async def test_a_download_that_is_not_read_ends_and_lets_go_of_the_files():
    async with (
        serving(stream_stall_time=timedelta(seconds=0.2)) as service,
        service.session({"big": bytes(40 * MIB)}) as bench,
    ):
        call = await stalled_download(service, bench.id)
        assert downloads()
        await until(lambda: not downloads())
        error = await refused(drained(call))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "0.2 s" in error.details()


async def test_streams_of_one_tenant_hold_no_place_of_another_s_and_give_theirs_back_when_they_are_over():
    limits = {"max_streams": 3, "max_streams_per_tenant": 2, "stream_stall_time": timedelta(seconds=1)}
    async with (
        serving(**limits) as service,
        service.session({"big": bytes(40 * MIB)}, "a") as mine,
        service.session({"big": bytes(40 * MIB)}, "b") as other,
        service.session({"c": "1"}, "c") as third,
    ):
        unread = [await stalled_download(service, mine.id, "a", 40 * MIB) for _ in range(2)]
        await until(lambda: not downloads(), 30)  # the server has given up on both, and both are there still
        error = await refused(mine.download())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "tenant has 2 streaming calls" in error.details()
        assert error_detail(error, error_details_pb2.ErrorInfo).reason == "TOO_MANY_STREAMS"
        assert error_detail(error, error_details_pb2.RetryInfo).retry_delay.seconds == 1
        assert (await third.download()).files == {"c": b"1"}
        unread.append(await eventually(lambda: stalled_download(service, other.id, "b", 40 * MIB)))
        assert "server has 3 streaming calls" in (await refused(third.upload({"d": "2"}))).details()
        await refused(drained(unread[0]))
        unread[1].cancel()
        assert set((await eventually(mine.download)).files) == {"big"}
        unread[2].cancel()


async def eventually(call):
    """The server learns of a stream's end a moment after its caller."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                return await call()


async def drained(call):
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_capabilities_tell_how_many_sessions_there_may_be_and_for_how_long():
    async with serving(
        max_sessions=7, max_session_ttl=timedelta(hours=9), max_session_idle_ttl=timedelta(hours=5)
    ) as service:
        reply = await service.stub.GetCapabilities(pb.GetCapabilitiesRequest())
        assert reply.maximum_sessions == 7
        assert reply.maximum_session_ttl.ToTimedelta() == timedelta(hours=9)
        assert reply.maximum_streams_per_tenant == 512


async def test_small_files_take_one_page_each_of_an_upload():
    async with serving() as service, service.session(disk_bytes=4 * 4096) as bench:
        assert (await bench.upload(dict.fromkeys("abcd", "x"))).entries == 4
        assert (await refused(bench.upload({"e": "x"}))).code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_packed_archive_holds_what_it_unpacks_to_of_all_sessions_bytes():
    async with (
        serving(session_bytes=8 * MIB) as service,
        service.session({"full": bytes(5 * MIB)}),
        service.session(disk_bytes=8 * MIB) as bench,
    ):
        bomb = gzip.compress(archive(member("a", content=bytes(4 * MIB))))
        assert len(bomb) < MIB
        error = await refused(bench.unpack(bomb))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert service.store.held_bytes == 5 * MIB
        await bench.unpack(gzip.compress(archive(member("a", content=bytes(MIB)))))
        assert service.store.held_bytes == 6 * MIB


async def test_an_upload_of_deep_paths_is_refused_before_all_its_directories_are_made():
    async with serving() as service, service.session(disk_bytes=4 * MIB) as bench:
        deep = {f"{number}/{'d/' * 500}f": "" for number in range(100)}
        error = await refused(bench.upload(deep))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "4194304 bytes hold 1024 entries" in error.details()


async def test_patterns_that_take_too_much_work_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(api_sessions, "PATTERN_STEPS", 1000)
    async with serving() as service, service.session({f"a/{number}": "x" for number in range(20)}) as bench:
        assert len((await bench.download("**/*")).files) == 20
        for call in (bench.download("/".join(["**"] * 50)), bench.download(*["**/a"] * 20)):
            error = await refused(call)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error_detail(error, error_details_pb2.BadRequest).field_violations[0].field == "patterns"


@pytest.mark.parametrize("rpc", ["GetSession", "Execute", "ExecuteStream", "UploadFiles"])
async def test_a_string_that_is_no_unicode_is_the_caller_s_fault(rpc):
    request = b"\x0a\x04\xed\xa0\x80x"  # field 1: a lone surrogate and a letter
    nested = b"\x0a" + bytes([len(request) + 2]) + b"\x22" + request[1:]  # program.entry
    async with serving() as service:
        channel = service.channel
        path = f"/{SERVICE.full_name}/{rpc}"
        call = {
            "GetSession": lambda: channel.unary_unary(path)(request),
            "Execute": lambda: channel.unary_unary(path)(nested),
            "ExecuteStream": lambda: channel.unary_stream(path)(nested).read(),
            "UploadFiles": lambda: channel.stream_unary(path)(iter([request])),
        }[rpc]
        assert (await refused(call())).code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_parts_that_end_because_the_caller_left_are_no_upload(monkeypatch):
    ended, left = asyncio.Event(), asyncio.Event()
    receive = uploads.receive

    async def late(*arguments):
        """The end of the parts is seen, and the cancellation not yet."""
        received = await receive(*arguments)
        ended.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        left.set()
        return received

    monkeypatch.setattr(uploads, "receive", late)
    async with serving() as service:
        bench = await service.create()
        call = service.stub.UploadFiles(timeout=20)
        await call.write(sessions.UploadFilesRequest(start=sessions.UploadStart(session=bench.id, format=FILES)))
        for part in file_parts({"half": "x"}):
            await call.write(part)
        await call.done_writing()
        await asyncio.wait_for(ended.wait(), 5)
        call.cancel()
        await asyncio.wait_for(left.wait(), 5)
        await until(lambda: service.store.held_bytes == 0)
        assert (await bench.state()).entries == 0
