import asyncio
import json
import logging
from contextlib import asynccontextmanager
from datetime import timedelta

import grpc
import pytest
from codemend.rpc import REQUEST_ID, ErrorRule, ErrorTable, error_detail
from codemend.rpc.calls import CallInterceptor, CallTracker
from codemend.rpc.logs import JsonFormatter
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from support.waiting import until

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class KnownError(Exception):
    pass


ERRORS = ErrorTable({KnownError: ErrorRule(grpc.StatusCode.NOT_FOUND, "KNOWN")})


@asynccontextmanager
async def serving(behaviour, kind="unary_unary", decode=None, **options):
    """A server with one method; gives a function that calls it and collects its responses, and the tracker."""
    tracker = CallTracker()
    server = grpc.aio.server(interceptors=[CallInterceptor(ERRORS, tracker, **options)])
    handler = getattr(grpc, f"{kind}_rpc_method_handler")(behaviour, decode)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Service", {"Method": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = getattr(channel, kind)("/test.Service/Method")

        def start(**options):
            request = b"ask" if kind.startswith("unary") else iter([b"a", b"b"])
            return method(request, **{"timeout": 10, **options})

        yield start, tracker
    await server.stop(0)


async def responses(call):
    if hasattr(call, "__aiter__"):
        return [response async for response in call]
    return [await call]


def raising(kind, error):
    async def single(_request, _context):
        raise error

    async def stream(_request, _context):
        yield b"first"
        raise error

    return single if kind.endswith("_unary") else stream


@pytest.mark.parametrize("kind", KINDS)
async def test_answers_pass_through_every_kind_of_method(kind):
    async def single(_request, _context):
        return b"answer"

    async def stream(_request, _context):
        yield b"one"
        yield b"two"

    is_single = kind.endswith("_unary")
    async with serving(single if is_single else stream, kind) as (start, _):
        assert await responses(start()) == ([b"answer"] if is_single else [b"one", b"two"])


async def test_a_handler_that_writes_by_itself_passes_through():
    async def writes(_request, context):
        await context.write(b"one")
        await context.write(b"two")

    async with serving(writes, "unary_stream") as (start, _):
        assert await responses(start()) == [b"one", b"two"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_known_error_becomes_its_status_in_every_kind_of_method(kind):
    async with serving(raising(kind, KnownError("no such thing")), kind) as (start, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(start())
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "no such thing")


@pytest.mark.parametrize("kind", KINDS)
async def test_the_text_of_a_fault_never_reaches_the_caller(kind):
    async with serving(raising(kind, RuntimeError("password")), kind) as (start, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(start())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "password" not in repr(caught.value)
    assert "err_" in caught.value.details()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancellation_from_inside_is_an_internal_error_and_not_silence(kind):
    async with serving(raising(kind, asyncio.CancelledError()), kind) as (start, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(start())
    assert caught.value.code() is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_that_cannot_be_read_is_the_caller_s_fault(kind):
    async def single(request, _context):
        return b"".join([part async for part in request] if kind.startswith("stream") else [request])

    async def stream(request, _context):
        yield await single(request, _context)

    def decode(raw):
        if raw in (b"ask", b"b"):
            raise DecodeError("bad UTF-8")
        return raw

    async with serving(single if kind.endswith("_unary") else stream, kind, decode) as (start, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(start())
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "bad UTF-8")
    assert error_detail(caught.value, error_details_pb2.BadRequest).field_violations[0].description == "bad UTF-8"


async def test_an_abort_of_the_handler_keeps_its_code():
    async def aborts(_request, context):
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")

    async with serving(aborts) as (start, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(start())
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not now")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_caller_that_cancels_ends_the_handler_and_its_clean_up_is_waited_for(kind, caplog):
    started, cleaned = asyncio.Event(), asyncio.Event()

    async def single(_request, _context):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    async def stream(request, context):
        yield b"first"
        await single(request, context)

    async with serving(single if kind.endswith("_unary") else stream, kind) as (start, tracker):
        with caplog.at_level(logging.INFO, "codemend.rpc.calls"):
            call = start()
            await asyncio.wait_for(started.wait(), 5)
            assert tracker.running == 1
            call.cancel()
            await asyncio.wait_for(tracker.idle(), 5)
        assert cleaned.is_set()
        assert caplog.records[-1].code == "CANCELLED"


async def test_a_stream_that_its_caller_leaves_between_two_messages_counts_until_it_is_cleaned_up():
    cleaning, may_end = asyncio.Event(), asyncio.Event()

    async def endless(_request, _context):
        try:
            while True:
                yield b"x" * 100_000
        finally:
            cleaning.set()
            await may_end.wait()

    async with serving(endless, "unary_stream") as (start, tracker):
        call = start()
        await call.read()
        call.cancel()
        await asyncio.wait_for(cleaning.wait(), 5)
        await asyncio.sleep(0)
        assert tracker.running == 1
        may_end.set()
        await asyncio.wait_for(tracker.idle(), 5)


async def test_a_deadline_ends_the_handler(caplog):
    async def waits(_request, _context):
        await asyncio.Event().wait()

    async with serving(waits) as (start, tracker):
        with caplog.at_level(logging.INFO, "codemend.rpc.calls"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await responses(start(timeout=0.1))
            await asyncio.wait_for(tracker.idle(), 5)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caplog.records[-1].code == "DEADLINE_EXCEEDED"


async def test_an_unknown_method_stays_unimplemented():
    async def unused(_request, _context):
        return b""

    async with serving(unused) as (start, _):
        call = start()
        assert await call == b""
    tracker = CallTracker()
    server = grpc.aio.server(interceptors=[CallInterceptor(ERRORS, tracker)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/test.Service/Missing")(b"", timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(0)


class Flood:
    """A stream without an end, which notes its own end and that of its call."""

    def __init__(self, size):
        self.size = size
        self.has_ended = self.is_over = False

    async def __call__(self, _request, context):
        context.add_done_callback(lambda _: setattr(self, "is_over", True))
        try:
            while True:
                yield b"x" * self.size
        finally:
            self.has_ended = True


@pytest.mark.parametrize("size", [60_000, 3_000_000])  # the first message fits into the window, or waits itself
async def test_a_stream_whose_reader_stalls_ends_and_its_call_is_over_when_the_reader_has_read_on(size):
    flood = Flood(size)
    async with serving(flood, "unary_stream", stall=timedelta(seconds=0.1)) as (start, tracker):
        call = start(timeout=30)
        await until(lambda: flood.has_ended)
        assert not flood.is_over
        assert tracker.running == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(call)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "0.1 s" in caught.value.details()
        assert error_detail(caught.value, error_details_pb2.ErrorInfo).reason == "READER_STALLED"
        await until(lambda: flood.is_over)
        await asyncio.wait_for(tracker.idle(), 5)


async def test_a_stalled_reader_that_leaves_ends_its_call():
    flood = Flood(60_000)
    async with serving(flood, "unary_stream", stall=timedelta(seconds=0.1)) as (start, tracker):
        call = start(timeout=30)
        await until(lambda: flood.has_ended)
        call.cancel()
        await asyncio.wait_for(tracker.idle(), 5)
        assert flood.is_over


async def test_a_stalled_reader_does_not_hold_up_a_stop():
    flood = Flood(60_000)
    async with serving(flood, "unary_stream", stall=timedelta(seconds=0.1)) as (start, tracker):
        call = start(timeout=30)
        await until(lambda: flood.has_ended)
    await asyncio.wait_for(tracker.idle(), 5)
    assert call.done()


async def test_a_slow_reader_that_reads_in_time_gets_all_of_a_stream():
    async def long(_request, _context):
        for _ in range(40):
            yield b"x" * 60_000

    async with serving(long, "unary_stream", stall=timedelta(seconds=30)) as (start, _):
        call, count = start(timeout=30), 0
        while await call.read() is not grpc.aio.EOF:
            count += 1
        assert count == 40
        assert await call.code() is grpc.StatusCode.OK


async def seen_request_id(*metadata):
    async def behaviour(_request, _context):
        return REQUEST_ID.get().encode()

    async with serving(behaviour) as (start, _):
        return (await start(metadata=metadata)).decode()


async def test_the_callers_request_id_is_kept():
    assert await seen_request_id(("x-request-id", "req-7")) == "req-7"


@pytest.mark.parametrize("metadata", [(), (("x-request-id", "x" * 129),), (("x-request-id", ""),)])
async def test_without_a_usable_request_id_a_new_one_is_made(metadata):
    assert (await seen_request_id(*metadata)).startswith("req_")


async def test_the_log_of_a_call_holds_method_code_and_time_and_nothing_that_the_caller_sent(caplog):
    async def behaviour(_request, _context):
        return b"the answer"

    with caplog.at_level(logging.INFO, "codemend.rpc.calls"):
        async with serving(behaviour) as (start, tracker):
            await start(metadata=(("authorization", "Bearer s3cret"),))
            await asyncio.wait_for(tracker.idle(), 5)
    line = JsonFormatter().format(caplog.records[-1])
    entry = json.loads(line)
    assert (entry["method"], entry["code"]) == ("/test.Service/Method", "OK")
    assert entry["duration_ms"] >= 0
    assert not any(word in line for word in ("s3cret", "the answer", "ask"))


def test_a_log_line_is_one_line_of_json_whatever_it_holds():
    record = logging.makeLogRecord({"msg": "a\nb \udcff %s", "args": ("x",), "extra_value": {1, 2}, "name": "n"})
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "a\nb \udcff x"
