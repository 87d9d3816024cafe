"""What stands in the place of the world while a case is played: no model, no sandbox, artifacts in memory."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from orchestrator.errors import ArtifactMissing
from orchestrator.models import CallOptions, Message, ModelSpec, Reply
from orchestrator.runs.cases.body import RecordedModel
from orchestrator.workflows.sandbox import NO_CALLER, Caller, Execution, ProgramJob, TestJob, TestReport


class MemoryArtifacts:
    """Artifacts for as long as a case is played."""

    def __init__(self, known: Mapping[str, bytes]) -> None:
        self._contents = {hashlib.sha256(content).hexdigest(): content for content in known.values()}

    async def put(self, content: bytes) -> str:
        """Keeps the bytes and gives back their name."""
        name = hashlib.sha256(content).hexdigest()
        self._contents[name] = content
        return name

    async def get(self, name: str) -> bytes:
        """The bytes of that name. Raises ArtifactMissing."""
        if name not in self._contents:
            raise ArtifactMissing(f"the case does not hold the artifact {name[:80]!r}")
        return self._contents[name]


class NoModels:
    """Says how the recorded model was called, and is never called itself: the tape answers."""

    def __init__(self, recorded: RecordedModel) -> None:
        self._spec = ModelSpec(
            base_url="",
            model=recorded.name,
            temperature=recorded.temperature,
            max_output_tokens=recorded.max_output_tokens,
            context_tokens=recorded.context_tokens,
        )

    def spec(self, role: str) -> ModelSpec:  # noqa: ARG002 - it had one role alone
        """How the model was called."""
        return self._spec

    async def complete(
        self,
        role: str,
        messages: Sequence[Message],
        *,
        options: CallOptions = CallOptions(),  # noqa: ARG002, B008 - as the protocol has it; it is frozen
        on_delta: Callable[[str], None] | None = None,  # noqa: ARG002
    ) -> Reply:
        """Raises RuntimeError."""
        raise RuntimeError(f"a replay called the model as {role} with {len(messages)} messages")


class NoSandbox:
    """Never called: the tape answers."""

    async def run_program(self, job: ProgramJob, *, deadline: timedelta, caller: Caller = NO_CALLER) -> Execution:
        """Raises RuntimeError."""
        raise RuntimeError(f"a replay called the sandbox for {_shown(job, deadline, caller)}")

    async def run_tests(
        self, job: TestJob, *, deadline: timedelta, caller: Caller = NO_CALLER
    ) -> tuple[TestReport, Execution]:
        """Raises RuntimeError."""
        raise RuntimeError(f"a replay called the sandbox for {_shown(job, deadline, caller)}")


def _shown(job: ProgramJob | TestJob, deadline: timedelta, caller: Caller) -> str:
    return f"a {type(job).__name__} within {deadline}, for {caller}"
