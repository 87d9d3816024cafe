"""Tapes over the database: the live one of a run at work, and the one that a replay is answered from.

An entry's response is `{"answer": …}` or `{"error": {"type": …, "message": …, …}}`. Whoever asks always gets what is
written there, read back, so that a run and its replay see the same to the byte.
"""

import asyncio
import base64
import binascii
import hashlib
import json
import re
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from orchestrator.errors import Diverged
from orchestrator.runs.store import Claim, TapeEntry, TapeRows
from orchestrator.runs.tapediff import MADE_WITH, difference
from orchestrator.workflows import STEP, Codec, Effect, Plain, Request, Tape, canonical, since

T = TypeVar("T")
_BASE64 = re.compile("[A-Za-z0-9_-]+={0,2}")  # the URL-safe alphabet, in which records have their bytes
_LANES = frozenset({"candidate", "generate", "execute"})  # what a candidate does


class LiveTape:
    """Makes each call once: what was written before is the answer, else the live one is written and then given.

    Args:
        rows: where entries go.
        claim: under which they are written.
        known: what the run has taken before.
        redact: takes secrets out of a text; what programs printed is given to it decoded.
    """

    is_replay = False

    def __init__(
        self, rows: TapeRows, claim: Claim, known: Sequence[TapeEntry] = (), *, redact: Callable[[str], str] = str
    ) -> None:
        self._rows = rows
        self._claim = claim
        self._known = {(entry.step_id, entry.name): entry for entry in known}
        self._redact = redact
        self._writing = asyncio.Lock()  # of candidates' entries: each gets the next position

    async def take(self, request: Request, live: Callable[[], Awaitable[T]], codec: Codec) -> T:
        """See `Tape.take`."""
        entry = self._known.get((STEP.get().step_id, _name(request.kind)))
        if entry is None:
            started = time.monotonic()
            try:
                response = {"answer": codec.dump(await live())}
            except codec.errors as error:
                response = {"error": codec.dump_error(error)}
            entry = await self.write(request, response, since(started))
        answer: T = _given(entry, codec)
        return answer

    async def decided(self, kind: Effect, value: T | None, codec: Codec) -> T | None:
        """See `Tape.decided`."""
        entry = self._known.get((STEP.get().step_id, _name(kind)))
        if entry is None:
            if value is None or (kind is Effect.LIMIT and self._went_on()):
                return None
            entry = await self.write(Request(kind, None), {"answer": codec.dump(value)}, timedelta())
        known: T = _given(entry, codec)
        return known

    async def write(self, request: Request, response: Plain, elapsed: timedelta) -> TapeEntry:
        """Adds an entry of the current step. Raises Fenced."""
        entry = TapeEntry(
            step_id=STEP.get().step_id,
            name=_name(request.kind),
            kind=request.kind.value,
            request_digest=_digest(request.content),
            request=canonical(_each_text(_written(request), self._redact)),
            response=canonical(_each_text(response, self._redact_printed)),
            elapsed=elapsed,
        )
        async with self._writing:
            await self._rows.add(self._claim, entry)
        self._known[entry.step_id, entry.name] = entry
        return entry

    def _redact_printed(self, text: str) -> str:
        """The text without secrets; where it is base64, without those in the bytes that it stands for."""
        redacted = self._redact(text)
        if redacted != text or (content := _decoded(text)) is None:
            return redacted
        # Bytes that are no UTF-8 pass through unchanged as lone surrogates.
        shown = content.decode("utf-8", "surrogateescape")
        if (hidden := self._redact(shown)) == shown:
            return text
        return base64.urlsafe_b64encode(hidden.encode("utf-8", "surrogateescape")).decode()

    def names(self) -> Sequence[str]:
        """Names of all that it has."""
        return [name for _, name in self._known]

    def knows(self, kind: Effect) -> bool:
        """Whether the current step has such an answer, from before it was begun again."""
        return (STEP.get().step_id, _name(kind)) in self._known

    def _went_on(self) -> bool:
        """Whether the step got an answer before it was broken off: then it had met no limit before that."""
        return self.knows(Effect.MODEL) or self.knows(Effect.SANDBOX)


class ReplayTape:
    """Answers from another run's tape, by the name of what is asked for, whatever the ids of the steps.

    A name that is there several times, since the run was set back and edited, is answered in the order of the tape.

    Args:
        entries: the other's tape, in its order.
        live_from: node from whose first step on everything comes from `live`; empty: nothing does. Candidates side by
            side are live from their beginning when any node of theirs is.
        live: for that; also takes down what the replay was given, so that it has a tape of its own.
    """

    def __init__(self, entries: Sequence[TapeEntry], *, live_from: str = "", live: LiveTape | None = None) -> None:
        if live_from and live is None:
            raise ValueError("live_from: needs a live tape")
        self._entries: dict[str, deque[TapeEntry]] = defaultdict(deque)
        for entry in entries:
            self._entries[entry.name].append(entry)
        for name in live.names() if live is not None else ():  # what this replay was given before it was broken off
            self._next(name)
        self._live_from = live_from
        self._live = live
        self._is_live = False

    @property
    def is_replay(self) -> bool:
        """Whether answers still come from the other's tape."""
        return not self._is_live

    async def take(self, request: Request, live: Callable[[], Awaitable[T]], codec: Codec) -> T:
        """See `Tape.take`."""
        if (tape := self._now_live(request.kind)) is not None:
            return await tape.take(request, live, codec)
        name = _name(request.kind)
        entry = self._next(name)
        if entry is None:
            raise Diverged("tape", name, "the original has no such answer")
        if _digest(request.content) != entry.request_digest:
            kind, detail = difference(entry.kind, json.loads(entry.request), _written(request))
            if self._live is not None:  # what was asked for is what a comparison shows
                await self._live.write(request, {"error": {"type": Diverged.__name__, "message": kind}}, timedelta())
            raise Diverged(kind, name, detail)
        if self._live is not None:
            await self._live.write(request, json.loads(entry.response), entry.elapsed)
        answer: T = _given(entry, codec)
        return answer

    async def decided(self, kind: Effect, value: T | None, codec: Codec) -> T | None:
        """See `Tape.decided`."""
        if (tape := self._now_live(kind)) is not None:
            return await tape.decided(kind, value, codec)
        entry = self._next(_name(kind))
        if entry is None:
            return None
        known: T = _given(entry, codec)
        return await self._live.decided(kind, known, codec) if self._live is not None else known

    def made_with(self, kind: Effect) -> Plain:
        """What the request was made with that the current step will be answered for; None where that is not known."""
        if STEP.get(None) is None or self._now_live(kind) is not None:
            return None
        entries = self._entries.get(_name(kind))
        return json.loads(entries[0].request).get(MADE_WITH) if entries else None

    def _next(self, name: str) -> TapeEntry | None:
        left = self._entries.get(name)
        return left.popleft() if left else None

    def _now_live(self, kind: Effect) -> Tape | None:
        """The tape that answers instead of the other run's."""
        node = STEP.get().name.partition("/")[0]
        if self._live_from and (node == self._live_from or (node == "candidate" and self._live_from in _LANES)):
            self._is_live = True
        if self._live is not None and (self._is_live or self._live.knows(kind)):
            return self._live
        return None


def _name(kind: Effect) -> str:
    """What an answer is within its run, as "generate/1/model"."""
    return f"{STEP.get().name}/{kind.value}"


def _written(request: Request) -> Plain:
    return {**request.content, MADE_WITH: request.made_with} if request.made_with else request.content


def _digest(content: Plain) -> str:
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def _given(entry: TapeEntry, codec: Codec) -> Plain:
    """Gives the entry's answer to the current step, or raises its error."""
    STEP.get().elapsed += entry.elapsed
    response = json.loads(entry.response)
    if "error" in response:
        raise codec.load_error(response["error"])
    return codec.load(response["answer"])


def _decoded(text: str) -> bytes | None:
    """The bytes that a base64 text stands for, as a report and an execution have them; None where it is none."""
    if not text or len(text) % 4 or not _BASE64.fullmatch(text):
        return None
    try:
        return base64.urlsafe_b64decode(text)
    except binascii.Error:
        return None


def _each_text(plain: Plain, change: Callable[[str], str]) -> Plain:
    match plain:
        case str():
            return change(plain)
        case dict():
            return {key: _each_text(value, change) for key, value in plain.items()}
        case list() | tuple():
            return [_each_text(value, change) for value in plain]
        case _:
            return plain
