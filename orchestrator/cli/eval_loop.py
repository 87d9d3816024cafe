"""The evaluation itself: tasks sent to the orchestrator, a bounded number at a time, each result kept as it comes.

A task whose run cannot be carried out is recorded as an ERROR and does not stop the others; many of them in a row do.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from codemend.orchestrator.v1 import runs_pb2
from codemend.sandbox.v1 import sandbox_pb2

from orchestrator.cli import client, runs
from orchestrator.cli.errors import CliError, ServiceFault
from orchestrator.cli.eval_results import Record, ResultFile, record_of
from orchestrator.cli.eval_tasks import Task, digest_of
from orchestrator.cli.pool import in_parallel
from orchestrator.cli.target import Target

_ERRORS_IN_A_ROW = 5  # beyond those already under way; then the services are down, not the tasks wrong


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What a result depends on besides its task.

    Attributes:
        model: label of the model that writes the code.
        options: of every run.
        hide_tests: the model gets the failures but not the tests.
        server: settings of the orchestrator, where it is the command's own.
    """

    model: str
    options: runs_pb2.RunOptions
    hide_tests: bool
    server: dict[str, object] = field(default_factory=dict)

    def fingerprint(self, task: Task) -> str:
        """Of the task and these settings: results under another fingerprint are another experiment's."""
        settings = {
            "model": self.model,
            "max_attempts": self.options.max_attempts,
            "candidates": self.options.candidates,
            "timeout": self.options.timeout.ToMilliseconds(),
            "hide_tests": self.hide_tests,
            "server": self.server,
        }
        return digest_of({"task": task.digest, **settings})[:16]

    def spec(self, task: Task) -> runs_pb2.RunSpec:
        """The run of a task."""
        return runs_pb2.RunSpec(
            codegen=runs_pb2.CodegenInput(
                task=task.prompt,
                entry_point=task.entry_point,
                files=as_files(task.files),
                tests=as_files(task.tests),
                hide_tests=self.hide_tests,
            ),
            options=self.options,
            labels={"task": task.id},
        )


class Evaluation:
    """Sends tasks and keeps their results.

    Args:
        settings: of every run.
        results: where each result goes.
        on_result: told of each result.
    """

    def __init__(self, settings: LoopSettings, results: ResultFile, on_result: Callable[[Record], None]) -> None:
        self._settings = settings
        self._results = results
        self._on_result = on_result
        self._errors_in_a_row = 0

    async def run(self, address: str, tasks: Iterable[Task], *, concurrency: int) -> None:
        """Runs the tasks, `concurrency` at a time.

        Raises:
            ServiceFault: one task after the other could not be carried out.
        """
        async with client.runs_stub(address) as stub:

            async def evaluate(task: Task) -> None:
                self._take(await self._one(stub, task), concurrency)

            await in_parallel(tasks, evaluate, at_once=concurrency)

    def _take(self, record: Record, concurrency: int) -> None:
        self._results.append(record)
        self._on_result(record)
        self._errors_in_a_row = 0 if record.final else self._errors_in_a_row + 1
        if self._errors_in_a_row >= _ERRORS_IN_A_ROW + concurrency:
            count = self._errors_in_a_row
            raise ServiceFault(f"{count} tasks in a row could not be carried out, the last one: {record.reason}")

    async def _one(self, stub: client.RunsStub, task: Task) -> Record:
        started = time.monotonic()
        fingerprint = self._settings.fingerprint(task)
        try:
            run = await runs.run_to_end(stub, self._settings.spec(task))
        except CliError as error:
            seconds = round(time.monotonic() - started, 3)
            return Record(id=task.id, fingerprint=fingerprint, outcome="ERROR", reason=str(error), seconds=seconds)
        return record_of(run, task_id=task.id, fingerprint=fingerprint, seconds=time.monotonic() - started)


def loop_settings(target: Target, options: runs_pb2.RunOptions, *, hide_tests: bool) -> LoopSettings:
    """Settings of an evaluation through this target; tokens stay out of its events, since nobody watches them."""
    target.apply(options)
    options.omit_tokens = True
    return LoopSettings(target.label, options, hide_tests, target.settings)


def as_files(files: dict[str, str]) -> list[sandbox_pb2.File]:
    """Texts as the contract's files; a lone surrogate, which no file can hold, becomes a question mark."""
    return [sandbox_pb2.File(path=path, content=text.encode("utf-8", "replace")) for path, text in files.items()]
