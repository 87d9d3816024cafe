"""What a run tells, over a real database file: in order, without a gap, tokens gathered, and nothing twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from orchestrator.errors import Fenced, RunNotFound
from orchestrator.runs import RunResult, digest, new_run_id
from orchestrator.runs.recorder import TOKEN_CHARS, Recorder
from orchestrator.runs.records import NewRun
from orchestrator.runs.redaction import Redactor
from orchestrator.runs.store import Claim, Database, EventRows, Limits, Queue, RunRows, happened, open_database
from orchestrator.runs.watching import Watching
from orchestrator.workflows import (
    STEP,
    CodegenTask,
    ModelTokens,
    NodeFinished,
    NodeStarted,
    Outcome,
    RouteDecision,
    RunSpec,
    Step,
)

HEARTBEAT = timedelta(seconds=30)


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(f"sqlite:///{tmp_path / 'runs.sqlite'}") as opened:
        yield opened


class Run:
    """A run at work, with a recorder."""

    def __init__(self, database: Database, claim: Claim, count: int) -> None:
        self.database, self.claim = database, claim
        self.rows, self.runs = EventRows(database), RunRows(database)
        self.recorder = Recorder(self.rows, claim, count=count)

    async def told(self) -> list[object]:
        await self.recorder.flush()
        events = await self.rows.read(self.claim.run_id, 0)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        return [event.payload for event in events][2:]  # after QUEUED and RUNNING

    async def again(self) -> "Run":
        """The same run, taken up anew as after a crash."""
        record = await self.runs.get(self.claim.run_id)
        run = Run(self.database, self.claim, record.last_sequence)
        known = await self.rows.keys(self.claim.run_id)
        run.recorder = Recorder(self.rows, self.claim, known=known, count=record.last_sequence)
        return run


async def begun(database: Database) -> Run:
    spec, now = RunSpec("codegen", CodegenTask("x")), datetime.now(UTC)
    await RunRows(database).create(NewRun(new_run_id(now), "", spec, digest(spec), 1, now))
    (record,) = await Queue(database, Limits()).claim("me", {"codegen": 1}, 1)
    return Run(database, Claim(record.run_id, record.epoch), record.last_sequence)


async def test_events_come_in_the_order_in_which_they_were_told(database: Database) -> None:
    run = await begun(database)
    told = [RouteDecision("a", "b", str(number)) for number in range(300)]
    for payload in told:
        run.recorder.emit(payload)
        if int(payload.reason) % 7 == 0:
            await asyncio.sleep(0)
    assert await run.told() == told
    await run.recorder.close()


async def test_what_is_told_while_a_batch_is_written_comes_into_the_next_one(database: Database) -> None:
    run = await begun(database)
    run.recorder.emit(RouteDecision("a", "b", "first"))
    writing = asyncio.create_task(run.recorder.flush())
    told = 1
    while not writing.done():
        run.recorder.emit(RouteDecision("a", "b", "meanwhile"))
        told += 1
        await asyncio.sleep(0)
    assert len(await run.told()) == told
    await run.recorder.close()


async def test_tokens_are_gathered_and_come_before_what_is_told_after_them(database: Database) -> None:
    run = await begun(database)
    for piece in ("def ", "f", "():"):
        run.recorder.emit_tokens(1, piece)
    run.recorder.emit(NodeStarted("execute", 1))
    assert await run.told() == [ModelTokens(1, "def f():"), NodeStarted("execute", 1)]
    await run.recorder.close()


@pytest.mark.parametrize("size", range(1, 9))
async def test_tokens_are_told_without_secrets_however_they_are_cut(database: Database, size: int) -> None:
    run = await begun(database)
    run.recorder._redact = Redactor(["sk-abcsk-abd"])
    text = "say sk-abcsk-abcsk-abd and sk-abcsk"
    for at in range(0, len(text), size):
        run.recorder.emit_tokens(1, text[at : at + size])
        run.recorder.emit(NodeStarted("execute", 2))  # of another candidate
    run.recorder.emit(NodeFinished("generate", 1, timedelta()))
    told = [payload.text for payload in await run.told() if isinstance(payload, ModelTokens)]
    assert "".join(told) == "say sk-abc[secret] and sk-abcsk"
    await run.recorder.close()


async def test_no_event_holds_more_tokens_than_its_limit(database: Database) -> None:
    run = await begun(database)
    run.recorder.emit_tokens(1, "x" * (2 * TOKEN_CHARS + 1))
    assert [len(payload.text) for payload in await run.told()] == [TOKEN_CHARS, TOKEN_CHARS, 1]
    await run.recorder.close()


async def test_tokens_beyond_the_cap_are_left_out_and_nothing_else_is(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.runs.recorder.MAXIMUM_EVENTS", 4)
    run = await begun(database)
    for number in range(5):
        run.recorder.emit_tokens(1, str(number))
        run.recorder.emit(RouteDecision("a", "b", str(number)))
    kinds = [type(payload) for payload in await run.told()]
    assert kinds.count(RouteDecision) == 5
    assert kinds.count(ModelTokens) == 1
    await run.recorder.close()


async def test_a_step_that_is_begun_again_tells_what_it_told_before_only_once(database: Database) -> None:
    run = await begun(database)
    finished = NodeFinished("generate", 1, timedelta(seconds=1), step_id="s")
    token = STEP.set(Step("s", "generate/1"))
    run.recorder.emit(NodeStarted("generate", 1, "s"))
    run.recorder.emit(RouteDecision("a", "b", "c"))
    await run.recorder.flush()
    broken_off = await run.again()
    for payload in (NodeStarted("generate", 1, "s"), RouteDecision("a", "b", "c"), finished):
        broken_off.recorder.emit(payload)
    await broken_off.recorder.flush()
    over = await broken_off.again()
    for payload in (NodeStarted("generate", 1, "s"), RouteDecision("a", "b", "c"), finished):
        over.recorder.emit(payload)
    told = await over.told()
    STEP.reset(token)
    starts = [payload for payload in told if isinstance(payload, NodeStarted)]
    assert len(starts) == 2  # begun, and begun again; not a third time, since it was over
    assert [payload for payload in told if not isinstance(payload, NodeStarted)] == [
        RouteDecision("a", "b", "c"),
        finished,
    ]
    for one in (run, broken_off, over):
        await one.recorder.close()


async def test_a_batch_whose_answer_got_lost_is_not_written_twice(database: Database) -> None:
    run = await begun(database)
    run.recorder.emit(RouteDecision("a", "b", "c"))
    batch = tuple(run.recorder._events)
    await run.rows.append(run.claim, batch, 2)  # it was written, and nobody heard of it
    assert len(await run.told()) == 1
    await run.recorder.close()


async def test_what_was_told_after_a_batch_whose_answer_got_lost_is_added_to_it(database: Database) -> None:
    run = await begun(database)
    run.recorder.emit(RouteDecision("a", "b", "1"))
    await run.rows.append(run.claim, tuple(run.recorder._events), 2)
    run.recorder.emit(RouteDecision("a", "b", "2"))
    assert [payload.reason for payload in await run.told()] == ["1", "2"]
    other = await run.again()
    await run.rows.append(run.claim, [happened(RouteDecision("a", "b", "of somebody else"))])
    other.recorder.emit(RouteDecision("a", "b", "3"))
    with pytest.raises(Fenced):
        await other.recorder.flush()
    for one in (run, other):
        await one.recorder.close()


async def test_a_flush_that_is_cancelled_knows_what_it_has_written(database: Database) -> None:
    run = await begun(database)
    for number in range(8):  # whichever step of the flush a cancellation meets
        run.recorder.emit(RouteDecision("a", "b", str(number)))
        flush = asyncio.create_task(run.recorder.flush())
        for _ in range(number):
            await asyncio.sleep(0)
        flush.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await flush
    assert [payload.reason for payload in await run.told()] == [str(number) for number in range(8)]
    await run.recorder.close()


async def test_who_has_lost_the_run_tells_nothing_more(database: Database) -> None:
    run = await begun(database)
    await run.runs.hand_back(run.claim, "elsewhere")
    run.recorder.emit(RouteDecision("a", "b", "c"))
    with pytest.raises(Fenced):
        await run.recorder.flush()
    await run.recorder.close()


async def test_a_watcher_sees_every_later_event_once_and_then_the_end(database: Database) -> None:
    run = await begun(database)
    watching = Watching(run.runs, run.rows)
    async with watching.running():

        async def seen(after: int) -> list[int]:
            events = watching.watch(run.claim.run_id, after, heartbeat=HEARTBEAT)
            async with aclosing(events):
                return [event.sequence async for event in events if event is not None]

        early, late = asyncio.create_task(seen(0)), asyncio.create_task(seen(3))
        for number in range(5):
            run.recorder.emit(RouteDecision("a", "b", str(number)))
            await run.recorder.flush()
        await run.runs.finish(run.claim, RunResult(Outcome.PASSED, "it passed"))
        assert await early == list(range(1, 9))
        assert await late == list(range(4, 9))
    await run.recorder.close()


async def test_a_quiet_run_sends_heartbeats_and_an_unknown_one_is_not_found(database: Database) -> None:
    run = await begun(database)
    watching = Watching(run.runs, run.rows)
    events = watching.watch(run.claim.run_id, 2, heartbeat=timedelta(milliseconds=1))
    async with aclosing(events):
        assert await anext(events) is None
    with pytest.raises(RunNotFound):
        await anext(watching.watch("run_x", heartbeat=HEARTBEAT))
