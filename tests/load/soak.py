"""Many mixed jobs against one service; `python tests/load/soak.py` ends with 1 where a verdict is wrong or a leak seen.

Good jobs and bad ones come in random order (the seed is printed) from many callers. Every ending is known before the
job starts, so each answer is checked; what the service holds is compared before and after.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # read when gRPC is imported; nothing forks here
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from load.mix import Kind, kinds
from load.watch import MIB, Held, held, leaks
from rich.console import Console
from rich.table import Table
from support.jobs import Sandbox, client
from support.sandbox import sandbox_process

WARM_UP_JOBS = 300
"""Jobs before the first look: allocators and caches have then grown to what the mix needs."""
SAMPLE_SECONDS = 15.0
SETTLE_SECONDS = 20.0
KEPT_FAULTS = 20


@dataclass
class Run:
    """What is going on, and what was seen."""

    sandbox: Sandbox
    folder: Path
    mix: list[Kind]
    chance: random.Random
    left: int
    until: float
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    wrong: int = 0
    samples: list[tuple[float, int, Held]] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Jobs that have ended."""
        return self.ended.total()


async def main() -> int:
    """Runs the soak; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=15.0, help="stops early after this time, and says so")
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    console.print(
        f"{options.jobs} jobs, {options.callers} callers, at most {options.minutes:g} min, seed {options.seed}"
    )
    async with (
        sandbox_process(TMPDIR="{folder}", SANDBOX_LOG_LEVEL="WARNING") as service,
        client(service.address, service.process.pid) as sandbox,
    ):
        mix = kinds(await sandbox.in_force())
        run = Run(sandbox, service.folder, mix, random.Random(options.seed), 0, time.monotonic() + options.minutes * 60)
        await _callers(run, WARM_UP_JOBS, options.callers)
        before = await _settled(run, None)
        run.ended.clear()
        began = time.monotonic()
        sampler = asyncio.create_task(_sample(console, run, began))
        await _callers(run, options.jobs, options.callers)
        seconds = time.monotonic() - began
        sampler.cancel()
        after = await _settled(run, before)
        alive = service.process.returncode is None
    return _report(console, run, before, after, seconds, early=run.left > 0, alive=alive)


async def _callers(run: Run, jobs: int, callers: int) -> None:
    run.left = jobs
    await asyncio.gather(*(_caller(run) for _ in range(callers)))


async def _caller(run: Run) -> None:
    weights = [kind.weight for kind in run.mix]
    while run.left > 0 and time.monotonic() < run.until:
        run.left -= 1
        (kind,) = run.chance.choices(run.mix, weights)
        try:
            ending = await kind.do(run.sandbox, run.chance)
        except Exception as error:  # noqa: BLE001 - an answer that is none is a wrong one
            ending = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
        run.ended[kind.name, ending] += 1
        if ending != kind.right:
            run.wrong += 1
            run.faults = [*run.faults, f"{kind.name}: {ending}, not {kind.right}"][:KEPT_FAULTS]


async def _settled(run: Run, before: Held | None) -> Held:
    """What is held once no job runs: the least that is seen for some seconds, or what is no leak any more."""
    end = time.monotonic() + SETTLE_SECONDS
    seen = held(run.sandbox.pid, run.folder)
    while time.monotonic() < end:
        now = held(run.sandbox.pid, run.folder)
        if (before is None and now == seen) or (before is not None and not leaks(before, now)):
            return now
        seen = now
        await asyncio.sleep(0.5)
    return seen


async def _sample(console: Console, run: Run, began: float) -> None:
    while True:
        await asyncio.sleep(SAMPLE_SECONDS)
        now = held(run.sandbox.pid, run.folder)
        run.samples.append((time.monotonic() - began, run.done, now))
        console.print(
            f"{time.monotonic() - began:6.0f} s {run.done:7d} jobs {run.done / (time.monotonic() - began):6.1f}/s"
            f" wrong {run.wrong}; service {now.service_bytes / MIB:.1f} MiB, templates {now.templates_bytes / MIB:.1f};"
            f" {now.descriptors} descriptors, {now.processes} processes, {now.groups} groups"
        )


def _report(console: Console, run: Run, before: Held, after: Held, seconds: float, *, early: bool, alive: bool) -> int:
    table = Table("job", "ended in", "jobs", title=f"{run.done} jobs in {seconds:.0f} s: {run.done / seconds:.1f}/s")
    right = {kind.name: kind.right for kind in run.mix}
    for (name, ending), count in sorted(run.ended.items(), key=lambda one: (-right_first(one, right), one)):
        table.add_row(name, ending, str(count), style="" if right[name] == ending else "bold red")
    console.print(table)
    held_table = Table("what the service holds", "before", "after")
    for name in Held.__dataclass_fields__:
        old, new = getattr(before, name), getattr(after, name)
        size = name.endswith("_bytes")
        held_table.add_row(name, *(f"{value / MIB:.1f} MiB" if size else str(value) for value in (old, new)))
    console.print(held_table)
    found = leaks(before, after)
    if early:
        console.print(f"stopped early, after the time it was given: {run.left} jobs were not begun")
    for fault in [*run.faults, *found]:
        console.print(fault, style="red", markup=False)
    if not alive:
        console.print("the service has ended", style="red")
    console.print(f"wrong verdicts: {run.wrong}; leaks: {len(found)}")
    return 1 if run.wrong or found or not alive or not run.done else 0


def right_first(one: tuple[tuple[str, str], int], right: dict[str, str]) -> bool:
    """Sort key: wrong endings come last."""
    (name, ending), _count = one
    return right[name] == ending


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
