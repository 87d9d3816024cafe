"""`python tests/security/run.py` attacks every kind of cell and prints a table: attack x kind, contained or not, how.

The table also goes to out/security.md. Exits with 1 where an attack was not contained, something was left behind, an
honest job failed afterwards, or (CI=true) a kind could not be started.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # read when gRPC is imported: services are started from this process
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table
from support.kinds import KINDS, ROOT, MissingError

from security.attacks import ALL, Attack
from security.battery import Verdict, honest_job_passes, run_all

_HOW_CHARACTERS = 60


@dataclass
class Report:
    """What was seen of one kind: verdicts by attack, and what was wrong beside them."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    missing: str = ""
    seconds: float = 0.0
    in_force: frozenset[str] = frozenset()


def main() -> int:
    """Entry of `make security`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS), help="kinds of cells to attack")
    parser.add_argument("--attacks", nargs="*", help="names of attacks, or of groups; all where none is given")
    options = parser.parse_args()
    chosen = [attack for attack in ALL if not options.attacks or {attack.name, attack.group} & set(options.attacks)]
    reports = {kind: asyncio.run(attacked(kind, chosen)) for kind in options.kinds}
    show(chosen, reports)
    write(ROOT / "out" / "security.md", chosen, reports)
    return 0 if all(held(report) for report in reports.values()) else 1


async def attacked(kind: str, attacks: Sequence[Attack]) -> Report:
    """Starts one kind and runs everything against it, group by group."""
    report, began = Report(), time.monotonic()
    try:
        async with KINDS[kind]() as running:
            report.in_force = frozenset(await running.sandbox.in_force())
            for group in dict.fromkeys(attack.group for attack in attacks):
                of_group = [attack for attack in attacks if attack.group == group]
                report.verdicts |= {verdict.attack.name: verdict for verdict in await run_all(of_group, running)}
                if not await honest_job_passes(running):
                    report.faults.append(f"an honest job failed after the group {group}")
            if left := await running.leftovers():
                report.faults.append(f"left behind: {left}")
    except MissingError as error:
        report.missing = str(error)
    report.seconds = time.monotonic() - began
    return report


def held(report: Report) -> bool:
    """Whether a kind contained everything; one that cannot be started counts in CI alone."""
    if report.missing:
        return os.environ.get("CI") != "true"
    return not report.faults and all(verdict.finding.contained for verdict in report.verdicts.values())


def show(attacks: Sequence[Attack], reports: Mapping[str, Report]) -> None:
    """Prints the table for people."""
    console = Console(width=None if sys.stdout.isatty() else 60 + 50 * len(reports))
    table = Table("group", "attack", *reports, show_lines=False)
    for attack in attacks:
        cells = [_cell(report.verdicts.get(attack.name), mark=True) for report in reports.values()]
        table.add_row(attack.group, attack.name, *cells)
    console.print(table)
    for line in summary(reports):
        console.print(line, markup=False)


def summary(reports: Mapping[str, Report]) -> list[str]:
    """What it comes to, by kind."""
    lines = []
    for kind, report in reports.items():
        if report.missing:
            lines.append(f"{kind}: not started: {report.missing}")
            continue
        contained = sum(verdict.finding.contained for verdict in report.verdicts.values())
        lines.append(f"{kind}: {contained} of {len(report.verdicts)} attacks contained, in {report.seconds:.0f} s")
        lines += [f"{kind}: {fault}" for fault in report.faults]
        lines += [
            f"{kind}: NOT contained: {verdict.attack.name}: {verdict.finding.how}"
            for verdict in report.verdicts.values()
            if not verdict.finding.contained
        ]
    return lines


def write(path: Path, attacks: Sequence[Attack], reports: Mapping[str, Report]) -> None:
    """Writes the table as Markdown."""
    path.parent.mkdir(exist_ok=True)
    lines = ["# Attacks on the sandbox", "", *(f"- {line}" for line in summary(reports)), ""]
    lines += [f"- {kind}: in force: {', '.join(sorted(report.in_force))}" for kind, report in reports.items()]
    lines += ["", f"| group | attack | {' | '.join(reports)} |", f"|---|---|{'---|' * len(reports)}"]
    for attack in attacks:
        cells = [_cell(report.verdicts.get(attack.name)) for report in reports.values()]
        lines.append(f"| {attack.group} | {attack.name} | {' | '.join(cells)} |")
    path.write_text("\n".join(lines) + "\n")


def _cell(verdict: Verdict | None, *, mark: bool = False) -> str:
    if verdict is None:
        return "-"
    how = " ".join(verdict.finding.how.split()).replace("|", "/")
    how = how if len(how) <= _HOW_CHARACTERS else f"{how[:_HOW_CHARACTERS]}…"
    word = "contained" if verdict.finding.contained else "NOT CONTAINED"
    if not mark:
        return f"{word}: {how}"
    color = "green" if verdict.finding.contained else "bold red"
    return f"[{color}]{word}[/]: {how}".replace("[[", "\\[[")


if __name__ == "__main__":
    sys.exit(main())
