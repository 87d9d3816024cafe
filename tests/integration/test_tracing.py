"""Traces of runs as they leave the service: OTLP to a real receiver, LangSmith's protocol to a local endpoint."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import runs_pb2
from support.openai_server import scripted_openai
from support.orchestrator import fence, orchestrator_process, running_orchestrator, spec
from support.otlp import otlp_receiver, values
from support.sandbox import running_sandbox

TESTS = {"test_solution.py": "from solution import one\n\ndef test_one():\n    assert one() == 1\n"}
WRONG, RIGHT = fence("def one():\n    return 2"), fence("def one():\n    return 1")
TASK = "Write one(), which gives the first number above zero."


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[str]:
    async with running_sandbox() as address:
        yield address


@asynccontextmanager
async def relay(to: str):
    """A gRPC relay that hands every call on as it is; gives its address and the metadata of calls by method."""
    seen: list[tuple[str, dict[str, str]]] = []

    class Relay(grpc.GenericRpcHandler):
        def service(self, details):
            async def hand_on(request, context):
                metadata = [(key, value) for key, value in context.invocation_metadata() if key != "user-agent"]
                seen.append((details.method, dict(metadata)))
                try:
                    return await channel.unary_unary(details.method)(
                        request, timeout=context.time_remaining(), metadata=metadata
                    )
                except grpc.aio.AioRpcError as error:
                    await context.abort(error.code(), error.details(), error.trailing_metadata())

            return grpc.unary_unary_rpc_method_handler(hand_on)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Relay(),))
    port = server.add_insecure_port("127.0.0.1:0")
    async with grpc.aio.insecure_channel(to) as channel:
        await server.start()
        try:
            yield f"127.0.0.1:{port}", seen
        finally:
            await server.stop(None)


@pytest.fixture
def traced_run(tmp_path, monkeypatch):
    """Makes a run of two attempts in an orchestrator with these variables; gives it when that has stopped."""

    async def make(sandbox, *, content=False, **env):
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        async with (
            scripted_openai([WRONG, RIGHT]) as model,
            running_orchestrator(
                sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path / "data", trace_content=content
            ) as service,
        ):
            run = await service.generate(spec(TASK, tests=TESTS))
        assert run.result.outcome == runs_pb2.RUN_OUTCOME_PASSED
        return run

    return make


async def test_a_run_is_one_trace_of_nodes_model_calls_and_sandbox_jobs(sandbox, traced_run):
    async with otlp_receiver() as receiver, relay(sandbox) as (address, seen):
        run = await traced_run(address, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.address)
        await receiver.wait_until(lambda: bool(receiver.named("run ")))
    (whole,) = receiver.named("run ")
    assert {span.trace_id for span in receiver.spans} == {whole.trace_id}
    assert not whole.parent_span_id
    assert values(whole.attributes)["codemend.run_id"] == run.run_id
    assert values(whole.attributes)["codemend.outcome"] == "PASSED"
    nodes = {span.span_id: span for span in receiver.named("node ")}
    assert [span.name for span in sorted(nodes.values(), key=lambda span: span.start_time_unix_nano)] == [
        "node generate", "node execute", "node decide", "node repair", "node execute", "node decide", "node finalize",
    ]  # fmt: skip
    assert all(span.parent_span_id == whole.span_id for span in nodes.values())
    routes = [values(span.attributes).get("codemend.route.target", "") for span in nodes.values()]
    assert sorted(routes) == ["", "", "", "execute", "execute", "finalize", "repair"]
    assert not any("codemend.route.reason" in values(span.attributes) for span in nodes.values())
    chats = [(nodes[span.parent_span_id].name, values(span.attributes)) for span in receiver.named("chat")]
    assert [name for name, _ in chats] == ["node generate", "node repair"]
    assert chats[0][1]["gen_ai.usage.input_tokens"] == 11
    assert chats[0][1]["gen_ai.usage.output_tokens"] == 7
    assert chats[0][1]["gen_ai.response.finish_reasons"] == ["stop"]
    assert chats[1][1]["codemend.attempt"] == 2
    jobs = receiver.named("sandbox RunTests")
    assert [values(span.attributes)["codemend.verdict"] for span in jobs] == ["FAILED", "PASSED"]
    assert [values(nodes[span.parent_span_id].attributes)["codemend.verdict"] for span in jobs] == ["failed", "passed"]
    carried = [metadata["traceparent"] for method, metadata in seen if method.endswith("RunTests")]
    assert carried == [f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01" for span in jobs]
    assert receiver.resources[0]["service.name"] == "codemend-orchestrator"


async def test_a_run_that_is_cancelled_while_it_waits_has_its_span_too(sandbox, tmp_path, monkeypatch):
    async with otlp_receiver() as receiver, scripted_openai([WRONG]) as model:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
        async with running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as service:
            run = await service.create(spec(TASK, tests=TESTS, interrupt_before=["repair"]))
            await service.wait_for(run.run_id, lambda event: event.HasField("wait"))
            await service.cancel(run.run_id)
        await receiver.wait_until(lambda: bool(receiver.named("run ")))
    (whole,) = receiver.named("run ")
    assert values(whole.attributes)["codemend.outcome"] == "CANCELLED"
    assert {span.trace_id for span in receiver.spans} == {whole.trace_id}


async def test_prompts_and_replies_are_sent_only_where_a_setting_says_so(sandbox, traced_run):
    for content in (False, True):
        async with otlp_receiver() as receiver:
            await traced_run(sandbox, content=content, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.address)
            await receiver.wait_until(lambda receiver=receiver: bool(receiver.named("run ")))
        everything = "".join(str(span) for span in receiver.spans)
        assert ("first number above zero" in everything) == content
        reasons = [values(span.attributes).get("codemend.route.reason") for span in receiver.named("node decide")]
        assert all(reasons) == content


@pytest.mark.parametrize("off", [{}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
async def test_nothing_is_traced_unless_it_is_asked_for(sandbox, traced_run, off):
    async with otlp_receiver() as receiver, relay(sandbox) as (address, seen):
        asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.address, **off} if off else {}
        await traced_run(address, **asked)
    assert not receiver.spans
    assert not any("traceparent" in metadata for _, metadata in seen)


async def test_a_receiver_that_is_gone_holds_up_neither_a_run_nor_the_stop(sandbox, traced_run):
    async with otlp_receiver() as receiver:
        gone = receiver.address
    await traced_run(sandbox, OTEL_EXPORTER_OTLP_ENDPOINT=gone)


@asynccontextmanager
async def langsmith_endpoint():
    """An HTTP endpoint that takes everything; gives its URL and the bodies that came."""
    bodies: list[bytes] = []
    arrived = asyncio.Event()

    async def serve(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = next((int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        if "transfer-encoding: chunked" in head:
            while size := int(await reader.readline(), 16):
                body += await reader.readexactly(size)
                await reader.readline()
        if head.startswith("post"):
            bodies.append(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
            arrived.set()
        answer = json.dumps({}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\n")
        writer.write(f"content-length: {len(answer)}\r\n\r\n".encode() + answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies, arrived


@pytest.mark.parametrize("asked", [False, True])
async def test_langsmiths_variables_work_and_are_off_by_default(sandbox, asked):
    async with langsmith_endpoint() as (url, bodies, arrived), scripted_openai([RIGHT]) as model:
        env = {
            "LANGSMITH_ENDPOINT": url,
            "LANGSMITH_API_KEY": "a-key",
            **({"LANGSMITH_TRACING": "true"} if asked else {}),
        }
        # What LangSmith's library has read once it does not read again: a process of its own for each.
        async with orchestrator_process(sandbox=sandbox, model_url=model.base_url, **env) as service:
            await service.client.generate(spec(TASK, tests=TESTS))
            if asked:
                await asyncio.wait_for(arrived.wait(), 30)
    assert bool(bodies) == asked
