"""The database under faults: other processes, torn files, newer and older schemas, a server restarted or lost."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from support.postgres import running_postgres
from support.store import claimed, entry, new_run
from support.waiting import until

from orchestrator.errors import StoreError, StoreUnavailable
from orchestrator.runs import RunFilter, Wait
from orchestrator.runs.replica import Replica
from orchestrator.runs.store import EventRows, ReplicaRows, RunRows, TapeRows, happened, open_database

TESTS = Path(__file__).parents[1]
WRITER = """
import asyncio, sys
from support.store import claimed, entry
from orchestrator.runs import Wait
from orchestrator.runs.store import EventRows, RunRows, TapeRows, happened, open_database

async def main(url, count):
    async with open_database(url) as database:
        claim = await claimed(database, graph_version=1)
        print(claim.run_id, flush=True)
        for n in range(count):
            await EventRows(database).append(claim, [happened(Wait(str(n), (), "x"))])
            await TapeRows(database).add(claim, entry(f"generate/{n}/model"))
            print(n, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def writer(url, count):
    """Another process that writes events and tape entries of a run of its own, and says after each that it is kept."""
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    command = [sys.executable, "-c", WRITER, url, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


async def test_two_processes_write_one_sqlite_file_and_neither_hears_that_it_is_locked(tmp_path):
    url = f"sqlite:///{tmp_path / 'runs.sqlite'}"
    async with open_database(url) as database:
        claim = await claimed(database)
        other = await asyncio.to_thread(writer, url, 100)
        try:
            written = 0
            while other.poll() is None:
                await EventRows(database).append(claim, [happened(Wait("mine", (), "x"))] * 3)
                await TapeRows(database).add(claim, entry(f"verify/{written}/sandbox"))
                written += 1
            out, err = await asyncio.to_thread(other.communicate)
        finally:
            other.kill()
        assert (other.returncode, err) == (0, "")
        run_id = out.split()[0]
        assert (await RunRows(database).get(run_id)).last_sequence == 102
        assert len(await TapeRows(database).read(run_id)) == 100
        assert (await RunRows(database).get(claim.run_id)).last_sequence == 2 + 3 * written


@pytest.mark.parametrize("cut", [0, 1, 4000])
async def test_a_sqlite_file_whose_writer_was_killed_and_whose_log_is_torn_opens_whole(tmp_path, cut):
    path = tmp_path / "runs.sqlite"
    url = f"sqlite:///{path}"
    other = await asyncio.to_thread(writer, url, 100_000)
    try:
        run_id = (await asyncio.to_thread(other.stdout.readline)).strip()
        for _ in range(30):
            told = int(await asyncio.to_thread(other.stdout.readline))
    finally:
        other.send_signal(signal.SIGKILL)
        await asyncio.to_thread(other.communicate)
    wal = path.with_name("runs.sqlite-wal")
    os.truncate(wal, max(wal.stat().st_size - cut, 0))
    async with open_database(url) as database:
        events = await EventRows(database).read(run_id, 0, limit=100_000)
        entries = await TapeRows(database).read(run_id)
        record = await RunRows(database).get(run_id)
        assert [event.sequence for event in events] == list(range(1, record.last_sequence + 1))
        assert len(entries) <= len(events) - 2 <= len(entries) + 1  # each event was written before its entry
        if cut == 0:
            assert len(entries) > told
        await RunRows(database).create(new_run())
        async with database.read() as connection:
            assert (await connection.execute(text("PRAGMA integrity_check"))).scalar_one() == "ok"


async def test_a_file_that_is_no_database_is_named(tmp_path):
    path = tmp_path / "runs.sqlite"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match=r"runs\.sqlite cannot be used: .*not a database"):
        async with open_database(f"sqlite:///{path}"):
            pass


async def test_a_file_in_a_folder_of_any_name_is_made(tmp_path):
    path = tmp_path / "100% new?#" / "runs.sqlite"
    async with open_database(f"sqlite:///{path}") as database:
        await claimed(database)
    assert path.is_file()


async def test_another_kind_of_database_is_refused_by_name():
    with pytest.raises(StoreError, match="'mysql'"):
        async with open_database("mysql://localhost/x"):
            pass


async def test_a_database_of_a_newer_schema_is_refused_and_left_as_it_is(database_url):
    async with open_database(database_url) as database, database.write() as connection:
        await connection.execute(text("UPDATE codemend_schema SET version = 99"))
    with pytest.raises(StoreError, match=r"cannot be used: .*version 99, and this service knows 1 at most"):
        async with open_database(database_url):
            pass
    execute(database_url, "UPDATE codemend_schema SET version = 1")
    async with open_database(database_url) as database:
        await claimed(database)


async def test_migrations_are_applied_in_order_once_and_all_or_none(database_url, monkeypatch):
    async with open_database(database_url) as database:
        claim = await claimed(database)
    steps = (
        ("ALTER TABLE codemend_runs ADD COLUMN first INTEGER DEFAULT 7",),
        ("ALTER TABLE codemend_runs RENAME COLUMN first TO second", "UPDATE codemend_runs SET second = second + 1"),
    )
    module = "orchestrator.runs.store.database"
    monkeypatch.setattr(f"{module}.VERSION", 4)
    monkeypatch.setattr(f"{module}.MIGRATIONS", (*steps, ("UPDATE nothing SET here = 1",)))
    with pytest.raises(StoreError):
        async with open_database(database_url):
            pass
    monkeypatch.setattr(f"{module}.VERSION", 3)
    monkeypatch.setattr(f"{module}.MIGRATIONS", steps)
    for _ in range(2):
        async with open_database(database_url) as database, database.read() as connection:
            assert (await connection.execute(text("SELECT second FROM codemend_runs"))).scalar_one() == 8
            assert (await connection.execute(text("SELECT version FROM codemend_schema"))).scalar_one() == 3
            assert (await RunRows(database).get(claim.run_id)).run_id == claim.run_id


async def test_replicas_that_start_together_on_an_empty_database_all_come_up(database_url):
    async def start():
        async with open_database(database_url) as database:
            await RunRows(database).create(new_run(request_id="one"))
            return len(await RunRows(database).list(RunFilter("")))

    assert set(await asyncio.gather(*(start() for _ in range(6)))) == {1}


async def test_after_a_restart_of_postgres_the_next_call_works_and_until_then_each_fails_soon():
    with running_postgres(durable=True) as server:
        async with open_database(server.create()) as database:
            claim = await claimed(database)
            await asyncio.gather(*(RunRows(database).get(claim.run_id) for _ in range(8)))  # several connections
            server.stop()
            calls = (
                lambda: RunRows(database).get(claim.run_id),
                lambda: EventRows(database).append(claim, [happened(Wait("a", (), "x"))]),
            )
            for call in calls:
                with pytest.raises(StoreUnavailable):
                    await asyncio.wait_for(call(), 15)
            server.start()
            assert await EventRows(database).append(claim, [happened(Wait("b", (), "x"))]) == 3
            await asyncio.gather(*(RunRows(database).get(claim.run_id) for _ in range(8)))


async def test_a_postgres_that_answers_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr("orchestrator.runs.store.database.ANSWER_SECONDS", 1.0)
    with running_postgres() as server:
        async with open_database(server.create()) as database:
            claim = await claimed(database)
            with server.frozen():
                for call in (lambda: RunRows(database).get(claim.run_id), lambda: RunRows(database).create(new_run())):
                    with pytest.raises(StoreUnavailable):
                        await asyncio.wait_for(call(), 30)
            assert (await RunRows(database).get(claim.run_id)).run_id == claim.run_id


async def test_a_lease_holds_though_others_have_all_connections(database_url, monkeypatch):
    lease = timedelta(seconds=3)
    monkeypatch.setattr("orchestrator.runs.replica.BEAT", timedelta(seconds=0.2))
    monkeypatch.setattr("orchestrator.runs.replica.LEASE", lease)
    losses = []
    async with open_database(database_url) as busy, open_database(database_url) as other:
        replica, seen = Replica(ReplicaRows(busy), "one", "{}"), ReplicaRows(other)
        async with replica.running(lambda: losses.append("lost")), held_by_readers(busy):
            writer = asyncio.create_task(RunRows(busy).create(new_run()))
            (first,) = await seen.all()
            async with asyncio.timeout(20):
                while (await seen.all())[0].heartbeat < first.heartbeat + 2 * lease:
                    assert replica.has_lease
            assert not writer.done()  # nobody gave a connection back meanwhile
        await writer
    assert losses == []


async def test_after_a_heartbeat_that_hung_the_lease_is_not_lost_once_more(database_url, monkeypatch):
    monkeypatch.setattr("orchestrator.runs.replica.BEAT", timedelta(seconds=1))
    monkeypatch.setattr("orchestrator.runs.replica.LEASE", timedelta(seconds=4))
    monkeypatch.setattr("orchestrator.runs.replica._LOOK", timedelta(seconds=0.05))
    losses = []
    async with open_database(database_url) as database, open_database(database_url) as other:
        replica, seen = Replica(ReplicaRows(database), "one", "{}"), ReplicaRows(other)
        async with replica.running(lambda: losses.append(time.monotonic())):
            async with other.write() as connection:  # the heartbeat waits for this
                await connection.execute(text("UPDATE codemend_replicas SET graph_versions = '[]'"))
                await until(lambda: losses and time.monotonic() > losses[0] + 0.7, 20)
            (first,) = await seen.all()
            async with asyncio.timeout(20):
                while (await seen.all())[0].heartbeat < first.heartbeat + timedelta(seconds=3):
                    assert len(losses) == 1
            assert replica.has_lease


@asynccontextmanager
async def held_by_readers(database):
    """All connections that are shared are in use, and more of them are asked for."""
    over, at_work = asyncio.Event(), []

    async def hold():
        async with database.read() as connection:
            await connection.execute(text("SELECT 1"))
            at_work.append(connection)
            await over.wait()

    readers = [asyncio.create_task(hold()) for _ in range(40)]
    await until(lambda: len(at_work) == 20)
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*readers)


async def test_time_in_which_nobody_could_look_makes_no_replica_dead(database_url, monkeypatch):
    monkeypatch.setattr("orchestrator.runs.replica.LEASE", timedelta(seconds=1))
    monkeypatch.setattr("orchestrator.runs.replica.STALE", timedelta(seconds=2))
    async with open_database(database_url) as database:
        rows = ReplicaRows(database)
        await rows.register("other", "1", "{}")
        looker = Replica(rows, "one", "{}")
        assert [seen.owner for seen in await looker.others()] == ["other/1"]
        began = time.monotonic()
        await until(lambda: time.monotonic() > began + 2.5)  # as in an outage of the database
        assert [seen.owner for seen in await looker.others()] == ["other/1"]
        async with asyncio.timeout(20):
            while await looker.others():
                pass


async def test_a_postgres_that_is_not_there_is_told_at_once():
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="Postgres cannot be used"):
        async with open_database("postgresql://postgres:secret@127.0.0.1:9/none"):
            pass
    assert time.monotonic() - began < 10


async def test_a_statement_that_a_pooler_could_lose_is_never_prepared(postgres, postgres_url):
    execute(postgres_url, f"ALTER DATABASE {postgres_url.rpartition('/')[2]} SET log_statement = 'all'")
    async with open_database(postgres_url) as database:
        claim = await claimed(database)
        for n in range(12):  # the driver would prepare what it has seen five times
            await EventRows(database).append(claim, [happened(Wait(f"seen-{n}", (), "x"))])
            await RunRows(database).get(claim.run_id)
    await until(lambda: "seen-11" in postgres.log.read_text(errors="replace"))
    assert "execute _pg3" not in postgres.log.read_text(errors="replace")


def execute(url, statement):
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute(statement)
            connection.commit()
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement)
