"""The table that turns domain errors into gRPC statuses with google.rpc details, the most derived class first.

An error that the table does not know, and every rule whose code is INTERNAL, is a fault: its text stays in the log
under a random id, and the caller gets the id alone.
"""

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from codemend.rpc.details import bad_request, clip

logger = logging.getLogger(__name__)

MESSAGE_LIMIT = 500
"""Characters of a status message. It travels twice in the trailers, once with non-ASCII bytes as three bytes each."""


def no_details(_error: Exception) -> Iterable[Message]:
    """For errors that say all in their message."""
    return ()


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """What a class of errors becomes.

    Attributes:
        code: the status code.
        reason: UPPER_SNAKE name of the cause within the domain, at most 63 characters; callers may branch on it.
        details: makes further google.rpc details from the error, each type at most once; the table adds ErrorInfo.
    """

    code: grpc.StatusCode
    reason: str
    details: Callable[[Any], Iterable[Message]] = no_details


class MalformedRequestError(Exception):
    """The request is no message of its type; every table knows this error."""


class ReaderStalledError(Exception):
    """The caller took no message of its stream for too long; every table knows this error."""


MALFORMED = ErrorRule(
    grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST", lambda error: bad_request([("*", str(error))])
)
READER_STALLED = ErrorRule(grpc.StatusCode.RESOURCE_EXHAUSTED, "READER_STALLED")
FAULT = ErrorRule(grpc.StatusCode.INTERNAL, "INTERNAL")


class ErrorTable:
    """Domain errors and what they become on the wire."""

    def __init__(self, rules: Mapping[type[Exception], ErrorRule], domain: str = "codemend") -> None:
        self._rules: dict[type[Exception], ErrorRule] = {
            MalformedRequestError: MALFORMED,
            ReaderStalledError: READER_STALLED,
            **rules,
        }
        self._domain = domain

    def rule_for(self, error: BaseException) -> ErrorRule | None:
        """The rule of the error's class or of its nearest base class that has one."""
        return next((self._rules[kind] for kind in type(error).__mro__ if kind in self._rules), None)

    def status_for(self, error: BaseException) -> status_pb2.Status:
        """The status that a caller may see. A fault is logged here, with its traceback and the caller's id for it."""
        rule = self.rule_for(error) or FAULT
        if rule.code is not grpc.StatusCode.INTERNAL:
            return self._status(rule, clip(str(error), MESSAGE_LIMIT), rule.details(error), {})
        error_id = f"err_{secrets.token_hex(8)}"
        logger.error("fault in a call", exc_info=error, extra={"error_id": error_id})
        return self._status(rule, f"internal error {error_id}", (), {"error_id": error_id})

    async def abort(self, context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> NoReturn:
        """Ends the call with the error's status."""
        await context.abort_with_status(rpc_status.to_status(self.status_for(error)))

    def _status(
        self, rule: ErrorRule, message: str, details: Iterable[Message], metadata: Mapping[str, str]
    ) -> status_pb2.Status:
        info = error_details_pb2.ErrorInfo(reason=rule.reason, domain=self._domain, metadata=metadata)
        status = status_pb2.Status(code=rule.code.value[0], message=message)
        for detail in (info, *details):
            packed = AnyMessage()
            packed.Pack(detail)
            status.details.append(packed)
        return status
