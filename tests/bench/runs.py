"""What codemend adds to a run: `python tests/bench/runs.py` prints wall and CPU time a node and a run.

Model and sandbox are objects of this process that answer at once, so nothing else is in the numbers but the graph, and
what keeps a run: queue, claims, tape, events, checkpoints. The same graph without all that is measured beside it.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ["LANGGRAPH_STRICT_MSGPACK"] = "true"  # read when LangGraph is imported, as in the service
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from langgraph.checkpoint.memory import InMemorySaver
from rich.console import Console
from rich.table import Table
from support.openai_server import Scripted, scripted_openai
from support.postgres import binaries, running_postgres
from support.replicas import running_cluster
from support.staged import Staged, reply
from support.workflow import ScriptedSandbox

from orchestrator.models import ModelSpec, Reply, Usage
from orchestrator.runs import RunParts, RunSettings, running_runs
from orchestrator.runs.artifacts import DirectoryStore
from orchestrator.runs.checkpoints import serializer
from orchestrator.workflows import (
    WORKFLOWS,
    CodegenContext,
    CodegenTask,
    Finished,
    NodeFinished,
    Outcome,
    RunOptions,
    RunSpec,
    drive,
)
from orchestrator.workflows.sandbox import File

AIM_MS = 25.0  # a node on SQLite
WARM_UP_RUNS = 5
AT_ONCE = 16
CANCELLATIONS = 10


class InstantModels:
    """Answers each prompt by its stage, at once."""

    def spec(self, _role: str) -> ModelSpec:
        """One endpoint."""
        return ModelSpec(base_url="http://127.0.0.1/v1", model="m", max_output_tokens=1000)

    async def complete(self, _role: str, messages: Sequence[Any], **_: Any) -> Reply:
        """The reply of the prompt's stage."""
        text = reply("\n\n".join(message.text for message in messages))
        return Reply(text, "", "stop", Usage(1, 20, 10), "m", timedelta())


@dataclass
class Measured:
    """Times of some runs."""

    name: str
    walls: list[float] = field(default_factory=list)  # seconds of each run
    seconds: float = 0.0  # of all
    cpu_seconds: float = 0.0
    nodes: int = 0

    @property
    def node_ms(self) -> float:
        """Wall time a node."""
        return self.seconds / self.nodes * 1000

    @property
    def node_cpu_ms(self) -> float:
        """CPU time of the process a node."""
        return self.cpu_seconds / self.nodes * 1000


Run = Callable[[int], Awaitable[int]]  # carries out the run of a number; gives back how many nodes it had


async def main() -> int:
    """Measures each way of keeping runs; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--database", choices=["sqlite", "both"], default="both")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    found = [*await measured("graph alone", bare(), options.runs)]
    with tempfile.TemporaryDirectory(prefix="codemend-bench-") as folder:
        found += await measured("SQLite", kept(RunSettings(Path(folder))), options.runs)
    if options.database == "both" and binaries() is not None:
        with tempfile.TemporaryDirectory(prefix="codemend-bench-") as folder, running_postgres(durable=True) as server:
            settings = RunSettings(Path(folder), database_url=server.create())
            found += await measured("Postgres", kept(settings), options.runs)
    report(console, found)
    if options.database == "both" and binaries() is not None:
        await report_cancellations(console)
    return 0


async def measured(name: str, way: contextlib.AbstractAsyncContextManager[Run], runs: int) -> list[Measured]:
    """Runs one after the other, and then many at once."""
    async with way as run:
        for number in range(WARM_UP_RUNS):
            await run(number)
        one = await timed(Measured(name), run, range(1000, 1000 + runs), 1)
        many = await timed(Measured(f"{name}, {AT_ONCE} at once"), run, range(5000, 5000 + runs), AT_ONCE)
    return [one, many]


async def timed(result: Measured, run: Run, numbers: Sequence[int], at_once: int) -> Measured:
    """Carries the runs out, so many at once."""
    left = iter(numbers)

    async def caller() -> None:
        for number in left:
            began = time.perf_counter()
            nodes = await run(number)
            result.nodes += nodes  # the sum is read after the run: others add to it meanwhile
            result.walls.append(time.perf_counter() - began)

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    result.seconds, result.cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    return result


def run_spec(number: int) -> RunSpec:
    """A run of one draft and one repair."""
    task = Staged(f"bench{number}", right_at=1)
    tests = tuple(File(path, text.encode()) for path, text in task.tests.items())
    options = RunOptions(max_attempts=2)
    return RunSpec("codegen", CodegenTask(task.spec().codegen.task, tests=tests), options)


@contextlib.asynccontextmanager
async def bare() -> AsyncIterator[Run]:
    """The graph over checkpoints in memory, without tape, events and rows."""
    workflow = WORKFLOWS["codegen"]
    with tempfile.TemporaryDirectory(prefix="codemend-bench-") as folder:
        artifacts = DirectoryStore(Path(folder))
        models, sandbox = InstantModels(), ScriptedSandbox()

        async def run(number: int) -> int:
            graph, spec, nodes = workflow.build(InMemorySaver(serde=serializer())), run_spec(number), 0

            def told(payload: object) -> None:
                nonlocal nodes
                nodes += isinstance(payload, NodeFinished)

            context = CodegenContext(
                task=spec.task,
                options=spec.options,
                models=models,
                sandbox=sandbox,
                artifacts=artifacts,
                deadline=asyncio.get_running_loop().time() + 600,
                emit=told,
                sandbox_patience=timedelta(),
            )
            end = await drive(graph, context, f"run {number}", start=workflow.start(spec))
            assert isinstance(end, Finished)
            assert end.conclusion.outcome is Outcome.PASSED
            return nodes

        yield run
        artifacts.close()


@contextlib.asynccontextmanager
async def kept(settings: RunSettings) -> AsyncIterator[Run]:
    """Runs as the service has them, from their creation to their end, without gRPC."""
    async with running_runs(settings, InstantModels(), ScriptedSandbox()) as parts:
        yield lambda number: carried_out(parts, number)


async def carried_out(parts: RunParts, number: int) -> int:
    """Creates a run and waits for its end."""
    made = await parts.manager.create(run_spec(number))
    ended = await parts.manager.wait_until(made.run_id)
    assert ended.result is not None
    assert ended.result.outcome is Outcome.PASSED, ended.result.reason
    return len(await parts.events.of_kind(made.run_id, NodeFinished.__name__))


async def report_cancellations(console: Console) -> None:
    """Prints how long it takes until a model call of one replica is dropped after CancelRun at the other."""
    answered, dropped = [], []
    with tempfile.TemporaryDirectory(prefix="codemend-bench-") as folder, running_postgres(durable=True) as server:
        async with (
            scripted_openai(lambda _: Scripted(gate=asyncio.Event())) as model,
            running_cluster(
                "one",
                "two",
                sandbox="127.0.0.1:1",  # no run gets so far
                model_url=model.base_url,
                data_dir=folder,
                database_url=server.create(),
            ) as cluster,
        ):
            for number in range(1, CANCELLATIONS + 1):
                run = await cluster.replicas[0].client.create(Staged(f"cancel{number}").spec())
                await model.wait_for_requests(number)
                began = time.monotonic()
                await cluster.replicas[1].client.cancel(run.run_id)
                answered.append(time.monotonic() - began)
                await model.wait_for_disconnects(number)
                dropped.append(model.disconnects[-1] - began)
    for what, times in (("answered", answered), ("model call dropped", dropped)):
        middle, most = statistics.median(times) * 1000, max(times) * 1000
        console.print(f"cancelled at either replica, {what}: median {middle:.0f} ms, at most {most:.0f} ms (aim: 1 s)")


def report(console: Console, found: Sequence[Measured]) -> None:
    """Prints what was measured, and how it stands to the graph alone."""
    table = Table(
        "codegen: draft, repair", "runs", "nodes a run", "ms a node", "CPU ms a node", "ms a run", "p95", "CPU, x"
    )
    base = found[0].node_cpu_ms
    for one in found:
        runs = len(one.walls)
        table.add_row(
            one.name,
            str(runs),
            f"{one.nodes / runs:.1f}",
            f"{one.node_ms:.1f}",
            f"{one.node_cpu_ms:.1f}",
            f"{statistics.mean(one.walls) * 1000:.1f}",
            f"{statistics.quantiles(one.walls, n=20)[-1] * 1000:.1f}",
            f"{one.node_cpu_ms / base:.1f}",
        )
    console.print(table)
    sqlite = next(one for one in found if one.name == "SQLite")
    console.print(f"aim: at most {AIM_MS:g} ms a node on SQLite; it is {sqlite.node_ms:.1f} ms")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
