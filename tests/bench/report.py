"""The figures for people (a table, a plot) and for programs (JSON)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from bench.bare import BARE, EXEC_RUNSC
from bench.measure import Contestant, Figures
from rich.console import Console
from rich.table import Table

CALLERS = (8, 16)


def show(console: Console, job: str, contestants: Sequence[Contestant], figures: Mapping[str, Figures]) -> None:
    """One table a job, fastest first, what could not take part last."""
    table = Table(title=job, title_justify="left")
    columns = ("", "n", "p50 ms", "p99 ms", "/ bare", "/ docker exec runsc", *(f"jobs/s, {n} callers" for n in CALLERS))
    for name in columns:
        table.add_column(name, justify="right" if name else "left", no_wrap=not name)
    table.add_column("what keeps a job in", overflow="fold")
    able = [each for each in contestants if each.name in figures]
    for each in sorted(able, key=lambda one: figures[one.name].p50 if figures[one.name].times else float("inf")):
        found = figures[each.name]
        if not found.times:
            table.add_row(each.name, *[""] * (len(columns) - 1), f"not measured: {found.error}", style="dim")
            continue
        rates = [f"{found.rates[n]:.1f}" if n in found.rates else "-" for n in CALLERS]
        ratios = [_ratio(found, figures.get(BARE)), _ratio(found, figures.get(EXEC_RUNSC))]
        note = f"{each.isolation} [{found.error}]" if found.error else each.isolation
        bold = "bold" if each.name.startswith("codemend") else ""
        row = (each.name, str(len(found.times)), f"{found.p50:.1f}", f"{found.p99:.1f}", *ratios, *rates, note)
        table.add_row(*row, style=bold)
    console.print(table)


def _ratio(found: Figures, other: Figures | None) -> str:
    return f"{found.ratio(other):.3f}" if other is not None and other.slices and found.slices else "-"


def write_json(
    path: Path, machine: Mapping[str, object], absent: Mapping[str, str], found: Mapping[str, Mapping[str, Figures]]
) -> None:
    """Everything, so that two runs can be laid side by side."""
    jobs = {
        job: {
            name: {
                "samples": len(each.times),
                "p50_ms": round(each.p50, 2),
                "p99_ms": round(each.p99, 2),
                "to_bare": round(each.ratio(figures[BARE]), 4) if BARE in figures else None,
                "to_docker_exec_runsc": round(each.ratio(figures[EXEC_RUNSC]), 4) if EXEC_RUNSC in figures else None,
                "jobs_per_second": {str(callers): round(rate, 2) for callers, rate in each.rates.items()},
                "error": each.error,
            }
            for name, each in figures.items()
            if each.times
        }
        for job, figures in found.items()
    }
    path.write_text(json.dumps({**machine, "not_here": absent, "jobs": jobs}, indent=2) + "\n")


def plot(path: Path, machine: Mapping[str, object], found: Mapping[str, Mapping[str, Figures]]) -> None:
    """Two rows: how long one job takes (p50, and p99 as a whisker), and how many are done in a second."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice of a backend without a screen

    figure, axes = plt.subplots(2, len(found), figsize=(7 * len(found), 10), squeeze=False)
    for column, (job, figures) in enumerate(found.items()):
        shown = sorted(((name, each) for name, each in figures.items() if each.times), key=lambda one: -one[1].p50)
        colours = ["tab:blue" if name.startswith("codemend") else "tab:gray" for name, _ in shown]
        names = [name for name, _ in shown]
        medians = [each.p50 for _, each in shown]
        above = [max(each.p99 - each.p50, 0) for _, each in shown]
        latency, throughput = axes[0][column], axes[1][column]
        latency.barh(names, medians, xerr=[[0] * len(above), above], color=colours, log=True, capsize=2)
        latency.set_title(f"{job}\none job alone, ms (p50, whisker to p99)", fontsize=10)
        latency.set_xlim(left=min(medians) / 3)
        rates = [max(each.rates.values(), default=0) for _, each in shown]
        throughput.barh(names, rates, color=colours)
        throughput.set_title(f"jobs a second, best of {' and '.join(map(str, CALLERS))} callers", fontsize=10)
        for axis, values in ((latency, medians), (throughput, rates)):
            for place, value in enumerate(values):
                axis.annotate(f" {value:.3g}", (value, place), va="center", fontsize=8)
            axis.tick_params(axis="y", labelsize=8)
    figure.suptitle(
        ", ".join(f"{key} {machine[key]}" for key in ("time", "python", "pytest", "cores", "kernel")), fontsize=9
    )
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
