"""What the orchestrator can fail to do, drawn as one tree. How a *run* ends is no error but its outcome.

OrchestratorError
├── InvalidRun            a field of the request is wrong: names the field and says what is allowed
├── RunNotFound           no run has this id
├── RequestIdTaken        the request_id was used before with another request
├── QueueFull             too many runs wait: says when to come back
├── ServiceDraining       the service is stopping
├── WrongState            the run is not in a state that allows the call
│   └── GraphChanged      the run was made by another version of the graph
├── StaleCheckpoint       the run stands at another checkpoint than the caller expects
├── CaseNotFound          no case has this id or name
├── CaseNameTaken         the name is that of another case
├── StoreError            the database refused something: a fault
│   ├── StoreUnavailable  it does not answer: worth a retry
│   └── Fenced            another replica has taken the run over: whoever hears this must let go of it
├── ArtifactError         a stored piece of a run cannot be had
│   ├── ArtifactMissing   it is not there, or not what its name says
│   └── ArtifactTooLarge  it is over the size that one artifact may have
└── WorkflowError         a part that a workflow needs failed; it ends the run, not the call
    ├── Diverged          a replay asks for something else than its original did
    ├── TemplateError     a prompt file and its values do not fit together
    ├── OutOfTime         the run's time was used up while it waited for an answer
    └── SandboxError      the sandbox did not carry a job out
        ├── SandboxBusy         its queue is full, or the job waited too long: worth a retry
        ├── SandboxUnavailable  it cannot be reached, or has no cells: worth a retry
        └── SandboxRejected     it refused the job, or failed at it; the same job would fail again
"""

from datetime import timedelta


class OrchestratorError(Exception):
    """Root of the tree."""


class InvalidRun(OrchestratorError):  # noqa: N818 - the domain's name reads better without "Error"
    """Fields of the request are wrong.

    Attributes:
        violations: pairs of the field's path in the request and a sentence that states the limit.
    """

    def __init__(self, *violations: tuple[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {text}" for name, text in violations))
        self.violations = violations


class RunNotFound(OrchestratorError):  # noqa: N818
    """No run has this id, or it was forgotten by now."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"no run has the id {run_id!r}")
        self.run_id = run_id


class RequestIdTaken(OrchestratorError):  # noqa: N818
    """The request_id was used before with another request."""


class QueueFull(OrchestratorError):  # noqa: N818
    """All places in the queue are taken."""

    def __init__(self, message: str, retry_after: timedelta) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServiceDraining(OrchestratorError):  # noqa: N818
    """The service is stopping and takes no new runs."""

    retry_after = timedelta(seconds=1)


class WrongState(OrchestratorError):  # noqa: N818
    """The run is not in a state that allows the call; the message says which state it is in and which would do."""


class GraphChanged(WrongState):
    """The run was made by another version of its workflow's graph than this service has; the message names both."""


class StaleCheckpoint(OrchestratorError):  # noqa: N818
    """The run stands at another checkpoint than the caller expects.

    Attributes:
        expected: the checkpoint that the caller named.
        found: the one that the run stands at.
    """

    def __init__(self, run_id: str, expected: str, found: str) -> None:
        super().__init__(f"{run_id} stands at checkpoint {found!r}, not at {expected!r}")
        self.expected = expected
        self.found = found


class CaseNotFound(OrchestratorError):  # noqa: N818
    """No case of the tenant has this id or name."""

    def __init__(self, case_id: str) -> None:
        super().__init__(f"no case has the id or name {case_id!r}")
        self.case_id = case_id


class CaseNameTaken(OrchestratorError):  # noqa: N818
    """Another case of the tenant has this name."""


class StoreError(OrchestratorError):
    """The database refused something that it should have taken."""


class StoreUnavailable(StoreError):  # noqa: N818
    """The database does not answer, or is locked for too long."""

    retry_after = timedelta(seconds=1)


class Fenced(StoreError):  # noqa: N818
    """Another replica has taken the run over, or it has ended: what this one still wants to write is refused."""


class ArtifactError(OrchestratorError):
    """A stored piece of a run cannot be had."""


class ArtifactMissing(ArtifactError):  # noqa: N818
    """No artifact has this name, or its content is not what the name says."""


class ArtifactTooLarge(ArtifactError):  # noqa: N818
    """The content is over the size that one artifact may have."""


class WorkflowError(OrchestratorError):
    """A part that a workflow needs failed."""


class TemplateError(WorkflowError):
    """A prompt file and its values do not fit together."""


class OutOfTime(WorkflowError):  # noqa: N818
    """The run's time was used up while it waited for an answer."""


class Diverged(WorkflowError):  # noqa: N818
    """A replay asks for something else than its original did.

    Attributes:
        kind: "prompt", "parameters", "sandbox job", or "tape", where the original got no such answer.
        name: of the answer, as "generate/1/model".
        detail: a unified diff or a sentence.
    """

    def __init__(self, kind: str, name: str, detail: str) -> None:
        super().__init__(f"{name}: the {kind} differs from the original's: {detail}")
        self.kind = kind
        self.name = name
        self.detail = detail


class SandboxError(WorkflowError):
    """The sandbox did not carry a job out; what the job would have done is unknown."""


class SandboxBusy(SandboxError):  # noqa: N818
    """The sandbox has no place for the job at the moment.

    Attributes:
        retry_after: when the sandbox asks to be tried again; None where it does not say.
    """

    def __init__(self, message: str, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SandboxUnavailable(SandboxError):  # noqa: N818
    """The sandbox cannot be reached, or cannot make cells.

    Attributes:
        retry_after: when the sandbox asks to be tried again; None where it does not say.
    """

    def __init__(self, message: str, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SandboxRejected(SandboxError):  # noqa: N818
    """The sandbox refused the job, or failed at it by a fault of its own."""
