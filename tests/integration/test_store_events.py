"""Events, tapes, cases, artifacts and replicas on SQLite and Postgres, with several writers at once."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from support.store import VERSIONS, claimed, ended, entry, new_run

from orchestrator.errors import ArtifactMissing, ArtifactTooLarge, CaseNameTaken, CaseNotFound, StoreError
from orchestrator.runs import RunState, StateChanged, Wait
from orchestrator.runs.store import (
    ArtifactRows,
    CaseRow,
    CaseRows,
    Claim,
    EventRows,
    Limits,
    Queue,
    ReplicaRows,
    RunRows,
    TapeRows,
    happened,
    open_database,
)

WRITERS, APPENDS = 20, 5


@pytest.fixture
async def database(database_url):
    async with open_database(database_url) as database:
        yield database


def case(name="one", **changes):
    row = CaseRow(f"case_{name}", "t", name, "", datetime.now(UTC), "codegen", 1, 3, "{}", "d" * 64, b"\x00body")
    return replace(row, **changes)


async def test_numbers_of_events_have_no_gap_however_many_write_at_once(database_url):
    async with open_database(database_url) as one, open_database(database_url) as other:
        claims = [await claimed(one) for _ in range(3)]
        told = [
            EventRows((one, other)[n % 2]).append(
                claims[n % 3], [happened(Wait(f"{n}/{m}/{part}", (), "x")) for part in range(m + 1)]
            )
            for n in range(WRITERS)
            for m in range(APPENDS)
        ]
        last = await asyncio.gather(*told)
        for index, claim in enumerate(claims):
            events = await EventRows(other).read(claim.run_id, 0)
            assert [event.sequence for event in events] == list(range(1, len(events) + 1))
            parts = [event.payload.checkpoint_id for event in events if isinstance(event.payload, Wait)]
            mine = [n for n in range(WRITERS) if n % 3 == index]
            assert sorted(parts) == sorted(
                f"{n}/{m}/{part}" for n in mine for m in range(APPENDS) for part in range(m + 1)
            )
            ends = [number for place, number in enumerate(last) if (place // APPENDS) % 3 == index]
            assert len(set(ends)) == len(ends)
            assert (await RunRows(one).get(claim.run_id)).last_sequence == len(events) == max(ends)


async def test_one_batch_stays_together_among_other_writers(database):
    claim, rows = await claimed(database), EventRows(database)
    batches = [[happened(Wait(f"{n}", (), str(part))) for part in range(4)] for n in range(10)]
    await asyncio.gather(*(rows.append(claim, batch) for batch in batches))
    told = [event.payload.checkpoint_id for event in await rows.read(claim.run_id, 2)]
    assert all(len(set(told[at : at + 4])) == 1 for at in range(0, len(told), 4))


async def test_events_are_read_from_a_number_on_and_by_kind(database):
    claim, rows = await claimed(database), EventRows(database)
    assert await rows.append(claim, [happened(Wait("a", ("x",), "step")), happened(Wait("b", (), "step"))]) == 4
    assert [event.sequence for event in await rows.read(claim.run_id, 1, limit=2)] == [2, 3]
    assert await rows.read(claim.run_id, 4) == []
    assert [event.payload.state for event in await rows.of_kind(claim.run_id, "StateChanged")] == [
        RunState.QUEUED,
        RunState.RUNNING,
    ]
    (first, _) = await rows.of_kind(claim.run_id, "Wait")
    assert (first.payload, first.run_id) == (Wait("a", ("x",), "step"), claim.run_id)


async def test_keys_are_of_this_run_and_none_is_of_tokens(database):
    claim, rows = await claimed(database), EventRows(database)
    other = await ended(database)
    await rows.append(claim, [happened(Wait("a", (), "x"), "step/Wait/1"), happened(Wait("b", (), "x"))])
    assert await rows.keys(claim.run_id) == {"step/Wait/1"}
    assert await rows.keys(other) == frozenset()


async def test_an_event_of_any_text_comes_back_as_it_was(database):
    claim, rows = await claimed(database), EventRows(database)
    text = "zero \x00 é \U0001f600 \u2028 " + "x" * 100_000
    await rows.append(claim, [happened(StateChanged(RunState.RUNNING, text))])
    (event,) = await rows.read(claim.run_id, 2)
    assert event.payload.reason == text


async def test_a_tape_keeps_its_order_and_every_field(database):
    claim, rows = await claimed(database), TapeRows(database)
    entries = [entry(f"generate/{n}/model", step_id=f"step-{n}", response='{"text":"é"}') for n in range(10)]
    for one in entries:
        await rows.add(claim, one)
    assert await rows.read(claim.run_id) == entries


async def test_parallel_steps_of_a_run_add_to_one_tape(database):
    claim, rows = await claimed(database), TapeRows(database)
    entries = [entry(f"generate/{n}/model", step_id=f"step-{n}") for n in range(WRITERS)]
    await asyncio.gather(*(rows.add(claim, one) for one in entries))
    assert sorted((await rows.read(claim.run_id)), key=lambda one: one.name) == sorted(
        entries, key=lambda one: one.name
    )


async def test_one_step_takes_one_answer_of_a_name(database):
    claim, rows = await claimed(database), TapeRows(database)
    await rows.add(claim, entry("generate/1/model"))
    with pytest.raises(StoreError, match="generate/1/model of step step is on the tape"):
        await rows.add(claim, entry("generate/1/model"))
    await rows.add(claim, entry("generate/1/model", step_id="another"))
    assert len(await rows.read(claim.run_id)) == 2


async def test_a_run_that_begins_with_anothers_tape_adds_to_a_copy_of_it(database):
    claim, rows = await claimed(database), TapeRows(database)
    await rows.add(claim, entry("generate/1/model"))
    made, _ = await RunRows(database).create(new_run(), tape=await rows.read(claim.run_id))
    (record,) = await Queue(database, Limits()).claim("one/1", VERSIONS, 1)
    await rows.add(Claim(made.run_id, record.epoch), entry("verify/1/sandbox"))
    assert [one.name for one in await rows.read(made.run_id)] == ["generate/1/model", "verify/1/sandbox"]
    assert [one.name for one in await rows.read(claim.run_id)] == ["generate/1/model"]


async def test_cases_are_found_by_id_and_by_name_within_their_tenant(database):
    rows = CaseRows(database)
    cases = [case(), case("two", run_id="run_1")]
    assert await rows.add(cases) == cases
    assert [await rows.get("t", one.name) for one in cases] == cases
    for key in ("case_one", "one"):
        assert (await rows.get("t", key)).body == b"\x00body"
        with pytest.raises(CaseNotFound, match=key):
            await rows.get("another", key)
    assert [one.name for one in await rows.list("t", "", 10)] == ["one", "two"]
    assert [(one.name, one.body) for one in await rows.list("t", "one", 10)] == [("two", b"")]
    await rows.delete("t", "one")
    with pytest.raises(CaseNotFound):
        await rows.delete("t", "one")


async def test_cases_are_added_all_or_none_and_equal_ones_once(database):
    rows = CaseRows(database)
    await rows.add([case()])
    assert await rows.add([case()]) == []
    with pytest.raises(CaseNameTaken, match="one"):
        await rows.add([case("two"), case(digest="e" * 64)])
    assert [one.name for one in await rows.list("t", "", 10)] == ["one"]


async def test_one_case_that_two_replicas_add_at_once_is_there_once(database_url):
    async with open_database(database_url) as one, open_database(database_url) as other:
        adds = [CaseRows((one, other)[n % 2]).add([case(case_id=f"case_{n}")]) for n in range(6)]
        added = await asyncio.gather(*adds, return_exceptions=True)
        assert {type(each) for each in added} <= {list, CaseNameTaken}
        assert sum(each != [] for each in added if isinstance(each, list)) == 1
        assert len(await CaseRows(one).list("t", "", 10)) == 1


async def test_a_replica_started_again_takes_its_name_over(database):
    rows = ReplicaRows(database)
    await rows.register("one", "first", "{}")
    assert await rows.beat("one", "first")
    await rows.register("one", "second", '{"codegen":1}')
    assert not await rows.beat("one", "first")
    assert not await rows.rejoin("one", "first", "{}")
    await rows.leave("one", "first")
    (left,) = await rows.all()
    assert (left.replica_id, left.incarnation, left.graph_versions) == ("one", "second", '{"codegen":1}')
    await rows.leave("one", "second")
    assert await rows.rejoin("one", "first", "{}")
    assert await rows.beat("one", "first")
    await rows.forget(datetime.now(UTC) + timedelta(seconds=1))
    assert await rows.all() == []


async def test_artifacts_in_the_database_are_named_by_their_content(postgres_url):
    async with open_database(postgres_url) as database:
        store = ArtifactRows(database, maximum_bytes=10)
        (name,) = set(await asyncio.gather(*(store.put(b"\x00same") for _ in range(8))))
        assert await store.get(name) == b"\x00same"
        with pytest.raises(ArtifactTooLarge):
            await store.put(b"x" * 11)
        with pytest.raises(ArtifactMissing):
            await store.get("0" * 64)
        assert await store.measure(timedelta(hours=1)) == (0, 0)
        assert await store.measure(timedelta()) == (1, 5)
        assert await store.prune(timedelta()) == 1
        with pytest.raises(ArtifactMissing):
            await store.get(name)
