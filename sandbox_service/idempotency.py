"""Idempotency keys: the same key again gives the first call's result, and nothing runs twice.

Only results are remembered, within a window of time and a bound of bytes. An error says that there is no result, so it
is told to whoever waits at that moment, and the key is free again. What the work is and what a result is, callers say.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from sandbox_service.errors import InvalidJob, KeyReused, TenantQueueFull

MAXIMUM_KEY_BYTES = 128
ENTRY_BYTES = 1024
"""Counted for each remembered result beside its own bytes, so that a bound of bytes bounds their number too."""

MAXIMUM_DUPLICATES, MAXIMUM_TENANT_DUPLICATES = 192, 64
"""Calls that wait for another call's result, of all tenants and of one: each holds one of the server's calls, of which
the service has 256 beside those of its jobs."""

DUPLICATE_RETRY = timedelta(seconds=1)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scope:
    """Within which a key is one key: the tenant that uses it, and the RPC that it is used for."""

    tenant: str
    rpc: str


@dataclass(slots=True, eq=False)
class _Running(Generic[T]):
    fingerprint: bytes
    task: asyncio.Task[T]
    callers: int = 0


@dataclass(frozen=True, slots=True)
class _Remembered(Generic[T]):
    fingerprint: bytes
    result: T
    size: int
    forget_at: float


_Id = tuple[Scope, str]


class IdempotencyKeys(Generic[T]):
    """Runs work once for each key. One event loop."""

    def __init__(
        self,
        *,
        window: timedelta,
        maximum_bytes: int,
        size_of: Callable[[T], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes an empty memory.

        Args:
            window: how long a result is remembered after it was made.
            maximum_bytes: of all remembered results; the oldest go first.
            size_of: bytes of one result.
            clock: monotonic seconds.
        """
        self._window = window.total_seconds()
        self._maximum_bytes = maximum_bytes
        self._size_of = size_of
        self._clock = clock
        self._running: dict[_Id, _Running[T]] = {}
        self._remembered: OrderedDict[_Id, _Remembered[T]] = OrderedDict()  # the oldest first
        self._duplicates: Counter[str] = Counter()  # by tenant, those that wait
        self.remembered_bytes = 0
        self.replayed = 0

    @property
    def remembered(self) -> int:
        """Results that are remembered."""
        return len(self._remembered)

    async def once(self, scope: Scope, key: str, fingerprint: bytes, work: Callable[[], Awaitable[T]]) -> T:
        """The result of the key's work, which runs only where this key has not run it before.

        While it runs, all who call with its key wait for it. Cancelling one of them ends its own wait; the work is
        cancelled, and its end awaited, when the last of them has left.

        Args:
            scope: where the key is used.
            key: a checked key; empty: none, and the work simply runs.
            fingerprint: equal for equal requests.
            work: makes the result. It must not be bound to one caller's deadline.

        Raises:
            KeyReused: the key was used for another request.
            TenantQueueFull: too many calls wait for the results of others.
            Exception: whatever the work raises.
        """
        if not key:
            return await work()
        self.forget_old()
        name = scope, key
        known = self._remembered.get(name) or self._running.get(name)
        if known is None:
            return await self._wait(name, self._begin(name, fingerprint, work))
        if known.fingerprint != fingerprint:
            raise KeyReused(key)
        if isinstance(known, _Running):
            with self._duplicate(scope.tenant):
                self.replayed += 1
                return await self._wait(name, known)
        self.replayed += 1
        return known.result

    @contextmanager
    def _duplicate(self, tenant: str) -> Iterator[None]:
        mine = self._duplicates[tenant]
        if mine >= MAXIMUM_TENANT_DUPLICATES or self._duplicates.total() >= MAXIMUM_DUPLICATES:
            raise TenantQueueFull(tenant, f"{mine} calls waiting for the results of others", DUPLICATE_RETRY)
        self._duplicates[tenant] += 1
        try:
            yield
        finally:
            self._duplicates[tenant] -= 1
            if not self._duplicates[tenant]:
                del self._duplicates[tenant]

    def _begin(self, name: _Id, fingerprint: bytes, work: Callable[[], Awaitable[T]]) -> _Running[T]:
        running = self._running[name] = _Running(fingerprint, asyncio.create_task(_awaited(work)))
        running.task.add_done_callback(lambda _: self._ended(name, running))
        return running

    async def _wait(self, name: _Id, running: _Running[T]) -> T:
        running.callers += 1
        try:
            return await asyncio.shield(running.task)
        finally:
            running.callers -= 1
            if not running.callers and not running.task.done():
                if self._running.get(name) is running:  # whoever comes now must not wait for work that is being killed
                    del self._running[name]
                running.task.cancel()
                await asyncio.wait({running.task})

    def _ended(self, name: _Id, running: _Running[T]) -> None:
        is_current = self._running.get(name) is running
        if is_current:
            del self._running[name]
        if running.task.cancelled() or running.task.exception() is not None or not is_current:
            return
        result = running.task.result()
        size = self._size_of(result) + ENTRY_BYTES
        if size > self._maximum_bytes:
            return
        self._remembered[name] = _Remembered(running.fingerprint, result, size, self._clock() + self._window)
        self.remembered_bytes += size
        while self.remembered_bytes > self._maximum_bytes:
            self._forget_oldest()

    def forget_old(self) -> None:
        """Forgets results whose window has passed."""
        now = self._clock()
        while self._remembered and next(iter(self._remembered.values())).forget_at <= now:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, oldest = self._remembered.popitem(last=False)
        self.remembered_bytes -= oldest.size


async def _awaited(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


def check_key(key: str) -> str:
    """The key, where it is one.

    Raises:
        InvalidJob: it is too long, or cannot be printed.
    """
    if len(key.encode()) > MAXIMUM_KEY_BYTES or not key.isprintable():
        raise InvalidJob(("idempotency_key", f"must be at most {MAXIMUM_KEY_BYTES} bytes of printable text"))
    return key
