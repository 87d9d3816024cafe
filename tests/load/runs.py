"""A thousand codegen runs against one orchestrator; `python tests/load/runs.py` ends with 1 where one ends wrongly.

Half of them pass at once and half need a repair. Model and sandbox are scripted and answer at once, so what is
measured is codemend: runs and events a second, what a run takes of the database, what the process takes of memory.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # read when gRPC is imported; nothing forks here
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import grpc
import psycopg
from codemend.orchestrator.v1 import runs_pb2 as pb
from load.watch import MIB, memory
from rich.console import Console
from rich.table import Table
from support.openai_server import scripted_openai
from support.orchestrator import Client, orchestrator_process
from support.postgres import binaries, running_postgres
from support.scripted_sandbox import scripted_sandbox
from support.staged import Staged, judged, staged_model

KEPT_FAULTS = 20


@dataclass
class Load:
    """What came of the runs on one database."""

    name: str
    runs: int
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    events: int = 0
    nodes: int = 0
    database_bytes: int = 0
    memory_before: int = 0
    memory_after: int = 0
    faults: tuple[str, ...] = ()
    wrong: int = 0


async def main() -> int:
    """Runs the load on each database; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--database", choices=["sqlite", "postgres", "both"], default="both")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    loads = []
    if options.database != "postgres":
        loads.append(await on_sqlite(options.runs, options.callers))
    if options.database != "sqlite" and binaries() is None:
        console.print("no PostgreSQL server is installed: apt-get install --no-install-recommends postgresql")
        return 1
    if options.database != "sqlite":
        loads.append(await on_postgres(options.runs, options.callers))
    report(console, loads, options.callers)
    return 1 if any(load.wrong for load in loads) else 0


async def on_sqlite(runs: int, callers: int) -> Load:
    """The load on SQLite files in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="codemend-load-") as name:
        folder = Path(name)

        def size() -> int:
            return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

        async with loaded(CODEMEND_DATA_DIR=name) as (client, pid):
            load = await carried_out(Load("SQLite", runs), client, pid, callers)
        load.database_bytes = size()  # with checkpoints and artifacts, its write-ahead logs merged
        return load


async def on_postgres(runs: int, callers: int) -> Load:
    """The load on a server of its own that keeps what was committed, as one in production does."""
    with running_postgres(durable=True) as server:
        url = server.create()
        async with loaded(CODEMEND_DATABASE_URL=url) as (client, pid):
            load = await carried_out(Load("Postgres", runs), client, pid, callers)
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        assert row is not None
        load.database_bytes = row[0]
        return load


@contextlib.asynccontextmanager
async def loaded(**env: str) -> AsyncIterator[tuple[Client, int]]:
    """An orchestrator in a process of its own, over a model and a sandbox that answer at once."""
    async with (
        scripted_openai(staged_model()) as model,
        scripted_sandbox(judged, concurrency=64) as sandbox,
        orchestrator_process(
            sandbox=sandbox.address, model_url=model.base_url, CODEMEND_LOG_LEVEL="WARNING", **env
        ) as service,
    ):
        yield service.client, service.process.pid


async def carried_out(load: Load, client: Client, pid: int, callers: int) -> Load:
    """Creates all runs from many callers at once, each waiting for the end of one before it makes the next."""
    for number in range(callers):  # caches and connections are there before the first look
        assert not await fault(client, Staged(f"warm{number}"), load=None)
    load.memory_before, cpu = memory(pid), cpu_seconds(pid)
    numbers: Iterator[int] = iter(range(load.runs))
    faults: Counter[str] = Counter()

    async def caller() -> None:
        for number in numbers:
            if said := await fault(client, Staged(f"load{number}", right_at=number % 2), load):
                faults[said] += 1

    began = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(callers)))
    load.seconds, load.cpu_seconds = time.monotonic() - began, cpu_seconds(pid) - cpu
    load.memory_after, load.wrong = memory(pid), faults.total()
    load.faults = tuple(f"{count} x {said}" for said, count in faults.most_common(KEPT_FAULTS))
    return load


async def fault(client: Client, task: Staged, load: Load | None) -> str:
    """Carries one run out; says what was wrong with it, empty where nothing was."""
    try:
        run = await client.generate(task.spec(), request_id=task.name, within=600)
        events = await client.events(run.run_id) if load is not None else []
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    if load is not None:
        load.events += len(events)
        load.nodes += sum(event.HasField("node_finished") for event in events)
        if [event.sequence for event in events] != list(range(1, len(events) + 1)):
            return "its events have gaps"
    if run.result.outcome != pb.RUN_OUTCOME_PASSED:
        return f"{pb.RunOutcome.Name(run.result.outcome)}: {run.result.reason}"
    tried = len(run.result.attempts)
    return "" if tried == task.right_at + 1 else f"{tried} attempts, not {task.right_at + 1}"


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(console: Console, loads: list[Load], callers: int) -> None:
    """Prints what was measured."""
    table = Table("codegen runs", *(load.name for load in loads), title=f"{callers} callers at once")
    rows = {
        "runs": lambda load: str(load.runs),
        "wrong": lambda load: str(load.wrong),
        "seconds": lambda load: f"{load.seconds:.1f}",
        "runs/s": lambda load: f"{load.runs / load.seconds:.1f}",
        "nodes/s": lambda load: f"{load.nodes / load.seconds:.0f}",
        "events/s": lambda load: f"{load.events / load.seconds:.0f}",
        "events a run": lambda load: f"{load.events / load.runs:.1f}",
        "CPU a run": lambda load: f"{load.cpu_seconds / load.runs * 1000:.0f} ms",
        "database a run": lambda load: f"{load.database_bytes / (load.runs + callers) / 1024:.1f} KiB",
        "memory before": lambda load: f"{load.memory_before / MIB:.0f} MiB",
        "memory after": lambda load: f"{load.memory_after / MIB:.0f} MiB",
    }
    for name, shown in rows.items():
        table.add_row(name, *(shown(load) for load in loads))
    console.print(table)
    for load in loads:
        for said in load.faults:
            console.print(f"{load.name}: {said}", style="red", markup=False)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
