"""Calls that carry an idempotency key: one job for all of them, and each caller's deadline ends its own wait alone."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar, cast

import grpc
from google.protobuf.message import Message

from sandbox_service.errors import DeadlineTooShort
from sandbox_service.idempotency import IdempotencyKeys, Scope, check_key
from sandbox_service.tenants import tenant_of

Context = grpc.aio.ServicerContext[Any, Any]
Response = TypeVar("Response", bound=Message)

LONGEST_DEADLINE_SECONDS = 365 * 24 * 3600.0  # of a caller that in truth waits for ever; no job lives as long


class KeyedRequest(Protocol):
    """A request with an idempotency key."""

    idempotency_key: str

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes:  # noqa: N802 - protobuf's own name
        """The request on the wire."""


@dataclass(frozen=True, slots=True)
class Time:
    """How long a job may take, as the scheduler reads it: `deadline` ends it, `patience` only refuses it at once."""

    deadline: timedelta | None = None
    patience: timedelta | None = None


def deadline_of(context: Context) -> timedelta | None:
    """The time that the caller will still wait; None where it set no deadline."""
    remaining: float | None = context.time_remaining()
    return None if remaining is None else timedelta(seconds=min(max(remaining, 0.0), LONGEST_DEADLINE_SECONDS))


class KeyedCalls:
    """Runs the work of a call, or finds what the first call with its key got."""

    def __init__(self, keys: IdempotencyKeys[Message]) -> None:
        self._keys = keys

    async def once(
        self, rpc: str, request: KeyedRequest, context: Context, work: Callable[[Time], Awaitable[Response]]
    ) -> Response:
        """The response to a request, made by `work` where its key is new or empty.

        Raises:
            InvalidJob: the key is none, or the tenant's name.
            KeyReused: the key was used for another request.
            DeadlineTooShort: the caller's deadline passed.
            SandboxError: as the work says.
        """
        key, left = check_key(request.idempotency_key), deadline_of(context)
        if not key:
            return await work(Time(deadline=left))
        fingerprint = hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
        scope = Scope(tenant_of(context), rpc)
        try:
            async with asyncio.timeout(None if left is None else left.total_seconds()):
                made = await self._keys.once(scope, key, fingerprint, lambda: work(Time(patience=left)))
        except TimeoutError as error:
            raise DeadlineTooShort("the caller's deadline passed") from error
        return cast("Response", made)
