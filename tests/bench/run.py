"""What a cell costs: `python tests/bench/run.py` runs the same two jobs through the service and bare, in turn.

Prints a table and, as the last line, the same as JSON. It judges nothing: figures of different runs, machines or busy
minutes do not compare.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # read when gRPC is imported: bare jobs are started from this process
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.bare import BareRuns
from bench.measure import CALLERS, Comparison, compare
from codemend.sandbox.v1 import sandbox_pb2 as pb
from rich.console import Console
from rich.table import Table
from support.jobs import Sandbox, client, outcome
from support.sandbox import sandbox_process

FILES = {
    "solution.py": "def double(x):\n    return 2 * x\n",
    "test_solution.py": (
        "from solution import double\n\n\ndef test_small():\n    assert double(2) == 4\n\n\n"
        "def test_zero():\n    assert double(0) == 0\n"
    ),
}
PAIRED_SECONDS = {"execute": 12.0, "tests": 24.0}
MANY_SECONDS = {"execute": 6.0, "tests": 10.0}
QUICK = 0.15
"""Share of the time that --quick takes."""


async def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="about 15 s instead of 75: enough to see that it works")
    share = QUICK if parser.parse_args().quick else 1.0
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="codemend-bench-") as name:
        bare = BareRuns(Path(name), FILES)
        async with sandbox_process() as service, client(service.address, service.process.pid) as sandbox:
            sides = {"execute": (execute(sandbox), bare.execute), "tests": (run_tests(sandbox), bare.tests)}
            found = [
                await compare(
                    job, *sides[job], paired_seconds=PAIRED_SECONDS[job] * share, many_seconds=MANY_SECONDS[job] * share
                )
                for job in sides
            ]
            protections = sorted(await sandbox.in_force())
    show(machine, found)
    print(json.dumps({**machine, "protections": protections, "jobs": [dataclasses.asdict(each) for each in found]}))


def execute(sandbox: Sandbox):
    """One call of Execute; a wrong answer ends the run."""

    async def call() -> None:
        ran = await sandbox.python("print(1+1)")
        if ran.out != b"2\n":
            raise RuntimeError(f"the cell's program did not do its work: {ran.told()}")

    return call


def run_tests(sandbox: Sandbox):
    """One call of RunTests; a wrong answer ends the run."""

    async def call() -> None:
        reply: pb.RunTestsResponse = await sandbox.tests(FILES["test_solution.py"], FILES["solution.py"])
        if outcome(reply) != "PASSED" or reply.report.counts.passed != 2:
            raise RuntimeError(f"the cell's tests did not pass: {reply.report.reason}")

    return call


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
        "callers": CALLERS,
    }


def show(machine: dict[str, object], found: list[Comparison]) -> None:
    """The table for a person."""
    table = Table(
        title="one job in a cell through gRPC, and bare",
        caption=", ".join(f"{name} {value}" for name, value in machine.items()),
    )
    for column in ("job", "side", "samples", "median ms", "p99 ms", "cell / bare", f"jobs/s, {CALLERS} callers"):
        table.add_column(column, justify="left" if column in ("job", "side") else "right")
    for each in found:
        for name, side in (("cell", each.cell), ("bare", each.bare)):
            ratio = f"{each.ratio:.3f}" if name == "cell" else ""
            table.add_row(
                each.job,
                name,
                str(side.samples),
                f"{side.median_ms:.1f}",
                f"{side.p99_ms:.1f}",
                ratio,
                f"{side.per_second:.1f}",
            )
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    asyncio.run(main())
