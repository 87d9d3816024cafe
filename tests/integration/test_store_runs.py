"""Rows of runs on SQLite and Postgres: made once, moved by compare-and-swap alone, listed, deleted."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from support.store import CANCELLED, PASSED, VERSIONS, claimed, ended, entry, new_run

from orchestrator.errors import Fenced, RequestIdTaken, RunNotFound
from orchestrator.runs import Breakpoints, Origin, OriginKind, Resume, RunFilter, RunState, StateChanged, Wait
from orchestrator.runs.store import (
    Claim,
    EventRows,
    Limits,
    Queue,
    RunRows,
    TapeRows,
    conditions,
    happened,
    open_database,
)

AT = Wait("checkpoint-1", ("verify",), "before verify")


@pytest.fixture
async def database(database_url):
    async with open_database(database_url) as database:
        yield database


@pytest.fixture
def rows(database):
    return RunRows(database)


@asynccontextmanager
async def two_replicas(url):
    async with open_database(url) as one, open_database(url) as other:
        yield one, other


async def test_a_run_is_read_back_as_it_was_made(rows):
    new = new_run(
        labels={"team": "a", "zeta": "ü"}, tenant="t", request_id="r", breakpoints=Breakpoints(("*",), ("x",))
    )
    record, made = await rows.create(new)
    assert made
    assert record == await rows.get(new.run_id)
    assert (record.state, record.epoch, record.owner, record.last_sequence) == (RunState.QUEUED, 0, "", 1)
    assert record.create_time == new.create_time
    assert record.deadline == new.create_time + timedelta(minutes=10)
    assert (record.breakpoints, dict(record.labels)) == (new.breakpoints, {"team": "a", "zeta": "ü"})
    assert await rows.spec(new.run_id) == new.spec


async def test_a_missing_run_is_named(rows):
    for ask in (rows.get, rows.spec):
        with pytest.raises(RunNotFound, match="run_nothing"):
            await ask("run_nothing")
    with pytest.raises(RunNotFound):
        await rows.request_cancel("run_nothing", "why")


async def test_one_request_id_makes_one_run_however_many_replicas_are_asked_at_once(database_url):
    async with two_replicas(database_url) as replicas:
        asked = [RunRows(replicas[n % 2]).create(new_run(request_id="same")) for n in range(20)]
        made = await asyncio.gather(*asked)
    assert len({record.run_id for record, _ in made}) == 1
    assert sum(is_new for _, is_new in made) == 1


async def test_a_request_id_belongs_to_its_tenant_and_to_its_request(rows):
    first, _ = await rows.create(new_run(request_id="r", tenant="a"))
    with pytest.raises(RequestIdTaken, match=first.run_id):
        await rows.create(new_run("another task", request_id="r", tenant="a"))
    _, made = await rows.create(new_run("another task", request_id="r", tenant="b"))
    assert made
    assert await rows.find_request("a", "r") == first.run_id
    assert await rows.find_request("c", "r") == ""


async def test_runs_without_a_request_id_are_all_made(rows):
    made = [await rows.create(new_run()) for _ in range(3)]
    assert len({record.run_id for record, is_new in made if is_new}) == 3


async def test_each_waiting_run_is_claimed_once_however_many_claim_at_once(database_url):
    async with two_replicas(database_url) as replicas:
        wanted = {(await RunRows(replicas[0]).create(new_run()))[0].run_id for _ in range(12)}
        claims = [Queue(replicas[n % 2], Limits()).claim(f"{n % 2}/x", VERSIONS, 2) for n in range(12)]
        got = [record for records in await asyncio.gather(*claims) for record in records]
    assert sorted(record.run_id for record in got) == sorted(wanted)
    assert {(record.state, record.epoch) for record in got} == {(RunState.RUNNING, 1)}


async def test_limits_hold_over_all_replicas_at_once(database_url):
    async with two_replicas(database_url) as replicas:
        for n in range(12):
            await RunRows(replicas[0]).create(new_run(tenant="a" if n < 8 else "b"))
        limits = Limits(running=5, tenant_running=3)
        claims = [Queue(replicas[n % 2], limits).claim("x/1", VERSIONS, 4) for n in range(8)]
        got = [record.tenant for records in await asyncio.gather(*claims) for record in records]
    assert sorted(got) == ["a"] * got.count("a") + ["b"] * got.count("b")
    assert len(got) == 5
    assert max(got.count("a"), got.count("b")) <= 3


async def test_another_graphs_version_is_left_in_the_queue(database, rows):
    record, _ = await rows.create(new_run(graph_version=7))
    assert await Queue(database, Limits()).claim("x/1", VERSIONS, 5) == []
    assert (await rows.get(record.run_id)).state is RunState.QUEUED


async def test_what_is_wrong_in_the_queue_is_found_behind_any_number_of_runs_that_are_well(rows):
    for _ in range(3):
        await rows.create(new_run())
    late, _ = await rows.create(new_run(timeout=timedelta(microseconds=1)))
    newer, _ = await rows.create(new_run(graph_version=2))
    await rows.create(new_run(graph_version=2, wait=AT))  # nobody need go on with it yet
    served = set(VERSIONS.items())
    assert [run.run_id for run in await rows.select(conditions.overdue(datetime.now(UTC)), limit=1)] == [late.run_id]
    assert [run.run_id for run in await rows.select(conditions.unserved(served), limit=1)] == [newer.run_id]
    assert await rows.select(conditions.unserved(served | {("codegen", 2)})) == []
    assert len(await rows.select(conditions.unserved(()))) == 5


async def test_runs_at_work_are_told_with_their_owners(database, rows):
    await ended(database)
    one, two = await claimed(database), await claimed(database, owner="two/2")
    await rows.create(new_run())
    assert sorted(await rows.at_work(), key=lambda pair: pair[1]) == [(one, "one/1"), (two, "two/2")]


async def test_what_a_lost_claim_writes_is_refused_everywhere(database, rows):
    lost = await claimed(database)
    assert await rows.take_from(lost.run_id, "one/1", lost.epoch, "its replica died")
    assert not await rows.take_from(lost.run_id, "one/1", lost.epoch, "its replica died")
    (again,) = await Queue(database, Limits()).claim("two/1", VERSIONS, 1)
    assert (again.run_id, again.epoch, again.recoveries) == (lost.run_id, 2, 1)
    before = again.last_sequence
    with pytest.raises(Fenced):
        await EventRows(database).append(lost, [happened(AT)])
    with pytest.raises(Fenced):
        await TapeRows(database).add(lost, entry("generate/1/model"))
    assert not await rows.finish(lost, PASSED)
    assert not await rows.wait(lost, AT)
    assert not await rows.hand_back(lost, "drained")
    record = await rows.get(lost.run_id)
    assert (record.state, record.owner, record.last_sequence) == (RunState.RUNNING, "two/1", before)
    assert await TapeRows(database).read(lost.run_id) == []


async def test_an_ended_run_is_never_changed_again(database, rows):
    claim = await claimed(database)
    assert await rows.finish(claim, PASSED)
    record = await rows.get(claim.run_id)
    assert (record.state, record.result, record.has_ended) == (RunState.SUCCEEDED, PASSED, True)
    assert record.end_time is not None
    assert not await rows.finish(claim, CANCELLED)
    assert not await rows.finish_idle(record, CANCELLED)
    assert await rows.resume(record, Resume()) is None
    assert not await rows.hand_back(claim, "drained")
    assert await rows.request_cancel(claim.run_id, "too late") == record
    assert await rows.get(claim.run_id) == record


async def test_of_a_finish_and_its_rivals_exactly_one_wins(database_url):
    async with two_replicas(database_url) as (one, other):
        for _ in range(10):
            claim = await claimed(one)
            rows = RunRows(one)
            moves = [
                rows.finish(claim, PASSED),
                RunRows(other).take_from(claim.run_id, "one/1", claim.epoch, "died"),
                RunRows(other).finish(claim, CANCELLED),
                RunRows(other).wait(claim, AT),
            ]
            won = await asyncio.gather(*moves)
            assert sum(won) == 1
            record = await rows.get(claim.run_id)
            states = (RunState.SUCCEEDED, RunState.QUEUED, RunState.CANCELLED, RunState.WAITING)
            assert record.state is states[won.index(True)]
            told = [event.payload for event in await EventRows(one).read(claim.run_id, 0)]
            changes = [payload.state for payload in told if isinstance(payload, StateChanged)]
            assert changes == [RunState.QUEUED, RunState.RUNNING, record.state]
            if record.state is RunState.QUEUED:
                assert await rows.finish_idle(record, CANCELLED)


async def test_the_first_reason_to_cancel_stays(database, rows):
    claim = await claimed(database)
    asked = await asyncio.gather(*(rows.request_cancel(claim.run_id, f"reason {n}") for n in range(5)))
    assert len({record.cancel_reason for record in asked}) == 1
    assert (await rows.get(claim.run_id)).cancel_reason == asked[0].cancel_reason


async def test_a_run_that_was_asked_to_end_is_not_begun(database, rows):
    record, _ = await rows.create(new_run())
    await rows.request_cancel(record.run_id, "no more")
    assert await Queue(database, Limits()).claim("one/1", VERSIONS, 1) == []


async def test_time_stands_still_while_a_run_waits(database, rows):
    claim = await claimed(database, timeout=timedelta(minutes=2))
    deadline = (await rows.get(claim.run_id)).deadline
    assert await rows.wait(claim, AT)
    waiting = await rows.get(claim.run_id)
    assert (waiting.state, waiting.deadline, waiting.wait, waiting.owner) == (RunState.WAITING, None, AT, "")
    assert timedelta() < waiting.time_left <= timedelta(minutes=2)
    before = datetime.now(UTC)
    resumed = await rows.resume(waiting, Resume(step=True, answers={"q": '"yes"'}), Breakpoints(before=("test",)))
    assert resumed.state is RunState.QUEUED
    assert (resumed.wait, resumed.time_left) == (None, None)
    assert before + waiting.time_left <= resumed.deadline <= datetime.now(UTC) + waiting.time_left
    assert resumed.deadline > deadline
    assert resumed.resume == Resume(step=True, answers={"q": '"yes"'})
    assert resumed.breakpoints == Breakpoints(before=("test",))


async def test_of_two_who_resume_a_run_one_is_told_that_it_is_late(database, rows):
    claim = await claimed(database)
    assert await rows.wait(claim, AT)
    record = await rows.get(claim.run_id)
    resumed = await asyncio.gather(*(rows.resume(record, Resume()) for _ in range(4)))
    assert sum(one is not None for one in resumed) == 1


async def test_a_run_made_waiting_has_its_whole_time_and_is_in_no_queue(database, rows):
    record, _ = await rows.create(new_run(wait=AT, timeout=timedelta(minutes=3)))
    assert (record.state, record.time_left, record.deadline) == (RunState.WAITING, timedelta(minutes=3), None)
    assert await Queue(database, Limits()).claim("one/1", VERSIONS, 1) == []


async def test_lists_filter_by_tenant_state_workflow_and_all_labels(database, rows):
    done = await ended(database, tenant="a", labels={"x": "2", "y": "1"})
    mine = [(await rows.create(new_run(tenant="a", labels={"x": "1", "y": str(n)})))[0].run_id for n in range(3)]
    await rows.create(new_run(tenant="b", labels={"x": "1", "y": "1"}))

    async def found(**wanted):
        return [record.run_id for record in await rows.list(RunFilter("a", **wanted))]

    assert await found(labels={"x": "1"}) == sorted(mine, reverse=True)
    assert await found(labels={"x": "1", "y": "1"}) == [mine[1]]
    assert await found(labels={"x": "3"}) == []
    assert done in await found(states=frozenset({RunState.SUCCEEDED, RunState.RUNNING}))
    assert await found(workflow="another") == []
    assert dict((await rows.list(RunFilter("a", labels={"y": "2"})))[0].labels) == {"x": "1", "y": "2"}


async def test_pages_hold_each_run_once_though_runs_are_made_meanwhile(rows):
    made = [(await rows.create(new_run(tenant="a")))[0].run_id for _ in range(7)]
    pages, before = [], ""
    while page := await rows.list(RunFilter("a", before=before, limit=3)):
        pages += [record.run_id for record in page]
        before = page[-1].run_id
        await rows.create(new_run(tenant="a"))
    assert pages == sorted(made, reverse=True)


async def test_what_hangs_on_a_run_goes_with_it_and_a_run_at_work_stays(database, rows):
    claim = await claimed(database, labels={"x": "1"})
    await EventRows(database).append(claim, [happened(AT)])
    await TapeRows(database).add(claim, entry("generate/1/model"))
    assert await rows.delete([claim.run_id]) == 0
    assert await rows.finish(claim, PASSED)
    assert await rows.delete([claim.run_id, "run_nothing"]) == 1
    with pytest.raises(RunNotFound):
        await rows.get(claim.run_id)
    assert await EventRows(database).read(claim.run_id, 0) == []
    assert await TapeRows(database).read(claim.run_id) == []
    assert await rows.list(RunFilter("", labels={"x": "1"})) == []


async def test_origins_are_kept_though_what_they_name_is_gone(database, rows):
    first = await ended(database)
    fork, _ = await rows.create(new_run(origin=Origin(OriginKind.FORK, first, "checkpoint-9"), wait=AT))
    assert await rows.delete([first]) == 1
    assert (await rows.get(fork.run_id)).origin == Origin(OriginKind.FORK, first, "checkpoint-9")


async def test_progress(database, rows):
    claim = await claimed(database)
    await rows.create(new_run())
    assert await rows.progress([claim.run_id, "run_nothing"]) == {claim.run_id: (RunState.RUNNING, 2)}


async def test_a_claim_of_an_epoch_to_come_is_worth_nothing(database):
    claim = await claimed(database)
    with pytest.raises(Fenced):
        await EventRows(database).append(Claim(claim.run_id, claim.epoch + 1), [happened(AT)])
