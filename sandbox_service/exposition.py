"""A registry of metrics over HTTP: `GET /metrics` and nothing else, on the service's own event loop.

It speaks the little of HTTP/1.1 that a scraper needs: one request a connection, small, and in time.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from codemend.rpc import Address, AddressError
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

PATH = "/metrics"
REQUEST_SECONDS = 5.0
MAXIMUM_REQUEST_BYTES = 16 * 1024
MAXIMUM_CONNECTIONS = 32

_TEXT = "text/plain; charset=utf-8"


@asynccontextmanager
async def exposed(registry: CollectorRegistry, address: Address) -> AsyncIterator[Address]:
    """Serves the registry, and gives the address with its real port.

    Raises:
        AddressError: the address cannot be listened on.
    """
    open_connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(open_connections) >= MAXIMUM_CONNECTIONS:
            writer.transport.abort()
            return
        open_connections.add(task)
        try:
            await _serve(reader, writer, registry)
        finally:
            open_connections.discard(task)
            writer.close()

    try:
        server = await asyncio.start_server(connected, address.host, address.port, limit=MAXIMUM_REQUEST_BYTES)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AddressError(f"cannot listen on {address} for metrics: {reason}") from error
    try:
        yield Address(host=address.host, port=server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in open_connections:
            task.cancel()
        await server.wait_closed()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, registry: CollectorRegistry) -> None:
    with contextlib.suppress(TimeoutError, OSError, EOFError):  # a scraper that left, or never meant it
        async with asyncio.timeout(REQUEST_SECONDS):
            try:
                request = await reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                writer.write(_response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
            else:
                writer.write(_answer(request, registry))
            await writer.drain()


def _answer(request: bytes, registry: CollectorRegistry) -> bytes:
    lines = request.decode("latin-1").split("\r\n")
    method, target, version = [*lines[0].split(" "), "", ""][:3]
    if not version.startswith("HTTP/1."):
        return _response(HTTPStatus.BAD_REQUEST)
    if target.partition("?")[0] != PATH:
        return _response(HTTPStatus.NOT_FOUND)
    if method not in ("GET", "HEAD"):
        return _response(HTTPStatus.METHOD_NOT_ALLOWED, extra="Allow: GET, HEAD\r\n")
    accept = next((line.partition(":")[2] for line in lines[1:] if line.lower().startswith("accept:")), "")
    encode, content_type = _encoder(accept)
    return _response(HTTPStatus.OK, encode(registry), content_type, with_body=method == "GET")


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # the library compares what a scraper calls a version without reading it first
        return choose_encoder("")


def _response(
    status: HTTPStatus, body: bytes | None = None, content_type: str = _TEXT, *, extra: str = "", with_body: bool = True
) -> bytes:
    content = f"{status.phrase}\n".encode() if body is None else body
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n{extra}Content-Type: {content_type}\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (content if with_body else b"")
