"""Tasks that a scripted model solves in stages: each repair gets one further, and a given stage is right.

What the model replies is a function of the prompt alone, so a run ends the same however often it was broken off, and
what a run must have asked for is known beforehand.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from codemend.orchestrator.v1 import runs_pb2 as pb

from sandbox_service.domain import Failure, Job, JobOutcome, ReportOutcome, TestCase, TestOutcome, TestReport
from support.cells import succeeded
from support.openai_server import JsonObject, Scripted
from support.orchestrator import fence, spec

_TASK = re.compile(r"Task ([a-z]+[0-9]+), right at stage ([0-9]+)")
_STAGE = re.compile(r"# stage ([0-9]+)")

Call = tuple[str, int]
"""Name of a task, and the stage that was asked for."""


@dataclass(frozen=True)
class Staged:
    """One task.

    Attributes:
        name: letters, then a number.
        right_at: the stage whose code passes; 0: the first draft.
        candidates: first drafts side by side.
        stops: nodes that the run waits before.
    """

    name: str
    right_at: int = 0
    candidates: int = 1
    stops: tuple[str, ...] = ()

    @property
    def tests(self) -> Mapping[str, str]:
        """What decides."""
        number = int(re.sub(r"\D", "", self.name))
        call = f"assert add(1, {number}) == {number + 1}"
        return {"test_solution.py": f"from solution import add\n\ndef test_add():\n    {call}\n"}

    def spec(self, **options: Any) -> pb.RunSpec:
        """The run to make."""
        return spec(
            f"Task {self.name}, right at stage {self.right_at}: write add(a, b).",
            tests=self.tests,
            candidates=self.candidates,
            max_attempts=self.candidates + self.right_at,
            interrupt_before=self.stops,
            **options,
        )

    def calls(self) -> Counter[Call]:
        """What an undisturbed run asks the model for."""
        return Counter({(self.name, 0): self.candidates} | {(self.name, at): 1 for at in range(1, self.right_at + 1)})


def stage_of(prompt: str) -> Call:
    """Which task a prompt is of, and which stage its reply is."""
    task = _TASK.search(prompt)
    assert task is not None, f"a prompt without its task: {prompt[:200]!r}"
    stages = [int(number) for number in _STAGE.findall(prompt)]
    return task[1], max(stages) + 1 if stages else 0


def code(stage: int, right_at: int) -> str:
    """The code of a stage."""
    wrong = f"a - b - {stage}"
    return f"# stage {stage}\ndef add(a, b):\n    return {'a + b' if stage >= right_at else wrong}\n"


def reply(prompt: str) -> str:
    """What the model answers."""
    _, stage = stage_of(prompt)
    task = _TASK.search(prompt)
    assert task is not None
    return fence(code(stage, int(task[2])))


def prompt_of(body: JsonObject) -> str:
    """All messages of a request to a model, or of one on a tape."""
    return "\n\n".join(str(message.get("content") or message.get("text") or "") for message in body["messages"])


def staged_model(chunk_delay: Callable[[], float] = lambda: 0.0) -> Callable[[JsonObject], Scripted]:
    """A script for `scripted_openai`. `chunk_delay` gives the seconds before each piece of one reply."""

    def script(body: JsonObject) -> Scripted:
        return Scripted(text=reply(prompt_of(body)), chunk_delay=chunk_delay())

    return script


def judged(job: Job) -> JobOutcome:
    """What a sandbox finds out about the code of a stage, without running it."""
    source = next(file.content.decode() for file in job.files if file.path == "solution.py")
    name = "test_solution.py::test_add"
    if "a + b" in source:
        report = TestReport(
            ReportOutcome.PASSED, tests=(TestCase(name, TestOutcome.PASSED),), counts={TestOutcome.PASSED: 1}
        )
        return replace(succeeded(), report=report)
    failure = Failure("AssertionError", f"assert {source.splitlines()[-1].strip()!r} is wrong")
    case = TestCase(name, TestOutcome.FAILED, failure=failure)
    return replace(succeeded(), report=TestReport(ReportOutcome.FAILED, tests=(case,), counts={TestOutcome.FAILED: 1}))
