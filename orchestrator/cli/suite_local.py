"""Cases of a file, played in this process: without a service, a model or a sandbox, so that a build can be gated."""

import time
from collections.abc import Sequence
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path

from codemend.orchestrator.v1 import regression_pb2, runs_pb2
from google.protobuf.duration_pb2 import Duration

from orchestrator.api.case_lines import LineCutter, read_row
from orchestrator.api.checks import Checker
from orchestrator.api.regression_messages import result_message
from orchestrator.api.regression_service import changed, check_options
from orchestrator.cli.errors import UsageFault
from orchestrator.cli.suite_view import SuiteView
from orchestrator.errors import InvalidRun
from orchestrator.runs.cases import CaseResult, ReplayPlayer, in_turn
from orchestrator.runs.store import CaseRow

_CHUNK_BYTES = 1024 * 1024


def read_rows(path: Path, names: Sequence[str]) -> list[CaseRow]:
    """The cases of a file, or those of these names.

    Raises:
        UsageFault: it cannot be read, a line is no case, or a name is that of none.
    """
    rows: dict[str, CaseRow] = {}
    cutter = LineCutter(str(path))
    try:
        with path.open("rb") as stream:
            lines = [line for chunk in iter(lambda: stream.read(_CHUNK_BYTES), b"") for line in cutter.feed(chunk)]
        for at, raw in [*lines, *cutter.end()]:
            row = read_row(at, raw, tenant="")
            if row.name in rows:
                raise UsageFault("FILE", f"{at}: a line before it has a case of the name {row.name!r}")
            rows[row.name] = row
    except OSError as error:
        raise UsageFault("FILE", f"cannot read {str(path)!r}: {error.strerror or error}") from error
    except InvalidRun as error:
        raise UsageFault("FILE", str(error)) from error
    if unknown := [name for name in names if name not in rows]:
        raise UsageFault("--case", f"{str(path)!r} has no case {unknown[0]!r}")
    if not rows:
        raise UsageFault("FILE", f"{str(path)!r} holds no case")
    return [rows[name] for name in dict.fromkeys(names)] if names else list(rows.values())


async def play_rows(
    rows: Sequence[CaseRow], options: runs_pb2.RunOptions, concurrency: int, shown: SuiteView
) -> regression_pb2.SuiteReport:
    """Plays cases and shows each as it ends.

    Raises:
        UsageFault: the options are wrong.
    """
    check = Checker()
    check_options(options, check)
    try:
        check.raise_if_any()
    except InvalidRun as error:
        raise UsageFault("", str(error)) from error

    play = ReplayPlayer()

    async def work(row: CaseRow) -> CaseResult:
        return await play(row, lambda recorded: changed(recorded, options))

    started = time.monotonic()
    passed = 0
    async with aclosing(in_turn(rows, work, concurrency)) as results:
        async for result in results:
            passed += result.passed
            shown.case(result_message(result))
    took = Duration()
    took.FromTimedelta(timedelta(seconds=time.monotonic() - started))
    return regression_pb2.SuiteReport(total=len(rows), passed=passed, flipped=len(rows) - passed, duration=took)
