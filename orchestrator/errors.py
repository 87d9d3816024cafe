"""What the orchestrator can fail to do, drawn as one tree. How a *run* ends is no error but its outcome.

OrchestratorError
├── InvalidRun            a field of the request is wrong: names the field and says what is allowed
├── RunNotFound           no run has this id
├── RequestIdTaken        the request_id was used before with another request
├── QueueFull             too many runs wait: says when to come back
├── ServiceDraining       the service is stopping
├── ArtifactError         a stored piece of a run cannot be had
│   ├── ArtifactMissing   it is not there, or not what its name says
│   └── ArtifactTooLarge  it is over the size that one artifact may have
└── WorkflowError         a part that a workflow needs failed; it ends the run, not the call
    ├── TemplateError     a prompt file and its values do not fit together
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
