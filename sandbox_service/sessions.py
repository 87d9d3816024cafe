"""Sessions: who has which workspace, for how long, and how much all of them may hold. Everything is in memory.

What a workspace is lies in `workspace`; how a job gets one and what becomes of its changes in `session_jobs`.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sandbox_service.domain import Lease
from sandbox_service.errors import ServiceDraining, SessionBusy, SessionNotFound, SessionStorageFull, TooManySessions
from sandbox_service.workspace import Workspace

logger = logging.getLogger(__name__)

GONE_TIME = timedelta(seconds=30)
"""For killed jobs and their cells to be gone, where somebody waits for that."""
LONGEST_SWEEP_PAUSE_S = 1.0
"""A session that is past its time is found by nobody; what it holds, and a job in it, ends so much later at most."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Terms:
    """What one session was made with.

    Attributes:
        idle_ttl: time without a call after which it ends.
        ttl: time after which it ends whatever happens.
        disk_bytes: what its files may take.
    """

    idle_ttl: timedelta
    ttl: timedelta
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What all sessions may take: their number, that of one tenant, and the bytes of their files and snapshots."""

    sessions: int
    sessions_per_tenant: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session as its owner sees it."""

    id: str
    create_time: datetime
    expire_time: datetime
    end_time: datetime
    disk_bytes: int
    used_bytes: int
    entries: int
    jobs: int


@dataclass(slots=True, eq=False)
class _Session:
    id: str
    tenant: str
    terms: Terms
    created: float
    created_at: datetime
    expires: float
    ends: float
    workspace: Workspace = field(default_factory=Workspace)
    snapshot: Workspace = field(default_factory=Workspace)
    held_bytes: int = 0
    jobs: int = 0
    is_busy: bool = False
    has_ended: bool = False
    work: asyncio.Future[Any] | None = None

    def state(self) -> SessionState:
        def when(moment: float) -> datetime:
            return self.created_at + timedelta(seconds=moment - self.created)

        return SessionState(
            self.id, self.created_at, when(self.expires), when(self.ends),
            self.terms.disk_bytes, self.workspace.used_bytes, len(self.workspace.entries), self.jobs,
        )  # fmt: skip


class SessionStore:
    """A server's sessions. One event loop; only `delete` and `expire` wait: for jobs to be gone, GONE_TIME at most."""

    def __init__(
        self,
        capacity: Capacity,
        *,
        on_end: Callable[[Lease], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Makes an empty store.

        Args:
            capacity: what all sessions may take.
            on_end: called when a session has ended and nothing of it runs any more.
            clock: monotonic seconds, by which sessions end.
            now: the time that callers are told.
        """
        self._capacity = capacity
        self._on_end = on_end
        self._clock = clock
        self._now = now
        self._sessions: dict[str, _Session] = {}
        self._tenants: dict[str, int] = {}
        self._reserved_bytes = 0
        self._held_bytes = 0
        self._is_draining = False

    @property
    def count(self) -> int:
        """Sessions now."""
        return len(self._sessions)

    @property
    def held_bytes(self) -> int:
        """What their files, their snapshots and uploads on their way take."""
        return self._held_bytes + self._reserved_bytes

    def create(self, tenant: str, terms: Terms) -> SessionState:
        """Makes a session without files.

        Raises:
            ServiceDraining: the service is stopping.
            TooManySessions: the server's or the tenant's number is reached.
        """
        if self._is_draining:
            raise ServiceDraining("the service is stopping")
        self._drop_expired()
        capacity = self._capacity
        if len(self._sessions) >= capacity.sessions:
            raise TooManySessions(f"this server has {capacity.sessions} sessions already", self._next_end())
        if self._tenants.get(tenant, 0) >= capacity.sessions_per_tenant:
            text = f"the tenant has {capacity.sessions_per_tenant} sessions already"
            raise TooManySessions(text, self._next_end(tenant))
        moment = self._clock()
        ends = moment + terms.ttl.total_seconds()
        session = _Session(
            id=f"ses_{secrets.token_hex(12)}",
            tenant=tenant,
            terms=terms,
            created=moment,
            created_at=self._now(),
            expires=min(moment + terms.idle_ttl.total_seconds(), ends),
            ends=ends,
        )
        self._sessions[session.id] = session
        self._tenants[tenant] = self._tenants.get(tenant, 0) + 1
        return session.state()

    def get(self, tenant: str, name: str) -> SessionState:
        """The state of a session, which this call does not keep alive.

        Raises:
            SessionNotFound: the tenant has no such session.
        """
        return self._find(tenant, name).state()

    async def delete(self, tenant: str, name: str) -> None:
        """Ends a session, and returns when a job that ran in it is gone, or after GONE_TIME.

        Raises:
            SessionNotFound: the tenant has no such session.
        """
        await _gone(self._end(self._find(tenant, name)), within=GONE_TIME)

    @asynccontextmanager
    async def use(self, tenant: str, name: str) -> AsyncIterator["Hold"]:
        """Works in a session, alone.

        Raises:
            SessionNotFound: the tenant has no such session.
            SessionBusy: another call works in it.
        """
        session = self._find(tenant, name)
        if session.is_busy:
            raise SessionBusy(f"another call works in the session {session.id}")
        session.is_busy = True
        hold = Hold(self, session)
        try:
            yield hold
        finally:
            self._reserved_bytes -= hold.reserved_bytes
            session.is_busy = False
            session.expires = min(self._clock() + session.terms.idle_ttl.total_seconds(), session.ends)

    async def expire(self) -> None:
        """Ends every session that is past its time, and returns when their jobs are gone, or after GONE_TIME."""
        await _gone(*self._drop_expired(), within=GONE_TIME)

    @asynccontextmanager
    async def sweeping(self) -> AsyncIterator[None]:
        """Ends sessions in the background as their time comes."""
        sweep = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            sweep.cancel()
            await asyncio.wait({sweep})

    def refuse_new(self) -> None:
        """Refuses new sessions from now on; those that are there live on."""
        self._is_draining = True

    async def _sweep(self) -> None:
        while True:
            until = min((_due(session) for session in self._sessions.values()), default=float("inf")) - self._clock()
            await asyncio.sleep(min(max(until, 0.0), LONGEST_SWEEP_PAUSE_S))
            self._drop_expired()  # whoever runs a job in one of them waits for its end; others are not to

    def _find(self, tenant: str, name: str) -> _Session:
        self._drop_expired(name)
        session = self._sessions.get(name)
        if session is None or session.tenant != tenant:
            raise SessionNotFound(name)
        return session

    def _drop_expired(self, name: str | None = None) -> list[asyncio.Future[Any] | None]:
        """Ends all that are past their time, or one of them where it is; returns the work that they held."""
        moment = self._clock()
        named = self._sessions.values() if name is None else [self._sessions[name]] if name in self._sessions else []
        return [self._end(session) for session in list(named) if _due(session) <= moment]

    def _end(self, session: _Session) -> asyncio.Future[Any] | None:
        if session.has_ended:
            return session.work
        session.has_ended = True
        del self._sessions[session.id]
        self._tenants[session.tenant] -= 1
        if not self._tenants[session.tenant]:
            del self._tenants[session.tenant]
        self._held_bytes -= session.held_bytes
        session.workspace = session.snapshot = Workspace()
        lease = Lease(session.tenant, session.id)
        if session.work is None:
            self._on_end(lease)
        else:
            session.work.add_done_callback(lambda _: self._on_end(lease))
            session.work.cancel()
        return session.work

    def _next_end(self, tenant: str | None = None) -> timedelta:
        """Time until a session ends by itself, if nobody calls before."""
        ends = (_due(session) for session in self._sessions.values() if tenant in (None, session.tenant))
        return timedelta(seconds=max(min(ends) - self._clock(), LONGEST_SWEEP_PAUSE_S))

    def room_for(self, session: _Session) -> int:
        """Bytes that a session and its snapshot could take now in place of what they take. For holds alone."""
        return self._capacity.total_bytes - self.held_bytes + session.held_bytes

    def reserve(self, count: int) -> None:
        """Counts bytes on their way into a session.

        Raises:
            SessionStorageFull: they are too many.
        """
        self._check_total(self.held_bytes + count)
        self._reserved_bytes += count

    def keep(self, session: _Session, workspace: Workspace, snapshot: Workspace, reserved: int) -> None:
        """Gives a session its new state; `reserved` are bytes on their way that are in it now. For holds alone."""
        held = workspace.held_bytes(snapshot)
        self._check_total(self.held_bytes - session.held_bytes - reserved + held)
        self._held_bytes += held - session.held_bytes
        session.workspace, session.snapshot, session.held_bytes = workspace, snapshot, held

    def _check_total(self, total: int) -> None:
        if total > self._capacity.total_bytes:
            raise SessionStorageFull(f"all sessions together may hold {self._capacity.total_bytes} bytes")


class Hold:
    """One call's hold on a session: nobody else works in it."""

    def __init__(self, store: SessionStore, session: _Session) -> None:
        self._store = store
        self._session = session
        self.workspace = session.workspace
        self.snapshot = session.snapshot
        self.reserved_bytes = 0

    @property
    def session(self) -> str:
        """The session's id."""
        return self._session.id

    @property
    def disk_bytes(self) -> int:
        """What its files may take."""
        return self._session.terms.disk_bytes

    @property
    def room_bytes(self) -> int:
        """What its files could take now: its own limit, or less where all sessions together come near theirs."""
        return max(min(self.disk_bytes, self._store.room_for(self._session)), 0)

    def reserve(self, count: int) -> None:
        """Counts bytes that this call holds for the session, until it ends.

        Raises:
            SessionStorageFull: all sessions together would hold too much.
            SessionNotFound: the session has ended.
        """
        self._check_alive()
        self._store.reserve(count)
        self.reserved_bytes += count

    def keep(self, workspace: Workspace, *, snapshot: Workspace | None = None) -> None:
        """Makes this the session's state; all or nothing.

        Raises:
            SessionStorageFull: all sessions together would hold too much.
            SessionNotFound: the session has ended.
        """
        self._check_alive()
        earlier = self.snapshot if snapshot is None else snapshot
        self._store.keep(self._session, workspace, earlier, self.reserved_bytes)
        self.workspace, self.snapshot = workspace, earlier

    def count_job(self) -> None:
        """One more job has run."""
        self._session.jobs += 1

    async def run(self, work: Awaitable[T]) -> T:
        """Awaits work that the session's end cancels.

        Cancelling the task that awaits this cancels the work, and comes out when it is gone.

        Raises:
            SessionNotFound: the session ended, and the work with it.
        """
        task = asyncio.ensure_future(work)
        self._session.work = task
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()
            await _gone(task, within=None)
            raise
        finally:
            self._session.work = None
        if self._session.has_ended:
            await _gone(task, within=None)
            raise SessionNotFound(self._session.id)
        return task.result()

    def _check_alive(self) -> None:
        if self._session.has_ended:
            raise SessionNotFound(self._session.id)


def _due(session: _Session) -> float:
    """When it ends, as things stand: a session at work is not idle."""
    return session.ends if session.is_busy else session.expires


async def _gone(*works: asyncio.Future[Any] | None, within: timedelta | None) -> None:
    """Waits until all of some cancelled work has come to its end, and reads how."""
    running = [work for work in works if work is not None]
    if not running:
        return
    _, late = await asyncio.wait(running, timeout=None if within is None else within.total_seconds())
    if late:
        logger.warning("jobs of sessions that have ended are not gone yet", extra={"jobs": len(late)})
    for work in running:
        work.add_done_callback(lambda done: None if done.cancelled() else done.exception())
