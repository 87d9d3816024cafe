"""What is handed to LangGraph to keep checkpoints in, on SQLite and Postgres: conformance, leases, crashes, poolers."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from support.postgres import running_postgres
from support.waiting import until

from orchestrator.errors import Fenced, StoreError, StoreUnavailable
from orchestrator.runs.checkpoints import checkpoints_path, open_saver

TESTS = Path(__file__).parents[1]
CAPABILITIES = {"put", "put_writes", "get_tuple", "list", "delete_thread"}
GRAPH = """
import asyncio, operator, sys
from typing import Annotated, TypedDict
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from orchestrator.runs.checkpoints import open_saver

class State(TypedDict):
    done: Annotated[list, operator.add]

async def work(state):
    if state["number"] == 3 and sys.argv[2] == "hang":
        await asyncio.sleep(0.2)  # its siblings end meanwhile, and are told here once they are kept
        print("hangs", flush=True)
        await asyncio.sleep(1000)
    print("worked", state["number"], flush=True)
    return {"done": [state["number"]]}

async def main():
    graph = StateGraph(State)
    graph.add_node("work", work)
    graph.add_conditional_edges(START, lambda state: [Send("work", {"number": n}) for n in range(4)])
    async with open_saver(sys.argv[1]) as saver:
        built = graph.compile(saver)
        place = {"configurable": {"thread_id": "run_1"}}
        begin = {"done": []} if sys.argv[2] == "hang" else None
        print(await built.ainvoke(begin, place, durability="sync"), flush=True)

asyncio.run(main())
"""


def place(thread="run_1", **more):
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **more}}


async def put(saver, thread="run_1", value="x"):
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"]["v"] = [value]
    checkpoint["channel_versions"]["v"] = version = saver.get_next_version(None, None)
    return await saver.aput(place(thread), checkpoint, {"source": "loop", "step": 1, "parents": {}}, {"v": version})


def process(url, what):
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent), "LANGGRAPH_STRICT_MSGPACK": "true"}
    command = [sys.executable, "-c", GRAPH, url, what]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_the_saver_does_all_that_langgraph_asks_of_one(database_url):
    @checkpointer_test(name=database_url)
    async def ours():
        async with open_saver(database_url) as saver:
            yield saver

    report = await validate(ours, capabilities=CAPABILITIES)
    results = {name: report.results[name] for name in CAPABILITIES}
    assert {name: result.failures for name, result in results.items() if result.failures} == {}
    assert all(result.detected and result.passed and result.tests_passed > 0 for result in results.values())


async def test_without_a_lease_nothing_is_written_and_all_can_still_be_read(database_url):
    has_lease = True

    def check_lease():
        if not has_lease:
            raise Fenced("lost")

    async with open_saver(database_url, check_lease) as saver:
        kept = await put(saver)
        has_lease = False
        with pytest.raises(Fenced):
            await put(saver)
        with pytest.raises(Fenced):
            await saver.aput_writes(kept, [("v", 1)], "task")
        found = await saver.aget_tuple(place())
        assert (found.config["configurable"]["checkpoint_id"], found.pending_writes) == (
            kept["configurable"]["checkpoint_id"],
            [],
        )
        assert len([one async for one in saver.alist(place())]) == 1


async def test_a_list_may_be_read_while_its_reader_writes(database_url):
    async with open_saver(database_url) as saver:
        await put(saver)
        async for _ in saver.alist(place()):
            await asyncio.wait_for(put(saver, "run_2"), 10)
        assert await saver.aget_tuple(place("run_2")) is not None


async def test_cancelled_writers_leave_no_lock_behind(database_url):
    async with open_saver(database_url) as saver, open_saver(database_url) as other:
        for rounds in range(30):
            writer = asyncio.create_task(put(saver, value="x" * 10_000))
            for _ in range(rounds % 6):
                await asyncio.sleep(0)
            writer.cancel()
            await asyncio.wait({writer})
            await asyncio.wait_for(put(other, "run_2"), 10)


async def test_replicas_that_start_together_all_get_a_saver(database_url):
    async def start(number):
        async with open_saver(database_url) as saver:
            await put(saver, f"run_{number}")
            return await saver.aget_tuple(place(f"run_{number}"))

    async with asyncio.timeout(60):
        assert None not in await asyncio.gather(*(start(number) for number in range(5)))


async def test_what_parallel_steps_did_survives_kill_9(database_url):
    first = await asyncio.to_thread(process, database_url, "hang")
    try:
        while "hangs" not in (line := await asyncio.to_thread(first.stdout.readline)):
            assert line.startswith("worked"), first.stderr.read()
        async with open_saver(database_url) as saver:
            async with asyncio.timeout(20):
                while len((await saver.aget_tuple(place())).pending_writes) < 3:  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(0.01)
    finally:
        first.send_signal(signal.SIGKILL)
        await asyncio.to_thread(first.communicate)
    second = await asyncio.to_thread(process, database_url, "go on")
    out, err = await asyncio.to_thread(second.communicate, timeout=60)
    assert (out.splitlines(), err) == (["worked 3", "{'done': [0, 1, 2, 3]}"], "")


async def test_a_file_that_is_no_database_is_named(tmp_path):
    path = tmp_path / "runs.sqlite"
    checkpoints_path(path).write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match=r"runs-checkpoints\.sqlite cannot be used"):
        async with open_saver(f"sqlite:///{path}"):
            pass


async def test_an_outage_of_postgres_is_told_soon_and_the_saver_goes_on_after_it():
    with running_postgres(durable=True) as server:
        async with open_saver(server.create()) as saver:
            await put(saver)
            server.stop()
            with pytest.raises(StoreUnavailable):
                await asyncio.wait_for(put(saver), 20)
            server.start()
            await asyncio.wait_for(put(saver, "run_2"), 20)
            assert await saver.aget_tuple(place()) is not None


async def test_a_postgres_that_answers_nothing_is_given_up_and_used_again_once_it_does(monkeypatch):
    monkeypatch.setattr("orchestrator.runs.checkpoints.ANSWER_SECONDS", 1.0)
    with running_postgres() as server:
        async with open_saver(server.create()) as saver:
            kept = await put(saver)
            await asyncio.gather(*(put(saver, f"run_{number}") for number in range(20)))  # several connections
            with server.frozen():
                calls = [
                    saver.aget_tuple(place()),
                    put(saver),
                    saver.aput_writes(kept, [("v", 1)], "task"),
                    listed(saver),
                    saver.adelete_thread("run_1"),
                    saver.aget_delta_channel_history(config=place(), channels=["v"]),
                    *(put(saver, f"late_{number}") for number in range(20)),
                ]
                told = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
                assert {type(each) for each in told} == {StoreUnavailable}
            async with asyncio.timeout(30):
                await asyncio.gather(*(put(saver, f"after_{number}") for number in range(20)))
                assert len(await listed(saver)) > 0


async def listed(saver):
    return [one async for one in saver.alist(place())]


async def test_the_saver_prepares_no_statement_that_a_pooler_could_lose(postgres, postgres_url):
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET log_statement = 'all'")
    async with open_saver(postgres_url) as saver:
        for number in range(12):  # the driver would prepare what it has seen five times
            kept = await put(saver, f"seen_{number}")
            await saver.aput_writes(kept, [("v", number)], "task")
            await saver.aget_tuple(place(f"seen_{number}"))
    await until(lambda: "seen_11" in postgres.log.read_text(errors="replace"))
    assert "execute _pg3" not in postgres.log.read_text(errors="replace")
