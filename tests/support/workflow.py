"""The `codegen` graph on a real tape, real checkpoints and real artifacts, with a model and a sandbox by script.

A run here is driven as a worker does it, one stint at a time, so that a test can break a stint off and begin the next.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from orchestrator.models import ModelSpec, Reply, Usage
from orchestrator.runs.artifacts import DirectoryStore
from orchestrator.runs.checkpoints import LeasedSaver, serializer
from orchestrator.runs.identity import digest, new_run_id
from orchestrator.runs.records import NewRun
from orchestrator.runs.store import Claim, Limits, Queue, RunRows, TapeEntry, TapeRows, open_database
from orchestrator.runs.tape import LiveTape, ReplayTape
from orchestrator.workflows import (
    CODEGEN,
    STEP,
    WORKFLOWS,
    CodegenContext,
    CodegenTask,
    Drained,
    Finished,
    Paused,
    RunOptions,
    RunSpec,
    drive,
    progress_so_far,
)
from orchestrator.workflows.sandbox import (
    Execution,
    ExecutionStatus,
    Failure,
    File,
    ReportOutcome,
    TestCase,
    TestOutcome,
    TestReport,
)

WORKFLOW = WORKFLOWS[CODEGEN]
TESTS = (File("test_solution.py", b"from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3\n"),)
TASK = CodegenTask(task="Write add(a, b).", tests=TESTS)
RIGHT = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a - b\n"
End = Finished | Paused | Drained


def wrong(number: int) -> str:
    """Code that fails in a way of its own."""
    return f"def add(a, b):\n    return {number}\n"


def fenced(code: str) -> str:
    """A reply that holds this code."""
    return f"```python\n{code}\n```"


class ScriptedModels:
    """Answers the n-th call with what `script` gives for n; an exception is raised."""

    def __init__(self, script: Callable[[int], str | Reply | Exception | Awaitable[str | Reply | Exception]]) -> None:
        self._script = script
        self.prompts: list[str] = []

    def spec(self, _role: str) -> ModelSpec:
        return ModelSpec(base_url="http://127.0.0.1/v1", model="m", max_output_tokens=1000)

    async def complete(self, _role: str, messages: Sequence[Any], *, on_delta: Any = None, **_: Any) -> Reply:
        self.prompts.append(messages[-1].text)
        answer = self._script(len(self.prompts))
        if not isinstance(answer, str | Reply | Exception):
            answer = await answer
        await asyncio.sleep(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            answer = Reply(answer, "", "stop", Usage(1, 20, 10), "m", timedelta(seconds=0.25))
        if on_delta is not None:
            on_delta(answer.text)
        return answer


class ScriptedSandbox:
    """Passes code that adds; fails any other, with a text of its own. `before` is awaited with the code first."""

    def __init__(self, before: Callable[[str], Awaitable[None]] | None = None) -> None:
        self._before = before
        self.ran: list[str] = []

    async def run_tests(self, job: Any, **_: Any) -> tuple[TestReport, Execution]:
        code = next(file for file in job.files if file.path == "solution.py").content.decode()
        self.ran.append(code)
        if self._before is not None:
            await self._before(code)
        await asyncio.sleep(0)
        return report(code), Execution(ExecutionStatus.SUCCEEDED, wall_time=timedelta(seconds=0.5))

    async def run_program(self, job: Any, **_: Any) -> Execution:
        self.ran.append(job.entry)
        return Execution(ExecutionStatus.SUCCEEDED)


def report(code: str) -> TestReport:
    """What the tests say of this code."""
    if "a + b" in code:
        return TestReport(ReportOutcome.PASSED, counts={TestOutcome.PASSED: 1})
    failure = Failure("AssertionError", f"assert {code.splitlines()[-1]!r} == 3")
    case = TestCase("test_solution.py::test_add", TestOutcome.FAILED, failure=failure)
    return TestReport(ReportOutcome.FAILED, tests=(case,), counts={TestOutcome.FAILED: 1})


@dataclass
class Bench:
    """One run of the graph, and replays of it."""

    runs: RunRows
    queue: Queue
    tapes: TapeRows
    artifacts: DirectoryStore
    models: ScriptedModels
    sandbox: Any
    spec: RunSpec
    run_id: str
    claim: Claim
    saver: LeasedSaver = field(
        default_factory=lambda: LeasedSaver(
            InMemorySaver(serde=serializer()), check_lease=lambda: None, answer_seconds=None
        )
    )
    told: list[tuple[str, Any]] = field(default_factory=list)  # id of the step that told it, empty where none did
    seconds: float = 60.0
    original: Sequence[TapeEntry] | None = None  # whose replay it is, with a tape of its own
    tokens: list[str] = field(default_factory=list)
    context: CodegenContext | None = None
    flush: Callable[[], Awaitable[None]] | None = None

    async def again(self) -> None:
        """What was at work is gone: the run is claimed anew."""
        await self.runs.take_from(self.run_id, "here", self.claim.epoch, "its replica died")
        (record,) = await self.queue.claim("here", {CODEGEN: WORKFLOW.version}, 1)
        self.claim = Claim(self.run_id, record.epoch)

    async def entries(self) -> Sequence[TapeEntry]:
        return await self.tapes.read(self.run_id)

    async def names(self) -> list[str]:
        return [entry.name for entry in await self.entries()]

    def graph(self) -> Any:
        return WORKFLOW.build(self.saver)

    async def stint(self, *, redact: Callable[[str], str] = str, **options: Any) -> End:
        """Works on the run as a worker does, from where it stands."""
        graph = WORKFLOW.build(self.saver)
        live = LiveTape(self.tapes, self.claim, await self.entries(), redact=redact)
        tape = live if self.original is None else ReplayTape(self.original, live=live)
        self.context = replace(self.made(tape), progress=await progress_so_far(WORKFLOW, graph, self.run_id))
        return await drive(graph, self.context, self.run_id, start=WORKFLOW.start(self.spec), **options)

    async def replay(self, **changes: Any) -> tuple[End, list[tuple[str, tuple[str, ...]]]]:
        """Plays the run again on a tape without clock, model and sandbox; gives its end and its states."""
        live_from = changes.pop("live_from", "")
        live = LiveTape(self.tapes, self.claim, ()) if live_from else None
        entries = changes.pop("entries", None) or await self.entries()
        saver = InMemorySaver(serde=serializer())
        graph = WORKFLOW.build(saver)
        context = replace(self.made(ReplayTape(entries, live_from=live_from, live=live)), **changes)
        end = await drive(graph, context, "replay", start=WORKFLOW.start(self.spec))
        return end, await states(saver, "replay")

    def events(self, kind: type) -> list[tuple[str, Any]]:
        return [(step_id, payload) for step_id, payload in self.told if isinstance(payload, kind)]

    async def states(self) -> list[tuple[str, tuple[str, ...]]]:
        return await states(self.saver, self.run_id)

    def made(self, tape: Any) -> CodegenContext:
        flush = {} if self.flush is None else {"flush": self.flush}
        return CodegenContext(
            **flush,
            task=self.spec.task,
            options=self.spec.options,
            models=self.models,
            sandbox=self.sandbox,
            artifacts=self.artifacts,
            deadline=asyncio.get_running_loop().time() + self.seconds,
            emit=lambda payload: self.told.append((getattr(STEP.get(None), "step_id", ""), payload)),
            emit_tokens=lambda _, text: self.tokens.append(text),
            tape=tape,
            prompts=self.spec.options.prompts,
            sandbox_patience=timedelta(),
        )


async def states(saver: BaseCheckpointSaver[Any], thread_id: str) -> list[tuple[str, tuple[str, ...]]]:
    """Every checkpoint's state as canonical JSON with what comes next, oldest first."""
    graph = WORKFLOW.build(saver)
    history = [item async for item in graph.aget_state_history({"configurable": {"thread_id": thread_id}})]
    return [(WORKFLOW.state_json(item.values), item.next) for item in reversed(history)]


@asynccontextmanager
async def bench(
    folder: Path,
    models: Callable[[int], Any],
    sandbox: Any = None,
    *,
    task: CodegenTask = TASK,
    seconds: float = 60.0,
    **options: Any,
) -> AsyncIterator[Bench]:
    """A run that is claimed and not begun yet."""
    spec = RunSpec(CODEGEN, task, RunOptions(**options))
    now = datetime.now(UTC)
    run_id = new_run_id(now)
    artifacts = DirectoryStore(folder / "artifacts")
    try:
        async with open_database(f"sqlite:///{folder / 'runs.sqlite'}") as database:
            runs, queue = RunRows(database), Queue(database, Limits())
            await runs.create(NewRun(run_id, "", spec, digest(spec), WORKFLOW.version, now))
            (record,) = await queue.claim("here", {CODEGEN: WORKFLOW.version}, 1)
            yield Bench(
                runs,
                queue,
                TapeRows(database),
                artifacts,
                ScriptedModels(models),
                sandbox or ScriptedSandbox(),
                spec,
                run_id,
                Claim(run_id, record.epoch),
                seconds=seconds,
            )
    finally:
        artifacts.close()


class HoldingRows(TapeRows):
    """A tape's rows that give nothing back any more once the entry of this name is written."""

    def __init__(self, rows: TapeRows, name: str) -> None:
        super().__init__(rows._database)
        self._name = name
        self.written = asyncio.Event()

    async def add(self, claim: Claim, entry: TapeEntry) -> None:
        await super().add(claim, entry)
        if entry.name == self._name:
            self.written.set()
            await asyncio.get_running_loop().create_future()


async def dies_after(made: Bench, name: str) -> None:
    """Works until the entry is written, and no further."""
    rows, holding = made.tapes, HoldingRows(made.tapes, name)
    made.tapes = holding
    work = asyncio.create_task(made.stint())
    await holding.written.wait()
    await dies(made, work)
    made.tapes = rows


async def dies(made: Bench, work: asyncio.Task[End]) -> None:
    """The work is gone, and the run is claimed again."""
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    await made.again()
