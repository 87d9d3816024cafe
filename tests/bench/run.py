"""What a job costs, here and with others: `python tests/bench/run.py` gives the same two jobs to all that can run them.

Prints a table a job and writes out/bench.json and out/bench.png. It judges nothing: figures of different runs,
machines or busy minutes do not compare; ratios within one run do.
"""

import argparse
import asyncio
import contextlib
import os
import platform
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # read when gRPC is imported: bare jobs are started from this process
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import bare, cells, measure, peers, report
from bench.jobs import SCRIPT, TESTS
from rich.console import Console

OUT = Path(__file__).resolve().parents[2] / "out"
JOBS = {SCRIPT: "script: print(1+1)", TESTS: "tests: pytest, a function of five lines, two asserts"}


@dataclass(frozen=True)
class Budget:
    """Seconds for each part: one job alone (all contestants together), and many callers (each contestant)."""

    alone: float
    together: float


FULL, QUICK = Budget(alone=50.0, together=2.0), Budget(alone=8.0, together=0.7)


@dataclass
class Field:
    """Who takes part, and who cannot, with the reason."""

    contestants: list[measure.Contestant] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    protections: list[str] = field(default_factory=list)


async def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="about a minute and a half instead of six")
    parser.add_argument(
        "--only", default="", help="contestants whose names contain one of these words (a,b,…), and bare"
    )
    options = parser.parse_args()
    budget = QUICK if options.quick else FULL
    console = Console(width=None if sys.stdout.isatty() else 180)
    began = time.monotonic()
    OUT.mkdir(exist_ok=True)
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=OUT) as name:
        os.chmod(name, 0o755)  # a container's user reads it too  # noqa: PTH101
        async with everybody(bare.Workplace(Path(name)), options.only.split(",")) as here:
            machine["protections"] = here.protections
            found = {job: await measured(console, here, job, budget) for job in JOBS}
    for job, title in JOBS.items():
        report.show(console, title, here.contestants, found[job])
    for each, reason in here.absent.items():
        console.print(f"not here: {each}: {reason}", style="dim", markup=False, highlight=False)
    report.write_json(OUT / "bench.json", machine, here.absent, found)
    report.plot(OUT / "bench.png", machine, {JOBS[job]: figures for job, figures in found.items()})
    told = ", ".join(f"{key} {value}" for key, value in machine.items() if key != "protections")
    console.print(
        f"{told}; {time.monotonic() - began:.0f} s; out/bench.json, out/bench.png", markup=False, highlight=False
    )


async def measured(console: Console, here: Field, job: str, budget: Budget) -> dict[str, measure.Figures]:
    """One job, by all who can do it."""
    console.print(f"{JOBS[job]}: one at a time", style="dim")
    found = await measure.alone(here.contestants, job, seconds=budget.alone)
    for each in here.contestants:
        if job in each.jobs and found[each.name].times:
            console.print(f"{JOBS[job]}: {each.name}, many callers", style="dim")
            for callers in report.CALLERS:
                await measure.together(each, job, found[each.name], callers, seconds=budget.together)
    return found


@contextlib.asynccontextmanager
async def everybody(place: bare.Workplace, only: list[str]) -> AsyncIterator[Field]:
    """Starts all that can take part."""
    here = Field([place.contestant(bare.BARE, "none")])
    async with contextlib.AsyncExitStack() as stack:

        @contextlib.contextmanager
        def unless_absent(name: str):
            try:
                yield
            except bare.NotHereError as error:
                here.absent[name] = str(error)

        def is_wanted(name: str) -> bool:
            return any(word in name for word in only)

        if is_wanted(cells.PROCESS):
            with unless_absent(cells.PROCESS):
                found, here.protections = await stack.enter_async_context(cells.process_cells())
                here.contestants += found
        for name, reuse in ((cells.DOCKER, "job"), (cells.DOCKER_SESSION, "session")):
            if is_wanted(name):
                with unless_absent(name):
                    here.contestants.append(await stack.enter_async_context(cells.docker_cells(reuse)))
        if is_wanted("bubblewrap"):
            with unless_absent("bubblewrap"):
                here.contestants.append(bare.bubblewrap(place))
        _add_engine(here, stack, place, is_wanted, unless_absent)
        await _add_peers(here, stack, place, is_wanted, unless_absent)
        yield here


def _add_engine(
    here: Field, stack: contextlib.AsyncExitStack, place: bare.Workplace, is_wanted: Callable, unless_absent: Callable
) -> None:
    names = [f"docker {verb}, {runtime}" for verb in ("run", "exec") for runtime in ("runc", "runsc")]
    wanted = [name for name in names if is_wanted(name)]
    engine = None
    if wanted:
        with unless_absent("docker run and docker exec"):
            engine = bare.Engine(place)
    for name in wanted if engine else []:
        runtime = name.rpartition(" ")[2]
        with unless_absent(name):
            is_run = name.startswith("docker run")
            here.contestants.append(engine.run(runtime) if is_run else stack.enter_context(engine.exec(runtime)))


async def _add_peers(
    here: Field, stack: contextlib.AsyncExitStack, place: bare.Workplace, is_wanted: Callable, unless_absent: Callable
) -> None:
    wanted = [name for name in peers.PEERS if is_wanted(name)]
    if not wanted:
        return
    python = None
    with unless_absent("peers from PyPI"):
        python = await asyncio.to_thread(peers.environment, OUT / "bench-peers")
    for name in wanted if python else []:
        with unless_absent(name):
            here.contestants.append(await stack.enter_async_context(peers.peer(name, python, place)))


def describe_machine() -> dict[str, object]:
    """What the figures were taken on, and how busy it was at the start."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "codemend": version("codemend"),
        "python": platform.python_version(),
        "pytest": version("pytest"),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_average": round(os.getloadavg()[0], 2),
    }


if __name__ == "__main__":
    asyncio.run(main())
