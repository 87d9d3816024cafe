"""What the sandbox service can fail to do, drawn as one tree. What a *program* does is never an error: it is a status.

SandboxError
├── InvalidJob            a field of the job is wrong: names the field and says what is allowed
├── QueueFull             no place to wait: says when to come back
│   └── TenantQueueFull   none for this tenant, whose part of the service is used up
├── KeyReused             the idempotency key was used for another request
├── SessionNotFound       no such session for this tenant: never made, deleted or past its time
├── SessionBusy           another call works in the session
├── TooManySessions       the server's or the tenant's number of sessions is reached
├── SessionStorageFull    the files of all sessions together take what the server gives them
├── TooManyStreams        the server's or the tenant's number of streaming calls is reached
├── UploadStalled         an uploading caller sent nothing for too long, or left
├── DeadlineTooShort      the caller's deadline passed, or cannot be met any more
├── ReaderTooSlow         a streaming caller left more output unread than the service keeps
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


class TenantQueueFull(QueueFull):
    """The tenant's part of the service is used up; other tenants may still have places.

    Attributes:
        tenant: its name; may be empty.
        limit: what is reached, such as "64 waiting".
    """

    def __init__(self, tenant: str, limit: str, retry_after: timedelta) -> None:
        super().__init__(f"the limit of the tenant {tenant!r} is reached: {limit}", retry_after)
        self.tenant = tenant
        self.limit = limit


class KeyReused(SandboxError):  # noqa: N818
    """The idempotency key was used before, by the same tenant, for another request."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the idempotency key {key!r} was used for another request")


class SessionNotFound(SandboxError):  # noqa: N818
    """There is no such session for this tenant, or it ended while the call worked in it."""

    def __init__(self, session: str) -> None:
        super().__init__(f"no session {session!r}: never made, deleted, or past its time")
        self.session = session


class SessionBusy(SandboxError):  # noqa: N818
    """Another call works in the session."""


class TooManySessions(SandboxError):  # noqa: N818
    """The number of sessions, of the server or of the tenant, is reached; others end with time."""

    def __init__(self, message: str, retry_after: timedelta) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SessionStorageFull(SandboxError):  # noqa: N818
    """The files of all sessions together take what the server gives them."""

    retry_after = timedelta(seconds=10)


class TooManyStreams(SandboxError):  # noqa: N818
    """The number of streaming calls, of the server or of the tenant, is reached; others end as they are read."""

    retry_after = timedelta(seconds=1)


class UploadStalled(SandboxError):  # noqa: N818
    """The caller sent nothing of its upload for longer than the service waits, or has left."""


class DeadlineTooShort(SandboxError):  # noqa: N818
    """The caller's deadline passed while the job waited, or cannot be met any more."""


class ReaderTooSlow(SandboxError):  # noqa: N818
    """The caller left more output unread than the service keeps."""


class ServiceDraining(SandboxError):  # noqa: N818
    """The service is stopping and takes no new jobs."""

    retry_after = timedelta(seconds=1)


class CellFailure(SandboxError):  # noqa: N818
    """The cell could not do its part; the job's own behaviour is unknown."""


class CellUnavailable(CellFailure):
    """Cells cannot be made at the moment."""

    retry_after = timedelta(seconds=1)
