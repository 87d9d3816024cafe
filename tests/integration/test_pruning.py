"""Retention on SQLite and Postgres: what goes, what must stay, and `codemend prune` as an operator runs it."""

import asyncio
import contextlib
import os
import sqlite3
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from sqlalchemy import update
from support.cli import run_cli
from support.store import CANCELLED, PASSED, VERSIONS, claimed, ended, entry, new_run

from orchestrator.errors import ArtifactMissing, RunNotFound
from orchestrator.runs import DirectoryStore, Origin, OriginKind, RunFilter, Wait
from orchestrator.runs.checkpoints import checkpoints_path, open_saver
from orchestrator.runs.pruning import Pruned, Pruner, Retention, compact
from orchestrator.runs.store import (
    ArtifactRows,
    CaseRow,
    CaseRows,
    EventRows,
    Limits,
    Queue,
    RunRows,
    TapeRows,
    happened,
    open_database,
    sqlite_path,
)
from orchestrator.runs.store.schema import ARTIFACTS, RUNS
from orchestrator.workflows import Attempt, Strategy, Verdict

WEEK = Retention(timedelta(days=7), 1000)
AT = Wait("checkpoint-1", ("verify",), "before verify")


class Place:
    """A database, its saver and its artifacts, and a way to make what lies in them older."""

    def __init__(self, database, saver, artifacts, root):
        self.database, self.saver, self.artifacts, self.root = database, saver, artifacts, root
        self.rows = RunRows(database)

    def pruner(self, retention=WEEK):
        return Pruner(self.database, self.saver, self.artifacts, retention)

    async def age(self, run_id, days):
        """The run was made and ended that long ago."""
        then = datetime.now(UTC) - timedelta(days=days)
        changes = {"end_time": then, "create_time": then, "artifacts_since": then}
        async with self.database.write() as connection:
            await connection.execute(update(RUNS).where(RUNS.c.run_id == run_id).values(changes))

    async def artifact(self, content, days):
        """An artifact that was kept that long ago."""
        name = await self.artifacts.put(content)
        then = datetime.now(UTC) - timedelta(days=days)
        if isinstance(self.artifacts, DirectoryStore):
            os.utime(self.root / name[:2] / name, (time.time(), then.timestamp()))
        else:
            async with self.database.write() as connection:
                await connection.execute(update(ARTIFACTS).where(ARTIFACTS.c.name == name).values(kept_time=then))
        return name

    async def full(self, days, name="", **changes):
        """An ended run with all that hangs on one; it names an artifact."""
        claim = await claimed(self.database, **changes)
        await EventRows(self.database).append(claim, [happened(AT)])
        await TapeRows(self.database).add(claim, entry("generate/1/model"))
        await self.checkpoint(claim.run_id, name)
        await self.rows.finish(claim, CANCELLED)
        await self.age(claim.run_id, days)
        return claim.run_id

    async def checkpoint(self, run_id, name="", written="", namespace=""):
        """A checkpoint that names an artifact in its state, and another in what was written after it."""
        config = {"configurable": {"thread_id": run_id, "checkpoint_ns": namespace}}
        checkpoint, version = empty_checkpoint(), self.saver.get_next_version(None, None)
        checkpoint["channel_values"]["attempts"] = [Attempt(1, Strategy.DRAFT, Verdict.PASSED, code_hash=name)]
        checkpoint["channel_versions"]["attempts"] = version
        metadata = {"source": "loop", "step": 1, "parents": {}}
        kept = await self.saver.aput(config, checkpoint, metadata, {"attempts": version})
        await self.saver.aput_writes(kept, [("v", "x" * 1000), ("w", {"files": [written]})], "task")

    async def waiting(self, days, **named):
        """A run that has waited for so long."""
        record, _ = await self.rows.create(new_run(wait=AT))
        await self.checkpoint(record.run_id, **named)
        await self.age(record.run_id, days)
        return record.run_id

    async def has_checkpoint(self, run_id):
        return await self.saver.aget_tuple({"configurable": {"thread_id": run_id}}) is not None

    async def left(self):
        return {record.run_id for record in await self.rows.list(RunFilter("", limit=1000))}


@pytest.fixture
async def place(database_url, tmp_path):
    async with open_database(database_url) as database, open_saver(database_url) as saver:
        if database.is_sqlite:
            with contextlib.closing(DirectoryStore(tmp_path / "artifacts")) as artifacts:
                yield Place(database, saver, artifacts, tmp_path / "artifacts")
        else:
            yield Place(database, saver, ArtifactRows(database), tmp_path)


async def test_an_old_run_goes_with_all_that_hangs_on_it_and_a_young_one_stays_whole(place):
    old, young = await place.full(8), await place.full(6)
    assert await place.pruner().look() == Pruned(1, 0, 0)
    assert await place.left() == {old, young}
    assert (await place.pruner().prune()).runs == 1
    assert await place.left() == {young}
    with pytest.raises(RunNotFound):
        await place.rows.get(old)
    assert (await place.has_checkpoint(old), await place.has_checkpoint(young)) == (False, True)
    for run_id, counts in ((old, (0, 0)), (young, (4, 1))):
        events = await EventRows(place.database).read(run_id, 0)
        entries = await TapeRows(place.database).read(run_id)
        assert (len(events), len(entries)) == counts
    assert (await place.pruner().prune()).runs == 0


async def test_of_many_runs_those_that_ended_last_are_kept(place):
    run_ids = [await ended(place.database) for _ in range(25)]
    for days, run_id in enumerate(run_ids):
        await place.age(run_id, days / 10)
    assert (await place.pruner(Retention(timedelta(days=7), 4)).look()).runs == 21
    assert await place.pruner(Retention(timedelta(days=7), 4)).prune_runs() == 21
    assert await place.left() == set(run_ids[:4])
    assert await place.pruner(Retention(timedelta(days=7), 0)).prune_runs() == 4


async def test_runs_that_have_not_ended_stay_however_old_they_are(place):
    running = (await claimed(place.database)).run_id
    waiting = (await place.rows.create(new_run(wait=AT)))[0].run_id
    queued = (await place.rows.create(new_run()))[0].run_id
    for run_id in (running, waiting, queued):
        await place.age(run_id, 100)
        await place.checkpoint(run_id)
    await place.pruner(Retention(timedelta(), 0)).prune()
    assert await place.left() == {running, waiting, queued}
    assert all([await place.has_checkpoint(run_id) for run_id in (running, waiting, queued)])


async def test_a_run_stays_for_as_long_as_one_forked_from_it_is_at_work(place):
    origin = await place.full(100)
    fork, _ = await place.rows.create(new_run(origin=Origin(OriginKind.FORK, origin, "checkpoint-1"), wait=AT))
    await place.pruner().prune()
    assert await place.left() == {origin, fork.run_id}
    assert await place.rows.finish_idle(await place.rows.get(fork.run_id), CANCELLED)
    await place.pruner().prune()
    assert await place.left() == {fork.run_id}


async def test_an_artifact_stays_for_as_long_as_a_run_that_names_it(place):
    old = await place.artifact(b"old", 20)
    run_id = await place.full(6, old)
    assert await place.pruner().look() == Pruned(0, 1, 3)  # the run began when it was gone
    await place.age(run_id, 0)
    async with place.database.write() as connection:  # it began long ago, and ended now
        since = datetime.now(UTC) - timedelta(days=30)
        await connection.execute(update(RUNS).values(artifacts_since=since))
    assert await place.pruner().look() == Pruned(0, 0, 0)
    assert await place.pruner().prune() == Pruned(0, 0, 0)
    assert await place.artifacts.get(old) == b"old"
    await place.age(run_id, 8)
    assert await place.pruner().prune() == Pruned(1, 1, 3)


async def test_a_run_that_waits_for_months_keeps_what_it_names_and_nothing_else(place):
    kept = {key: await place.artifact(key.encode(), 100) for key in ("state", "writes", "inner", "shared")}
    other = await place.waiting(101, name=kept["state"], written=kept["writes"])
    await place.checkpoint(other, name=kept["shared"])
    inner = await place.waiting(101, name=kept["shared"])
    await place.checkpoint(inner, name=kept["inner"], namespace="candidate:1")
    gone = [await place.artifact(f"gone {days}".encode(), days) for days in (102, 50, 9)]
    young = await place.artifact(b"young", 5)
    assert await place.pruner().look() == Pruned(0, 3, 21)
    assert await place.pruner().prune() == Pruned(0, 3, 21)
    for name in gone:
        with pytest.raises(ArtifactMissing):
            await place.artifacts.get(name)
    for name in (*kept.values(), young):
        assert await place.artifacts.get(name)
    assert await place.rows.finish_idle(await place.rows.get(inner), CANCELLED)
    await place.age(inner, 8)
    assert await place.pruner().prune() == Pruned(1, 1, 5)


async def test_a_result_keeps_what_it_names(place):
    name = await place.artifact(b"diff", 20)
    claim = await claimed(place.database)
    await place.rows.finish(claim, replace(PASSED, diff_hash=name))
    async with place.database.write() as connection:
        await connection.execute(update(RUNS).values(artifacts_since=datetime.now(UTC) - timedelta(days=30)))
    assert await place.pruner().prune() == Pruned(0, 0, 0)
    assert await place.artifacts.get(name) == b"diff"


@pytest.mark.parametrize("at_work", [True, False])
async def test_a_run_that_is_not_still_keeps_all_that_it_may_yet_name(place, at_work):
    run_id = (await place.rows.create(new_run()))[0].run_id
    if at_work:
        await Queue(place.database, Limits()).claim("one/1", VERSIONS, 1)
    await place.age(run_id, 20)
    older, younger = await place.artifact(b"older", 21), await place.artifact(b"younger", 19)
    assert await place.pruner().prune() == Pruned(0, 1, 5)
    assert await place.artifacts.get(younger) == b"younger"
    with pytest.raises(ArtifactMissing):
        await place.artifacts.get(older)


async def test_checkpoints_that_cannot_be_read_keep_all_that_their_run_may_name(place, database_url):
    await place.waiting(20)
    damage_checkpoints(database_url)
    older, younger = await place.artifact(b"older", 21), await place.artifact(b"younger", 19)
    assert await place.pruner().prune() == Pruned(0, 1, 5)
    assert await place.artifacts.get(younger) == b"younger"
    with pytest.raises(ArtifactMissing):
        await place.artifacts.get(older)


def damage_checkpoints(url):
    if (path := sqlite_path(url)) is not None:
        with contextlib.closing(sqlite3.connect(checkpoints_path(path))) as connection:
            connection.execute("UPDATE checkpoints SET checkpoint = x'c1'")
            connection.commit()
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(r"UPDATE checkpoint_blobs SET blob = '\xc1'")


async def test_a_fork_keeps_the_artifacts_that_it_has_of_the_run_that_it_comes_from(place):
    name = await place.artifact(b"of the origin", 19)
    origin = await place.full(20, name)
    forks = []
    for parent in (origin, None):
        source = parent or forks[-1]
        fork, _ = await place.rows.create(new_run(origin=Origin(OriginKind.FORK, source, "checkpoint-1"), wait=AT))
        await place.checkpoint(fork.run_id, name)
        await place.rows.finish_idle(await place.rows.get(fork.run_id), CANCELLED)
        forks.append(fork.run_id)
    assert await place.pruner().prune() == Pruned(1, 0, 0)
    assert await place.rows.delete([forks[0]]) == 1
    assert await place.pruner().prune() == Pruned(0, 0, 0)
    assert await place.artifacts.get(name) == b"of the origin"


async def test_cases_stay_when_their_run_goes(place):
    run_id = await place.full(8)
    case = CaseRow("case_1", "", "one", run_id, datetime.now(UTC), "codegen", 1, 1, "{}", "d" * 64, b"body")
    await CaseRows(place.database).add([case])
    await place.pruner().prune()
    assert await CaseRows(place.database).get("", "one") == case


async def test_two_replicas_prune_at_once_and_others_write_meanwhile(place, database_url):
    old = [await ended(place.database) for _ in range(40)]
    for run_id in old:
        await place.age(run_id, 8)
    claim = await claimed(place.database)
    async with open_database(database_url) as database, open_saver(database_url) as saver:
        other = Pruner(database, saver, place.artifacts, WEEK)
        counts = asyncio.gather(other.prune_runs(), place.pruner().prune_runs())
        while not counts.done():
            await EventRows(place.database).append(claim, [happened(AT)])
        await counts
    assert await place.left() == {claim.run_id}


async def test_a_sqlite_file_becomes_smaller_once_its_runs_are_gone(tmp_path):
    path = tmp_path / "runs.sqlite"
    url = f"sqlite:///{path}"
    async with open_database(url) as database, open_saver(url) as saver:
        run_id = await ended(database, task="x" * 2_000_000)
        await RunRows(database).delete([run_id])
        done = await compact(path)
        assert done.statement == "incremental_vacuum"
        assert done.freed_bytes > 1_900_000
        assert path.stat().st_size < 400_000
        await saver.adelete_thread(run_id)
    assert (await compact(checkpoints_path(path))).statement == "incremental_vacuum"


async def test_the_command_says_what_it_would_delete_and_then_deletes_it(database_url, tmp_path):
    environment = {"CODEMEND_DATA_DIR": str(tmp_path)}
    if database_url.startswith("postgres"):
        environment["CODEMEND_DATABASE_URL"] = database_url
    async with open_database(database_url) as database, open_saver(database_url) as saver:
        place = Place(database, saver, None, tmp_path)
        old, young = await place.full(3), await place.full(1)
        arguments = ["prune", "--older-than", "2d"]
        said = await run_cli(*arguments, "--dry-run", cwd=tmp_path, env=environment)
        assert (said.code, said.err) == (0, "")
        assert "would delete 1 ended run, with checkpoints" in said.out
        assert await place.left() == {old, young}
        said = await run_cli(*arguments, cwd=tmp_path, env=environment)
        assert (said.code, said.err) == (0, "")
        assert "deleted 1 ended run, with checkpoints" in said.out
        assert "incremental_vacuum" in said.out or "autovacuum" in said.out
        assert await place.left() == {young}
        said = await run_cli("prune", "--keep", "0", cwd=tmp_path, env=environment)
        assert "deleted 1 ended run" in said.out
        assert await place.left() == set()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--older-than", "soon"], "--older-than: 'soon' is no age"), (["--keep", "-1"], "--keep")],
)
async def test_wrong_options_are_named_and_nothing_is_made(arguments, words, tmp_path):
    said = await run_cli("prune", *arguments, cwd=tmp_path, env={"CODEMEND_DATA_DIR": str(tmp_path / "none")})
    assert said.code == 2
    assert words in said.err
    assert not (tmp_path / "none").exists()


async def test_where_no_run_was_ever_kept_nothing_is_made(tmp_path):
    said = await run_cli("prune", cwd=tmp_path, env={"CODEMEND_DATA_DIR": str(tmp_path / "none")})
    assert (said.code, said.err) == (0, "")
    assert "no runs are kept" in said.out
    assert not (tmp_path / "none").exists()


async def test_a_database_that_is_not_there_is_a_sentence(tmp_path):
    url = "postgresql://postgres:secret@127.0.0.1:9/none"
    said = await run_cli("prune", cwd=tmp_path, env={"CODEMEND_DATA_DIR": str(tmp_path), "CODEMEND_DATABASE_URL": url})
    assert said.code == 3
    assert said.err.startswith("codemend: cannot prune: Postgres cannot be used")
    assert "secret" not in said.err
