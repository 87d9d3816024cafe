"""What the sandbox service can fail to do, drawn as one tree. What a *program* does is never an error: it is a status.

SandboxError
├── InvalidJob            a field of the job is wrong: names the field and says what is allowed
├── QueueFull             no place to wait: says when to come back
├── DeadlineTooShort      the caller's deadline passed, or cannot be met any more
├── ReaderTooSlow         a streaming caller left more output unread, or for longer, than the service keeps it
├── ServiceDraining       the service is stopping
└── CellFailure           the cell could not do its part: not started, died, or spoke nonsense
    └── CellUnavailable   cells cannot be made at the moment; worth a retry
"""

from datetime import timedelta


class SandboxError(Exception):
    """Root of the tree."""


class InvalidJob(SandboxError):  # noqa: N818 - the domain's name reads better without "Error"
    """A field of the job is wrong.

    Attributes:
        violations: pairs of the field's path in the request and a sentence that states the limit.
    """

    def __init__(self, *violations: tuple[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {text}" for name, text in violations))
        self.violations = violations


class QueueFull(SandboxError):  # noqa: N818
    """All places in the queue are taken."""

    def __init__(self, message: str, retry_after: timedelta) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineTooShort(SandboxError):  # noqa: N818
    """The caller's deadline passed while the job waited, or cannot be met any more."""


class ReaderTooSlow(SandboxError):  # noqa: N818
    """The caller left more output unread, or for longer, than the service keeps it."""


class ServiceDraining(SandboxError):  # noqa: N818
    """The service is stopping and takes no new jobs."""

    retry_after = timedelta(seconds=1)


class CellFailure(SandboxError):  # noqa: N818
    """The cell could not do its part; the job's own behaviour is unknown."""


class CellUnavailable(CellFailure):
    """Cells cannot be made at the moment."""

    retry_after = timedelta(seconds=1)
