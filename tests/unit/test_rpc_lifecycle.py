import asyncio
import logging
import os
import signal
from datetime import timedelta

import grpc
import pytest
from codemend.rpc import ErrorTable, RpcServer, StopSignals, finished, parse_address, serve_until_stopped
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Harness:
    """A server with one slow method, in the middle of `serve_until_stopped`."""

    def __init__(self):
        self.events = []
        self.release = asyncio.Event()
        self.started = asyncio.Event()
        self.has_drained = asyncio.Event()
        self.server = RpcServer(ErrorTable({}), reflection=False, maximum_calls=100)
        handler = grpc.unary_unary_rpc_method_handler(self.slow)
        generic = grpc.method_handlers_generic_handler("test.Service", {"Slow": handler})
        self.server.add(SERVICE, lambda server: server.add_generic_rpc_handlers([generic]))

        self.stop_server = self.server.stop
        self.server.stop = self.stop

    async def stop(self, *grace):
        self.events.append("stop")
        await self.stop_server(*grace)

    async def slow(self, _request, _context):
        self.started.set()
        try:
            await self.release.wait()
        finally:
            self.events.append("handler ended")
        return b"done"

    async def drained(self):
        self.events.append("drained")
        self.has_drained.set()

    async def serve(self, signals, grace):
        await serve_until_stopped(
            self.server, signals, refuse=lambda: self.events.append("refused"), drained=self.drained, grace=grace
        )
        self.events.append("stopped")


async def health(channel, service=""):
    stub = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)).status


async def test_health_says_serving_only_after_the_server_was_told_so():
    harness = Harness()
    bound = await harness.server.start(parse_address("127.0.0.1:0"))
    async with grpc.aio.insecure_channel(str(bound)) as channel:
        for service in ("", SERVICE.full_name):
            assert await health(channel, service) == NOT_SERVING
        await harness.server.set_serving()
        for service in ("", SERVICE.full_name):
            assert await health(channel, service) == SERVING
        await harness.server.set_not_serving()
        assert await health(channel) == NOT_SERVING
    await harness.server.stop()


async def test_a_drain_refuses_then_waits_for_the_running_call_then_stops():
    harness = Harness()
    bound = await harness.server.start(parse_address("127.0.0.1:0"))
    await harness.server.set_serving()
    with StopSignals() as signals:
        async with grpc.aio.insecure_channel(str(bound)) as channel:
            service = asyncio.create_task(harness.serve(signals, timedelta(seconds=10)))
            call = channel.unary_unary("/test.Service/Slow")(b"", timeout=10)
            await asyncio.wait_for(harness.started.wait(), 5)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(signals.first.wait(), 5)
            await asyncio.wait_for(harness.has_drained.wait(), 5)
            assert await health(channel) == NOT_SERVING
            harness.release.set()
            assert await call == b"done"
        await asyncio.wait_for(service, 5)
    assert harness.events == ["refused", "drained", "handler ended", "stop", "stopped"]


@pytest.mark.parametrize("by_signal", [True, False])
async def test_what_still_runs_is_cancelled_after_the_grace_or_at_a_second_signal(by_signal):
    harness = Harness()
    bound = await harness.server.start(parse_address("127.0.0.1:0"))
    with StopSignals() as signals:
        async with grpc.aio.insecure_channel(str(bound)) as channel:
            grace = timedelta(seconds=60 if by_signal else 0)
            service = asyncio.create_task(harness.serve(signals, grace))
            call = channel.unary_unary("/test.Service/Slow")(b"", timeout=10)
            await asyncio.wait_for(harness.started.wait(), 5)
            os.kill(os.getpid(), signal.SIGINT)
            if by_signal:
                await asyncio.wait_for(signals.first.wait(), 5)
                os.kill(os.getpid(), signal.SIGINT)
            await asyncio.wait_for(service, 5)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert harness.events[-3:] == ["stop", "handler ended", "stopped"]


async def test_a_health_watcher_does_not_hold_up_a_stop():
    harness = Harness()
    bound = await harness.server.start(parse_address("127.0.0.1:0"))
    await harness.server.set_serving()
    async with grpc.aio.insecure_channel(str(bound)) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        with StopSignals() as signals:
            signals.first.set()
            await asyncio.wait_for(harness.serve(signals, timedelta(seconds=60)), 5)
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()


async def test_a_port_that_other_machines_reach_is_warned_about(caplog):
    harness = Harness()
    with caplog.at_level(logging.WARNING):
        await harness.server.start(parse_address("0.0.0.0:0"))
    assert "unauthenticated plain text" in caplog.text
    await harness.server.stop()


async def test_a_socket_file_is_gone_after_the_stop(tmp_path):
    harness = Harness()
    await harness.server.start(parse_address(f"unix:{tmp_path}/s"))
    assert (tmp_path / "s").exists()
    await harness.server.stop()
    assert not (tmp_path / "s").exists()


async def test_finished_tells_done_work_from_work_that_was_cut_short():
    async def quick():
        return

    async def endless():
        await asyncio.Event().wait()

    async def broken():
        raise ValueError("broken")

    stop = asyncio.Event()
    assert await finished(quick(), unless=stop)
    assert not await finished(endless(), unless=stop, within=timedelta(milliseconds=10))
    with pytest.raises(ValueError, match="broken"):
        await finished(broken(), unless=stop)
    stop.set()
    assert not await finished(endless(), unless=stop)
