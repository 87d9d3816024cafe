"""Watches runs through the database: what this replica writes wakes its watchers at once, the rest is polled.

One query a round serves all watchers, however many there are, so a watcher costs a run nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator
from datetime import timedelta

from orchestrator.errors import RunNotFound, StoreError
from orchestrator.runs.events import RunEvent
from orchestrator.runs.records import RunRecord
from orchestrator.runs.states import TERMINAL, RunState
from orchestrator.runs.store import EventRows, RunRows

POLL = timedelta(milliseconds=200)

logger = logging.getLogger(__name__)


class Watching:
    """All watchers of this process. Start it with `running`."""

    def __init__(self, runs: RunRows, events: EventRows, *, poll: timedelta = POLL) -> None:
        self._runs = runs
        self._events = events
        self._poll = poll
        self._news: dict[str, set[asyncio.Event]] = {}  # of those that want every event
        self._moves: dict[str, set[asyncio.Event]] = {}  # of those that want the run's state alone
        self._seen: dict[str, tuple[RunState, int] | None] = {}
        self._anybody = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Polls for as long as the context lasts."""
        task = asyncio.create_task(self._rounds(), name="watching")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    def wake(self, run_id: str) -> None:
        """The run's state was changed."""
        self.tell(run_id)
        for move in self._moves.get(run_id, ()):
            move.set()

    def tell(self, run_id: str) -> None:
        """An event was written for the run; its state is as it was."""
        for news in self._news.get(run_id, ()):
            news.set()

    async def watch(self, run_id: str, after: int = 0, *, heartbeat: timedelta) -> AsyncGenerator[RunEvent | None]:
        """Every event with a greater number than `after`, each once and in order, then the end.

        Yields None when nothing was there to yield for the time of `heartbeat`.

        Raises:
            RunNotFound: there is no such run, or it was deleted meanwhile.
            StoreUnavailable: the database does not answer.
        """
        position = max(after, 0)
        with self._listening(self._news, run_id) as news:
            while True:
                news.clear()
                state = await self._state(run_id)
                page = await self._events.read(run_id, position)
                for event in page:
                    position = event.sequence
                    yield event
                if page:
                    continue
                if state in TERMINAL:
                    return
                if not await _happens(news, heartbeat):
                    yield None

    async def until(self, run_id: str, states: frozenset[RunState]) -> RunRecord:
        """The run, once it is in one of the states; raises as `watch`."""
        with self._listening(self._moves, run_id) as move:
            while True:
                move.clear()
                record = await self._runs.get(run_id)
                if record.state in states:
                    return record
                await move.wait()

    async def _state(self, run_id: str) -> RunState:
        found = (await self._runs.progress([run_id])).get(run_id)
        if found is None:
            raise RunNotFound(run_id)
        return found[0]

    @contextlib.contextmanager
    def _listening(self, where: dict[str, set[asyncio.Event]], run_id: str) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        where.setdefault(run_id, set()).add(event)
        self._anybody.set()
        try:
            yield event
        finally:
            where[run_id].discard(event)
            if not where[run_id]:
                del where[run_id]
            if run_id not in self._watched:
                self._seen.pop(run_id, None)

    @property
    def _watched(self) -> set[str]:
        return {*self._news, *self._moves}

    async def _rounds(self) -> None:
        while True:
            await self._anybody.wait()
            await asyncio.sleep(self._poll.total_seconds())
            if not self._watched:
                self._anybody.clear()
                continue
            try:
                await self._round()
            except StoreError:
                logger.warning("the database does not tell what is new; it is asked again", exc_info=True)

    async def _round(self) -> None:
        watched = self._watched
        found = await self._runs.progress(watched)
        for run_id in watched & self._watched:
            before, now = self._seen.get(run_id), found.get(run_id)
            self._seen[run_id] = now
            if before is None or now is None or before[0] is not now[0]:
                self.wake(run_id)
            elif before != now:
                self.tell(run_id)


async def _happens(event: asyncio.Event, within: timedelta) -> bool:
    try:
        async with asyncio.timeout(within.total_seconds()):
            await event.wait()
    except TimeoutError:
        return False
    return True
