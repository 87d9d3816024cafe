"""`codemend eval`: a whole task set through the loop, or its references through the sandbox alone."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import inputs, options
from orchestrator.cli.errors import ExitCode, UsageFault
from orchestrator.cli.eval_loop import Evaluation, LoopSettings, loop_settings
from orchestrator.cli.eval_progress import Ticker
from orchestrator.cli.eval_reference import Verdict, check_versions
from orchestrator.cli.eval_report import plot, summarise, summary_table
from orchestrator.cli.eval_results import Record, ResultFile
from orchestrator.cli.eval_tasks import Task, choose_tasks, load_tasks
from orchestrator.cli.interrupts import run_to_exit
from orchestrator.cli.run import run_options
from orchestrator.cli.services import with_sandbox
from orchestrator.cli.target import Target, choose_target, with_target
from orchestrator.cli.terminal import complain, console, printable

_LOOP_CONCURRENCY = 4  # as many as the embedded model serves at one time
_REASON_LINES = 6


@dataclass(frozen=True, slots=True)
class _Job:
    target: Target
    settings: LoopSettings
    tasks: Sequence[Task]
    path: Path
    plot_path: Path
    concurrency: int


def eval_command(
    context: typer.Context,
    *,
    data: Annotated[Path, typer.Argument(metavar="DATA.jsonl", help="The task set, one JSON object a line.")],
    reference: Annotated[
        bool, typer.Option("--reference", help="No model: check that every reference passes its tests.")
    ] = False,
    buggy: Annotated[
        bool, typer.Option("--buggy", help="No model: check that no buggy version passes its tests.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Take the first N tasks.", show_default="all")
    ] = None,
    ids: Annotated[list[str] | None, typer.Option(metavar="ID,…", help="Take these tasks; repeatable.")] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, max=256, metavar="N", help="Tasks at one time.", show_default="4; the sandbox's own without a model"
        ),
    ] = None,
    attempts: options.AttemptsOption = None,
    candidates: options.CandidatesOption = 1,
    timeout: options.TimeoutOption = None,
    hide_tests: Annotated[
        bool, typer.Option("--hide-tests", help="Show the model the failures but not the tests.")
    ] = False,
    out: options.OutFile = None,
    plot_path: Annotated[
        Path | None, typer.Option("--plot", metavar="P.png", help="Where the plot goes.", show_default="beside --out")
    ] = None,
    model_url: options.ModelUrlOption = "",
    model: options.ModelOption = "",
    embedded_model: options.EmbeddedModelOption = "1.5b",
    address: options.AddressOption = "",
    sandbox_address: options.SandboxAddressOption = "",
) -> int:
    """Measure how much of a task set the loop solves.

    A row holds id, source, license, prompt, tests and reference, and may hold entry_point, files, buggy and notes;
    files, tests, reference and buggy map paths to texts. Results are appended to --out (default: out/eval-NAME.jsonl)
    as tasks end, and the same command goes on where it was interrupted; tasks that ended in an error are tried again.

    pass@1 is the share of tasks whose first attempt passed; with --candidates above 1, whose first candidate passed.

    Exit codes:

    - 0: every task has a verdict; with --reference or --buggy, the expected one
    - 1: with --reference or --buggy, some verdict is not the expected one
    - 2: usage
    - 3: a task ended in an error, or a service failed
    - 130: interrupted
    """
    if reference and buggy:
        raise UsageFault("--buggy", "it cannot be given together with --reference")
    tasks = choose_tasks(
        load_tasks(data), ids=[name for given in ids or [] for name in given.split(",") if name], limit=limit
    )
    if reference or buggy:
        inputs.check_address("--sandbox-address", sandbox_address)
        return run_to_exit(
            with_sandbox(sandbox_address, partial(_check, tasks=tasks, buggy=buggy, concurrency=concurrency))
        )
    target = choose_target(
        context,
        address=address,
        sandbox_address=sandbox_address,
        model_url=model_url,
        model=model,
        embedded_model=embedded_model,
    )
    settings = loop_settings(target, run_options(attempts, candidates, timeout), hide_tests=hide_tests)
    path = out or Path("out") / f"eval-{data.stem}.jsonl"
    plotted = plot_path or path.with_suffix(".png")
    return run_to_exit(_evaluate(_Job(target, settings, tasks, path, plotted, concurrency or _LOOP_CONCURRENCY)))


async def _check(address: str, *, tasks: Sequence[Task], buggy: bool, concurrency: int | None) -> int:
    chosen = [task for task in tasks if task.buggy] if buggy else tasks
    if not chosen:
        raise UsageFault("--buggy", "no task has a buggy version")
    verdicts: list[Verdict] = []
    with Ticker(len(chosen)) as ticker:

        def tell(verdict: Verdict) -> None:
            verdicts.append(verdict)
            ticker.tick(f"{verdict.id} {verdict.outcome}", good=verdict.passed != buggy)

        await check_versions(address, chosen, tell, buggy=buggy, concurrency=concurrency)
    unexpected = [verdict for verdict in verdicts if verdict.passed == buggy]
    out = console()
    for verdict in unexpected:
        out.print(f"{printable(verdict.id)}: {verdict.outcome}", style="red")
        for line in verdict.lines[:_REASON_LINES]:
            out.print(f"  {printable(line)}")
    wanted = "NOT PASSED" if buggy else "PASSED"
    out.print(f"{len(verdicts) - len(unexpected)} of {len(verdicts)} {wanted}")
    return ExitCode.NOT_SOLVED if unexpected else ExitCode.OK


async def _evaluate(job: _Job) -> int:
    with ResultFile(job.path) as results:
        fingerprints = {task.id: job.settings.fingerprint(task) for task in job.tasks}
        records = {name: found for name, mark in fingerprints.items() if (found := results.done(name, mark))}
        left = [task for task in job.tasks if task.id not in records]
        if records:
            complain(f"{len(records)} of {len(job.tasks)} tasks have their verdict in {job.path} already")
        started = time.monotonic()
        if left:
            await _run_left(job, left, results, records)
        took = timedelta(seconds=time.monotonic() - started) if left else None
    summary = summarise([records[task.id] for task in job.tasks])
    out = console()
    out.print(summary_table(summary, wall_time=took, candidates=job.settings.options.candidates))
    out.print(f"results: {job.path}")
    if summary.solved_by:
        await asyncio.to_thread(plot, summary, job.plot_path, title=f"{job.path.stem}, {job.settings.model}")
        out.print(f"plot:    {job.plot_path}")
    if summary.errors:
        complain(f"{summary.errors} tasks ended in an error; the same command tries them again")
    return ExitCode.SERVICE if summary.errors else ExitCode.OK


async def _run_left(job: _Job, left: Sequence[Task], results: ResultFile, records: dict[str, Record]) -> None:
    with Ticker(len(left)) as ticker:

        def tell(record: Record) -> None:
            records[record.id] = record
            ticker.tick(_line(record), good=record.passed)

        evaluation = Evaluation(job.settings, results, tell)
        try:
            await with_target(job.target, partial(evaluation.run, tasks=left, concurrency=job.concurrency))
        except asyncio.CancelledError:
            complain(f"interrupted; what has ended is in {job.path}, and the same command goes on from there")
            raise


def _line(record: Record) -> str:
    count = len(record.attempts)
    after = f" after {count} attempt{'' if count == 1 else 's'}" if count else ""
    why = "" if record.passed or not record.reason else f": {record.reason}"
    return f"{record.id} {record.outcome}{after}, {record.seconds:.1f} s{why}"
