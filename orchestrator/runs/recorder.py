"""Gathers what a run tells and writes it to the event log, in order, under the claim of whoever works on the run.

Telling never waits. Tokens are gathered for a while before they become events; everything else is written soon, and
before the step that told it is over (`flush`). What a step tells again after a crash is kept once.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from orchestrator.errors import Fenced, StoreUnavailable
from orchestrator.runs.events import NewEvent, Payload
from orchestrator.runs.redaction import Redactor
from orchestrator.runs.store import Claim, EventRows, whole
from orchestrator.workflows import STEP, ModelReplied, ModelTokens, NodeFinished, NodeStarted

TOKEN_DELAY = timedelta(milliseconds=100)  # tokens of so long become one event
TOKEN_CHARS = 16 * 1024  # or of so many characters, at most 64 KiB; no event has more
WRITE_DELAY = timedelta(milliseconds=20)  # events of so long are written in one transaction
MAXIMUM_EVENTS = 10_000  # of one run; tokens after these are left out, and nothing else ever is
_RETRY = timedelta(seconds=1)

logger = logging.getLogger(__name__)


class Recorder:
    """The recorder of one stretch of work on a run. Close it at the end.

    Args:
        rows: where events go.
        claim: under which they are written.
        known: keys of the events that the run has already.
        count: number of its newest event.
        wake: called when events were written, for those who watch the run.
        redact: takes secrets out of tokens; all else comes from the tape, which has none.
    """

    def __init__(
        self,
        rows: EventRows,
        claim: Claim,
        *,
        known: frozenset[str] = frozenset(),
        count: int = 0,
        wake: Callable[[], None] = lambda: None,
        redact: Redactor = Redactor(),  # noqa: B008 - it takes nothing out, and has no state
    ) -> None:
        self._rows = rows
        self._claim = claim
        self._known = set(known)
        self._count = count
        self._wake = wake
        self._redact = redact
        self._told: Counter[tuple[str, str]] = Counter()
        self._events: list[NewEvent] = []
        self._tokens: dict[int, list[str]] = {}
        self._token_timer: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()  # batches are written one after the other, in order
        self.lost: Fenced | None = None

    def emit(self, payload: Payload) -> None:
        """Tells something, after all tokens that came before it."""
        ended = payload.attempt if isinstance(payload, ModelReplied | NodeFinished) else 0
        self._gather_tokens(ended)
        key = self._key(payload)
        if key in self._known:
            return
        if key:
            self._known.add(key)
        self._add(NewEvent(datetime.now(UTC), payload, key))

    def emit_tokens(self, attempt: int, text: str) -> None:
        """Takes a piece of a model's reply."""
        pieces = self._tokens.setdefault(attempt, [])
        pieces.append(text)
        if sum(map(len, pieces)) >= TOKEN_CHARS:
            self._gather_tokens()
        elif self._token_timer is None:
            self._token_timer = asyncio.get_running_loop().call_later(TOKEN_DELAY.total_seconds(), self._gather_tokens)

    async def flush(self) -> None:
        """Returns when everything told so far is written.

        Raises:
            Fenced: the claim is lost.
            StoreUnavailable: the database does not answer; what was told is kept for the next try.
        """
        self._gather_tokens()
        async with self._writing:
            await self._write()

    @whole
    async def _write(self) -> None:
        batch = tuple(self._events)  # what is told meanwhile is for the next call
        if not batch:
            return
        try:
            self._count = await self._rows.append(self._claim, batch, self._count)
        except Fenced as error:
            self.lost = error
            raise
        self._events = self._events[len(batch) :]
        self._wake()

    async def close(self) -> None:
        """Ends the writing in the background; what is not written by then is left."""
        if self._token_timer is not None:
            self._token_timer.cancel()
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait({self._writer})

    def _key(self, payload: Payload) -> str:
        """The same for the same thing told by the same step; empty for what has no step, or may be told again."""
        step = STEP.get(None)
        if step is None or isinstance(payload, ModelTokens):
            return ""
        kind = type(payload).__name__
        if isinstance(payload, NodeStarted):  # told each time a step begins, unless it is over
            over = f"{step.step_id}/{NodeFinished.__name__}/1"
            return over if over in self._known else ""
        self._told[step.step_id, kind] += 1
        return f"{step.step_id}/{kind}/{self._told[step.step_id, kind]}"

    def _gather_tokens(self, ended: int = 0) -> None:
        """Makes events of the tokens so far. What may be the beginning of a secret waits, except where a reply ended.

        Args:
            ended: the attempt whose reply did.
        """
        if self._token_timer is not None:
            self._token_timer.cancel()
            self._token_timer = None
        pending, self._tokens = self._tokens, {}
        for attempt, pieces in pending.items():
            text = self._redact("".join(pieces))
            if attempt != ended and (held := self._redact.open_end(text)):
                self._tokens[attempt] = [text[-held:]]
                text = text[:-held]
            for start in range(0, len(text), TOKEN_CHARS):
                if self._count + len(self._events) < MAXIMUM_EVENTS:
                    self._add(NewEvent(datetime.now(UTC), ModelTokens(attempt, text[start : start + TOKEN_CHARS])))

    def _add(self, event: NewEvent) -> None:
        self._events.append(event)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_soon(), name=f"events of {self._claim.run_id}")

    async def _write_soon(self) -> None:
        await asyncio.sleep(WRITE_DELAY.total_seconds())
        while self._events and self.lost is None:
            with contextlib.suppress(Fenced):  # `flush` tells the step, which is stopped by it
                try:
                    await self.flush()
                except StoreUnavailable:
                    logger.warning("events could not be written; they are tried again", exc_info=True)
                    await asyncio.sleep(_RETRY.total_seconds())
