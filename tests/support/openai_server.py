"""A scripted model server: real HTTP on loopback, OpenAI's chat completions, and the faults that a provider can have.

`async with scripted_openai(["reply one", Scripted(status=429)]) as server:` serves on the running loop;
`server.base_url` ends in `/v1`. Requests and client disconnects are recorded with the time they were seen.
"""

import asyncio
import contextlib
import inspect
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Scripted:
    """One reply, or one fault."""

    text: str = ""
    reasoning: str = ""  # sent as `reasoning_content`, before the text
    tool_call: tuple[str, str] | None = None  # function's name and its arguments, as text
    finish_reason: str = "stop"
    model: str = ""  # empty: the server's
    input_tokens: int = 11
    output_tokens: int = 7
    usage: bool = True  # whether usage is told (in a stream: only where the request asks for it)
    chunk_chars: int = 16
    status: int = 200  # anything else: an error reply
    error: str = ""  # the error's text
    error_code: str = ""
    raw_body: str = ""  # sent as the whole body instead, with `status`
    headers: Mapping[str, str] = field(default_factory=dict)
    gate: asyncio.Event | None = None  # nothing is sent before it is set
    chunk_delay: float = 0.0  # seconds before each chunk
    keepalive_only: bool = False  # SSE comments instead of chunks, without an end: bytes arrive, tokens never do
    stall_after: int = -1  # after so many chunks nothing more comes; the connection stays open
    disconnect_after: int = -1  # after so many chunks the connection is cut


Reply = str | Scripted
Script = Sequence[Reply] | Callable[[JsonObject], Reply | Awaitable[Reply]]


@dataclass(frozen=True)
class Recorded:
    """One request to `/v1/chat/completions`."""

    body: JsonObject
    headers: Mapping[str, str]  # names in lower case
    at: float  # time.monotonic()

    @property
    def messages(self) -> list[JsonObject]:
        return list(self.body["messages"])

    @property
    def prompt(self) -> str:
        """All messages' text, one after the other."""
        return "\n\n".join(str(message.get("content") or "") for message in self.messages)


class ScriptedServer:
    """What a test sees of the server."""

    def __init__(self, script: Script, *, model: str, api_key: str) -> None:
        self.base_url = ""
        self.model = model
        self.requests: list[Recorded] = []
        self.disconnects: list[float] = []  # time.monotonic() of each client that left before its reply was complete
        self.model_lists = 0  # requests to /v1/models
        self.in_flight = 0
        self.max_in_flight = 0
        self._script = script
        self._api_key = api_key
        self._changed = asyncio.Condition()
        self._handlers: set[asyncio.Task[None]] = set()

    async def wait_for_requests(self, count: int, timeout: float = 10.0) -> None:  # noqa: ASYNC109 - a test's own bound
        await self._wait(lambda: len(self.requests) >= count, timeout)

    async def wait_for_disconnects(self, count: int = 1, timeout: float = 10.0) -> None:  # noqa: ASYNC109 - as above
        await self._wait(lambda: len(self.disconnects) >= count, timeout)

    async def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(condition)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _next_reply(self, body: JsonObject, number: int) -> Scripted:
        if callable(self._script):
            made = self._script(body)
            reply = await made if inspect.isawaitable(made) else made
        elif number < len(self._script):
            reply = self._script[number]
        else:
            reply = Scripted(
                status=400, error=f"the script has {len(self._script)} replies and this is request {number + 1}"
            )
        return Scripted(text=reply) if isinstance(reply, str) else reply

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def close(self) -> None:
        for task in list(self._handlers):
            task.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request: every reply says `Connection: close`."""
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(await _read_request(reader), reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer(self, request: "_Request", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        headers = request.headers
        if self._api_key and headers.get("authorization") != f"Bearer {self._api_key}":
            await _send_json(writer, 401, _error("Incorrect API key provided", "invalid_api_key"))
        elif request.line == "GET /v1/models":
            self.model_lists += 1
            await _send_json(writer, 200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        elif request.line == "POST /v1/chat/completions":
            await self._chat(json.loads(request.content), headers, reader, writer)
        else:
            await _send_json(writer, 404, _error(f"no {request.line} here", "not_found"))

    async def _chat(
        self, body: JsonObject, headers: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        number = len(self.requests)
        self.requests.append(Recorded(body, headers, time.monotonic()))
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        await self._notify()
        # The client sends nothing after its request, so the read ends when the client is gone.
        gone = asyncio.create_task(reader.read())
        reply = asyncio.create_task(self._reply(body, number, writer))
        try:
            await asyncio.wait({gone, reply}, return_when=asyncio.FIRST_COMPLETED)
            broken = reply.done() and isinstance(reply.exception(), ConnectionError)
            if broken or not reply.done():
                self.disconnects.append(time.monotonic())
            elif (failure := reply.exception()) is not None:
                raise failure
        finally:
            self.in_flight -= 1
            for task in (gone, reply):
                task.cancel()
            await asyncio.gather(gone, reply, return_exceptions=True)
            await self._notify()

    async def _reply(self, body: JsonObject, number: int, writer: asyncio.StreamWriter) -> None:
        reply = await self._next_reply(body, number)
        if reply.gate is not None:
            await reply.gate.wait()
        if reply.raw_body:
            await _send(
                writer, reply.status, reply.raw_body.encode(), {"Content-Type": "application/json", **reply.headers}
            )
        elif reply.status != 200:
            await _send_json(
                writer, reply.status, _error(reply.error or f"scripted {reply.status}", reply.error_code), reply.headers
            )
        elif body.get("stream"):
            await self._stream(reply, body, writer)
        else:
            await _send_json(writer, 200, _completion(reply, reply.model or self.model), reply.headers)

    async def _stream(self, reply: Scripted, body: JsonObject, writer: asyncio.StreamWriter) -> None:
        head = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked", **reply.headers}
        writer.write(_head(200, head))
        await writer.drain()
        while reply.keepalive_only:
            await _send_chunk(writer, b": keep-alive\n\n")
            await asyncio.sleep(0.02)
        wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        events = _events(reply, reply.model or self.model, with_usage=reply.usage and wants_usage)
        for sent, event in enumerate(events):
            if sent == reply.stall_after:
                await asyncio.Event().wait()
            if sent == reply.disconnect_after:
                writer.transport.abort()
                return
            if reply.chunk_delay:
                await asyncio.sleep(reply.chunk_delay)
            await _send_chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")
        await _send_chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


@contextlib.asynccontextmanager
async def scripted_openai(
    script: Script, *, model: str = "scripted-model", api_key: str = "", host: str = "127.0.0.1"
) -> AsyncIterator[ScriptedServer]:
    """Serves `script`: replies in order, or a function (sync or async) of the request's body.

    With `api_key`, any other key gets 401. `host` is an address of this machine, such as a bridge's for containers.
    """
    scripted = ScriptedServer(script, model=model, api_key=api_key)
    server = await asyncio.start_server(scripted.accept, host, 0)
    try:
        scripted.base_url = f"http://{host}:{server.sockets[0].getsockname()[1]}/v1"
        yield scripted
    finally:
        server.close()
        await scripted.close()
        await server.wait_closed()


@dataclass(frozen=True)
class _Request:
    line: str  # method and path
    headers: dict[str, str]
    content: bytes


async def _read_request(reader: asyncio.StreamReader) -> _Request:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ", 2)
    pairs = (line.split(":", 1) for line in lines[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, value in pairs}
    content = await reader.readexactly(int(headers.get("content-length", "0")))
    return _Request(f"{method} {path.split('?', 1)[0]}", headers, content)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [
        f"HTTP/1.1 {status} Scripted",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _send(writer: asyncio.StreamWriter, status: int, content: bytes, headers: Mapping[str, str]) -> None:
    writer.write(_head(status, {"Content-Length": str(len(content)), **headers}) + content)
    await writer.drain()


async def _send_json(
    writer: asyncio.StreamWriter, status: int, body: JsonObject, headers: Mapping[str, str] | None = None
) -> None:
    await _send(writer, status, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})})


async def _send_chunk(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
    await writer.drain()


def _error(message: str, code: str = "") -> JsonObject:
    return {"error": {"message": message, "type": "scripted", "code": code or None}}


def _usage(reply: Scripted) -> JsonObject:
    total = reply.input_tokens + reply.output_tokens
    return {"prompt_tokens": reply.input_tokens, "completion_tokens": reply.output_tokens, "total_tokens": total}


def _tool_calls(reply: Scripted) -> list[JsonObject]:
    if reply.tool_call is None:
        return []
    name, arguments = reply.tool_call
    return [{"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}]


def _completion(reply: Scripted, model: str) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if calls := _tool_calls(reply):
        message["tool_calls"] = [{key: value for key, value in call.items() if key != "index"} for call in calls]
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
    body: JsonObject = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [choice],
    }
    return {**body, "usage": _usage(reply)} if reply.usage else body


def _events(reply: Scripted, model: str, *, with_usage: bool) -> list[JsonObject]:
    size = reply.chunk_chars
    deltas: list[JsonObject] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": reply.reasoning[at : at + size]} for at in range(0, len(reply.reasoning), size)]
    deltas += [{"content": reply.text[at : at + size]} for at in range(0, len(reply.text), size)]
    if calls := _tool_calls(reply):
        deltas.append({"tool_calls": calls})
    choices: list[list[JsonObject]] = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
    choices.append([{"index": 0, "delta": {}, "finish_reason": reply.finish_reason}])
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
    events: list[JsonObject] = [{**head, "choices": choice} for choice in choices]
    if with_usage:
        events.append({**head, "choices": [], "usage": _usage(reply)})
    return events
