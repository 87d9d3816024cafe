"""What a model call can fail with, drawn as one tree. Texts are for the person who reads them and hold no secret.

ModelError                    root; `usage` is what had been spent when it was raised
├── ModelUnavailable          retries used up: no connection, 408, 409, 429, 5xx, or a stream that stalled
│   └── EmbeddedModelFailed   the embedded model could not be fetched, checked or started
├── ModelRejected             the endpoint refused the request; the same request would be refused again
├── ContextTooLong            the prompt does not fit the model's context window
├── MalformedReply            no reply fitted the schema that was asked for
└── UnknownRole               the gateway has no model for this role
"""

from orchestrator.models.messages import Usage


class ModelError(Exception):
    """Root of the tree.

    Attributes:
        usage: what the call had spent before it failed; zero when nothing was sent.
    """

    def __init__(self, message: str, *, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.usage = usage or Usage()


class ModelUnavailable(ModelError):  # noqa: N818 - the domain's name reads better without "Error"
    """The endpoint did not answer, or not to the end, however often it was tried."""


class EmbeddedModelFailed(ModelUnavailable):
    """The embedded model could not be fetched, checked or started."""


class ModelRejected(ModelError):  # noqa: N818
    """The endpoint refused the request, and would refuse it again.

    Attributes:
        status: HTTP status, such as 400 or 401; zero when the refusal came inside a stream.
    """

    def __init__(self, message: str, *, status: int, usage: Usage | None = None) -> None:
        super().__init__(message, usage=usage)
        self.status = status


class ContextTooLong(ModelError):  # noqa: N818
    """The prompt does not fit the context window, by the gateway's own estimate or by the endpoint's word."""


class MalformedReply(ModelError):  # noqa: N818
    """No reply fitted the schema, after every way of asking for it."""


class UnknownRole(ModelError):  # noqa: N818
    """The gateway has no model for this role."""
