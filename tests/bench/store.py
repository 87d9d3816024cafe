"""What a call to the database costs: `python tests/bench/store.py` times those that a run makes, one after the other.

Prints a table of milliseconds, SQLite in a file and a PostgreSQL of its own beside each other. It judges nothing:
figures of another machine or a busy minute do not compare.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from langgraph.checkpoint.base import empty_checkpoint
from rich.console import Console
from rich.table import Table
from support.postgres import binaries, running_postgres
from support.store import VERSIONS, claimed, entry, new_run

from orchestrator.runs import Wait
from orchestrator.runs.checkpoints import open_saver
from orchestrator.runs.store import EventRows, Limits, Queue, RunRows, TapeRows, happened, open_database

Times = dict[str, list[float]]


async def measure(url: str, rounds: int) -> Times:
    """Milliseconds of each call, `rounds` times."""
    async with open_database(url) as database, open_saver(url) as saver:
        rows, events, tapes, queue = (
            RunRows(database),
            EventRows(database),
            TapeRows(database),
            Queue(database, Limits()),
        )
        claim = await claimed(database)
        counter = iter(range(1_000_000))
        config = {"configurable": {"thread_id": claim.run_id, "checkpoint_ns": ""}}
        metadata = {"source": "loop", "step": 1, "parents": {}}
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "append 1 event": lambda: events.append(claim, [happened(Wait("a", (), "x"))]),
            "append 20 events": lambda: events.append(claim, [happened(Wait("a", (), "x"))] * 20),
            "tape: add": lambda: tapes.add(claim, entry(f"generate/{next(counter)}/model", response="x" * 2000)),
            "create": lambda: rows.create(new_run(request_id=f"r{next(counter)}")),
            "claim": lambda: queue.claim("one/1", VERSIONS, 1),
            "get": lambda: rows.get(claim.run_id),
            "progress of 100": lambda: rows.progress([claim.run_id] * 100),
            "checkpoint: put": lambda: saver.aput(config, empty_checkpoint(), metadata, {}),
        }
        times: Times = {name: [] for name in calls}
        for warming in (True, False):
            for name, call in calls.items():
                for _ in range(rounds // 10 if warming else rounds):
                    began = time.perf_counter()
                    await call()
                    if not warming:
                        times[name].append(1000 * (time.perf_counter() - began))
        return times


def show(found: dict[str, Times]) -> None:
    """Prints the table."""
    table = Table("ms: median (95th percentile)", *found, box=None, pad_edge=False)
    for name in next(iter(found.values())):
        cells = [
            f"{statistics.median(times[name]):.2f} ({statistics.quantiles(times[name], n=20)[-1]:.2f})"
            for times in found.values()
        ]
        table.add_row(name, *cells)
    console = Console()
    console.print(table)
    console.print(f"load {os.getloadavg()[0]:.2f} on {len(os.sched_getaffinity(0))} cores", highlight=False)


async def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500, help="calls of each kind (at least 20)")
    rounds = max(parser.parse_args().rounds, 20)
    found: dict[str, Times] = {}
    with tempfile.TemporaryDirectory(prefix="codemend-bench-") as folder:
        found["SQLite"] = await measure(f"sqlite:///{folder}/runs.sqlite", rounds)
    if binaries() is not None:
        with running_postgres(durable=True) as server:
            found["PostgreSQL"] = await measure(server.create(), rounds)
    show(found)


if __name__ == "__main__":
    asyncio.run(main())
