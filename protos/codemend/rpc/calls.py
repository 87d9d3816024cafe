"""The one interceptor around every handler: error table, request log, and the count of calls that are still at work.

It wraps all four kinds of method, and decodes their requests itself: gRPC would answer one that is no message of its
type, such as a string that is not UTF-8, as a fault of the server. A streaming handler runs inside one coroutine here,
so that its clean-up has happened when its call is counted as ended; as a bare generator it would be left to the garbage
collector whenever its caller went away between two messages. It ends where its caller takes no message for too long.
"""

from __future__ import annotations  # gRPC's classes are generic to type checkers only

import asyncio
import inspect
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from codemend.rpc.errors import ErrorTable, MalformedRequestError, ReaderStalledError
from codemend.rpc.logs import REQUEST_ID

logger = logging.getLogger(__name__)

REQUEST_ID_KEY = "x-request-id"
MAXIMUM_REQUEST_ID = 128
INFRASTRUCTURE = "/grpc."  # health and reflection: probes would fill the log, and watchers would hold up a stop
STALL_TIME = timedelta(seconds=30)
"""For the caller of a stream to take one message, where a service sets nothing else."""

Context = grpc.aio.ServicerContext[Any, Any]
Around = Callable[[Context], AbstractAsyncContextManager[None]]
Decode = Callable[[bytes], Any]


class HandlerCancelledError(Exception):
    """A handler let a cancellation out that nobody had asked for; gRPC would leave its caller without an answer."""


class CallTracker:
    """Counts the calls whose handlers have not ended yet, clean-up included."""

    def __init__(self) -> None:
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Calls at work now."""
        return self._running

    def enter(self) -> None:
        """One more."""
        self._running += 1
        self._idle.clear()

    def leave(self) -> None:
        """One less."""
        self._running -= 1
        if not self._running:
            self._idle.set()

    async def idle(self) -> None:
        """Waits until no call is at work."""
        await self._idle.wait()


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Puts the error table, the request log, the tracker and a bound on slow readers around every handler."""

    def __init__(self, errors: ErrorTable, tracker: CallTracker, *, stall: timedelta = STALL_TIME) -> None:
        self._errors = errors
        self._tracker = tracker
        self._stall = stall

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wraps the method's handler; an unknown method stays UNIMPLEMENTED."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = _text(handler_call_details.method)
        request_id = _request_id(handler_call_details.invocation_metadata)
        return _wrap(handler, lambda context: self._around(method, request_id, context), self._stall)

    @asynccontextmanager
    async def _around(self, method: str, request_id: str, context: Context) -> AsyncIterator[None]:
        started = time.monotonic()
        quiet = method.startswith(INFRASTRUCTURE)
        token = REQUEST_ID.set(request_id)
        if not quiet:
            self._tracker.enter()
        try:
            async with self._translated(context):
                yield
        finally:
            if not quiet:
                self._tracker.leave()
            logger.log(
                logging.DEBUG if quiet else logging.INFO,
                "call ended",
                extra={
                    "method": method,
                    "code": _code_name(context),
                    "duration_ms": round((time.monotonic() - started) * 1000, 1),
                },
            )
            REQUEST_ID.reset(token)

    @asynccontextmanager
    async def _translated(self, context: Context) -> AsyncIterator[None]:
        """Lets out only what gRPC understands: an abort, or the cancellation that it asked for itself."""
        try:
            yield
        except grpc.aio.AbortError:
            raise
        except asyncio.CancelledError as error:
            if _is_cancelled_from_outside():
                raise
            fault = HandlerCancelledError("the handler was cancelled from inside")
            fault.__cause__ = error
            await self._errors.abort(context, fault)
        except Exception as error:  # noqa: BLE001 - the outermost place: whatever it is, the caller must not read it
            await self._errors.abort(context, error)


def _is_cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _code_name(context: Context) -> str:
    if _is_cancelled_from_outside():
        remaining: float | None = context.time_remaining()
        return "DEADLINE_EXCEEDED" if remaining is not None and remaining <= 0 else "CANCELLED"
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else "OK"


def _request_id(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The caller's own id where it is printable and short, otherwise a new one."""
    for key, value in metadata or ():
        text = _text(value)
        if key == REQUEST_ID_KEY and text.isascii() and text.isprintable() and 0 < len(text) <= MAXIMUM_REQUEST_ID:
            return text
    return f"req_{uuid.uuid4().hex}"


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")


def _wrap(
    handler: grpc.RpcMethodHandler[Any, Any], around: Around, stall: timedelta
) -> grpc.RpcMethodHandler[Any, Any]:
    one, many = _decoded(handler.request_deserializer), _all_decoded(handler.request_deserializer)
    streaming = partial(_streaming, stall=stall)
    behaviours = (
        (handler.unary_unary, grpc.unary_unary_rpc_method_handler, _single, one),
        (handler.unary_stream, grpc.unary_stream_rpc_method_handler, streaming, one),
        (handler.stream_unary, grpc.stream_unary_rpc_method_handler, _single, many),
        (handler.stream_stream, grpc.stream_stream_rpc_method_handler, streaming, many),
    )
    for behaviour, make, wrapper, read in behaviours:
        if behaviour is not None:
            wrapped: Any = wrapper(behaviour, around, read)
            result: grpc.RpcMethodHandler[Any, Any] = make(wrapped, None, handler.response_serializer)
            return result
    raise TypeError("the handler has no behaviour")


def _decoded(decode: Decode | None) -> Decode:
    def decoded(raw: bytes) -> object:
        if decode is None:
            return raw
        try:
            return decode(raw)
        except DecodeError as error:
            raise MalformedRequestError(str(error)) from error

    return decoded


def _all_decoded(decode: Decode | None) -> Callable[[AsyncIterator[bytes]], AsyncIterator[Any]]:
    read = _decoded(decode)

    async def decoded(requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for raw in requests:
            yield read(raw)

    return decoded


def _single(behaviour: Callable[..., Any], around: Around, read: Callable[[Any], Any]) -> Callable[..., Any]:
    async def wrapped(request: object, context: Context) -> object:
        async with around(context):
            return await behaviour(read(request), context)

    return wrapped


def _streaming(
    behaviour: Callable[..., Any], around: Around, read: Callable[[Any], Any], *, stall: timedelta
) -> Callable[..., Any]:
    async def wrapped(request: object, context: Context) -> None:
        async with around(context):
            responses = behaviour(read(request), context)
            if inspect.isawaitable(responses):  # it writes to the context by itself
                await responses
                return
            writer = _Writer(context, stall)
            async with aclosing(responses):
                async for response in responses:
                    await writer.write(response)

    return wrapped


class _Writer:
    """Sends the messages of one stream, and gives its reader so long for each.

    gRPC has no way to take a message back, nor to end a call before its reader has made room for the end. So a write
    that waits is left to itself, and the handler ends without it: what it held is free at once, while the call lasts
    until its caller reads on, cancels it or goes. Cancelled, the write would never give back its memory.
    """

    def __init__(self, context: Context, stall: timedelta) -> None:
        self._context = context
        self._stall = stall
        self._has_begun = False

    async def write(self, message: object) -> None:
        """Sends one message.

        Raises:
            ReaderStalledError: there was no room for it in time.
        """
        writing = asyncio.ensure_future(self._send(message))
        writing.add_done_callback(_noted)
        done, _ = await asyncio.wait((writing,), timeout=self._stall.total_seconds())
        if not done:
            raise ReaderStalledError(f"no message of this stream was read for {self._stall.total_seconds():g} s")
        writing.result()

    async def _send(self, message: object) -> None:
        if not self._has_begun:
            self._has_begun = True
            await self._context.send_initial_metadata(())  # not with a message that waits: the end has to know of it
        await self._context.write(message)


def _noted(writing: asyncio.Future[None]) -> None:
    """Reads how a write ended, which nobody may be waiting for any more."""
    if not writing.cancelled():
        writing.exception()
