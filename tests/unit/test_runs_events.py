"""The event log: gapless numbers, every event once to every watcher, heartbeats, gathered tokens, the archive."""

import asyncio
from datetime import timedelta
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.models import Usage
from orchestrator.runs.archive import dump_events, load_events
from orchestrator.runs.events import TOKEN_CHARS, EventLog, Payload, Recorder, StateChanged
from orchestrator.runs.states import RunState
from orchestrator.workflows import (
    Attempt,
    AttemptFinished,
    ExecutionFinished,
    ModelReplied,
    ModelTokens,
    NodeFinished,
    NodeStarted,
    Outcome,
    RouteDecision,
    Strategy,
    Verdict,
)
from orchestrator.workflows.sandbox import (
    Execution,
    ExecutionStatus,
    Failure,
    Output,
    ReportOutcome,
    TestCase,
    TestOutcome,
    TestReport,
)

LONG = timedelta(seconds=30)


def filled(count):
    log = EventLog("run_1")
    for number in range(count):
        log.append(NodeStarted("generate", number))
    return log


async def numbers(log, after=0):
    return [event.sequence async for event in log.watch(after, heartbeat=LONG)]


@given(st.integers(0, 20), st.integers(0, 25))
def test_a_watcher_of_a_closed_log_sees_every_later_event_once(count, after):
    log = filled(count)
    log.close()
    assert asyncio.run(numbers(log, after)) == list(range(after + 1, count + 1))


async def test_watchers_that_come_at_different_times_all_see_everything():
    log = filled(2)
    watchers = [asyncio.create_task(numbers(log))]
    await asyncio.sleep(0)
    log.append(NodeStarted("execute", 3))
    watchers.append(asyncio.create_task(numbers(log)))
    await asyncio.sleep(0)
    for number in range(4, 50):
        log.append(NodeStarted("execute", number))
    log.close()
    assert [await watcher for watcher in watchers] == [list(range(1, 50))] * 2


async def test_a_watcher_that_does_not_read_holds_nobody_up():
    log = filled(1)
    slow = log.watch(heartbeat=LONG)
    assert (await anext(slow)).sequence == 1
    for number in range(1000):
        log.append(NodeStarted("execute", number))
    log.close()
    assert await numbers(log) == list(range(1, 1002))
    assert [event.sequence async for event in slow] == list(range(2, 1002))


async def test_a_quiet_log_gives_heartbeats_and_then_its_events():
    log = filled(0)
    watcher = log.watch(heartbeat=timedelta(milliseconds=5))
    assert await anext(watcher) is None
    log.append(NodeStarted("execute", 1))
    assert (await anext(watcher)).sequence == 1
    await watcher.aclose()


async def test_nothing_is_added_to_a_closed_log():
    log = filled(2)
    log.close()
    log.append(NodeStarted("execute", 1))
    assert log.last_sequence == 2


async def test_an_archived_log_takes_no_memory_and_reads_the_same():
    log = filled(5)
    log.close()
    reader = log.watch(heartbeat=LONG)
    first = await anext(reader)
    kept = dump_events(log.events)

    async def load():
        return load_events(kept)

    log.archive(load)
    assert log.events == ()
    assert [first.sequence, *[event.sequence async for event in reader]] == [1, 2, 3, 4, 5]
    assert await numbers(log, 3) == [4, 5]


async def test_tokens_are_gathered_in_order_before_the_next_event():
    log = filled(0)
    recorder = Recorder(log)
    for piece in ("a", "b", "c"):
        recorder.emit_tokens(1, piece)
    recorder.emit_tokens(2, "x")
    recorder.emit(NodeFinished("generate", 1, timedelta()))
    assert [event.payload for event in log.events[:2]] == [ModelTokens(1, "abc"), ModelTokens(2, "x")]
    assert isinstance(log.events[2].payload, NodeFinished)


async def test_tokens_become_an_event_by_themselves_after_a_while_or_when_they_are_many():
    log = filled(0)
    recorder = Recorder(log)
    recorder.emit_tokens(1, "x" * TOKEN_CHARS)
    assert log.last_sequence == 1
    recorder.emit_tokens(1, "y")
    assert log.last_sequence == 1
    watcher = log.watch(1, heartbeat=LONG)
    assert (await anext(watcher)).payload == ModelTokens(1, "y")
    await watcher.aclose()


FAILING = TestCase("t", TestOutcome.FAILED, failure=Failure("E", "m"), stdout=b"\xff\x00")
PAYLOADS = [
    StateChanged(RunState.FAILED, "why", Outcome.STUCK),
    NodeStarted("generate", 1),
    NodeFinished("generate", 1, timedelta(seconds=1.25), "cancelled"),
    ModelTokens(1, "näher\n"),
    ModelReplied(1, "m", "stop", Usage(1, 2, 3), timedelta(seconds=2), "fault"),
    ExecutionFinished(
        1,
        Execution(ExecutionStatus.FAILED, exit_code=1, stdout=Output(b"\xff\x00", b"tail", 9)),
        TestReport(ReportOutcome.FAILED, tests=(FAILING,), counts={TestOutcome.FAILED: 1}),
    ),
    AttemptFinished(Attempt(1, Strategy.DRAFT, Verdict.FAILED, report_outcome=ReportOutcome.FAILED)),
    RouteDecision("decide", "repair", "why"),
]


def test_every_kind_of_payload_has_a_sample():
    assert {type(payload) for payload in PAYLOADS} == set(get_args(Payload))


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: type(payload).__name__)
def test_an_archived_event_reads_back_as_it_was(payload):
    log = EventLog("run_1")
    log.append(payload)
    assert load_events(dump_events(log.events)) == list(log.events)
