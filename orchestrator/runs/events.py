"""A run's events: an append-only log with sequence numbers 1, 2, 3, …, watched by anybody from any number.

Appending never waits for a watcher, so a slow one cannot slow the run. Tokens are gathered before they become events.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from orchestrator.runs.states import RunState
from orchestrator.workflows import ModelTokens, Outcome, WorkflowEvent

TOKEN_DELAY = timedelta(milliseconds=100)  # tokens of so long become one event
TOKEN_CHARS = 16 * 1024  # or of so many characters, at most 64 KiB; no event has more


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The run's state changed; `outcome` is set at its end."""

    state: RunState
    reason: str = ""
    outcome: Outcome | None = None


Payload = WorkflowEvent | StateChanged


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened in a run."""

    sequence: int
    time: datetime
    run_id: str
    payload: Payload


class EventLog:
    """The events of one run. They lie in memory until the run has ended and `archive` has put them elsewhere."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._events: list[RunEvent] | None = []
        self._load: Callable[[], Awaitable[Sequence[RunEvent]]] | None = None
        self._last_sequence = 0
        self._closed = False
        self._news = asyncio.Event()  # set, and replaced, by every change

    @property
    def last_sequence(self) -> int:
        """Sequence number of the newest event; zero: none yet."""
        return self._last_sequence

    @property
    def events(self) -> Sequence[RunEvent]:
        """All events that lie in memory; none after `archive`."""
        return self._events or ()

    def append(self, payload: Payload) -> None:
        """Adds an event. After `close` nothing is added any more."""
        if self._closed or self._events is None:
            return
        self._last_sequence += 1
        self._events.append(RunEvent(self._last_sequence, datetime.now(UTC), self._run_id, payload))
        self._tell()

    def close(self) -> None:
        """The run has ended: watchers end after the last event."""
        self._closed = True
        self._tell()

    def archive(self, load: Callable[[], Awaitable[Sequence[RunEvent]]]) -> None:
        """Forgets the events of a closed log; whoever watches from now on reads them through `load`."""
        self._load, self._events = load, None

    async def watch(self, after: int = 0, *, heartbeat: timedelta) -> AsyncGenerator[RunEvent | None, None]:
        """Every event with a greater number than `after`, each once and in order, then the end.

        Yields None when nothing was there to yield for the time of `heartbeat`.
        """
        position = max(after, 0)
        while True:
            news, events = self._news, self._events
            if events is None:
                for event in await self._archived():
                    if event.sequence > position:
                        yield event
                return
            if position < len(events):
                position += 1
                yield events[position - 1]
            elif self._closed:
                return
            elif not await _happens(news, heartbeat):
                yield None

    async def _archived(self) -> Sequence[RunEvent]:
        return await self._load() if self._load is not None else ()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


async def _happens(event: asyncio.Event, within: timedelta) -> bool:
    try:
        async with asyncio.timeout(within.total_seconds()):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Recorder:
    """Writes a run's events, with the tokens of each attempt gathered for about `TOKEN_DELAY`."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._pending: dict[int, list[str]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def emit(self, payload: Payload) -> None:
        """Adds an event, after all tokens that came before it."""
        self.flush()
        self._log.append(payload)

    def emit_tokens(self, attempt: int, text: str) -> None:
        """Takes a piece of a model's reply."""
        pieces = self._pending.setdefault(attempt, [])
        pieces.append(text)
        if sum(map(len, pieces)) >= TOKEN_CHARS:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOKEN_DELAY.total_seconds(), self.flush)

    def flush(self) -> None:
        """Makes events of the tokens gathered so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, {}
        for attempt, pieces in pending.items():
            text = "".join(pieces)
            for start in range(0, len(text), TOKEN_CHARS):
                self._log.append(ModelTokens(attempt, text[start : start + TOKEN_CHARS]))
