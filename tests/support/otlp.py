"""A real OTLP receiver for tests: OpenTelemetry's own TraceService over gRPC on loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what arrives."""

    def __init__(self) -> None:
        self.address = ""
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self._changed = asyncio.Condition()

    async def Export(self, request: pb.ExportTraceServiceRequest, context: Any) -> Any:  # noqa: ARG002, N802 - gRPC's
        async with self._changed:
            for group in request.resource_spans:
                self.resources.append(values(group.resource.attributes))
                self.spans += [span for scope in group.scope_spans for span in scope.spans]
            self._changed.notify_all()
        return pb.ExportTraceServiceResponse()

    async def wait_until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        """Waits until the spans that have arrived are as wanted."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(condition)

    def named(self, start: str) -> list[Any]:
        """Spans whose names begin so."""
        return [span for span in self.spans if span.name.startswith(start)]


@asynccontextmanager
async def otlp_receiver() -> AsyncIterator[Receiver]:
    """A receiver that serves."""
    server, receiver = grpc.aio.server(), Receiver()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    receiver.address = f"http://127.0.0.1:{port}"
    await server.start()
    try:
        yield receiver
    finally:
        await server.stop(None)


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as Python values."""
    found = {}
    for one in attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found
