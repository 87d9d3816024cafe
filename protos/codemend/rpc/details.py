"""Builders and a reader of google.rpc details, the machine-readable part of an error.

Details travel in the trailers, of which a peer may refuse more than 8 KiB, so every builder here keeps to a share.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

VIOLATIONS_LIMIT_BYTES = 3 * 1024
TEXT_LIMIT = 300

Detail = TypeVar("Detail", bound=Message)


def bad_request(violations: Iterable[tuple[str, str]]) -> list[Message]:
    """BadRequest with one entry for each pair of field path and sentence; what does not fit is counted in the last."""
    detail = error_details_pb2.BadRequest()
    left_out = 0
    for field, text in violations:
        entry = error_details_pb2.BadRequest.FieldViolation(field=clip(field), description=clip(text))
        if left_out or detail.ByteSize() + entry.ByteSize() > VIOLATIONS_LIMIT_BYTES:
            left_out += 1
        else:
            detail.field_violations.append(entry)
    if left_out:
        detail.field_violations.add(field="*", description=f"and {left_out} more")
    return [detail]


def retry_info(delay: timedelta) -> list[Message]:
    """RetryInfo: the caller may try again after this time."""
    duration = Duration()
    duration.FromTimedelta(delay)
    return [error_details_pb2.RetryInfo(retry_delay=duration)]


def quota_failure(subject: str, description: str) -> list[Message]:
    """QuotaFailure: whose limit is reached, such as "tenant:acme", and which."""
    violation = error_details_pb2.QuotaFailure.Violation(subject=clip(subject), description=clip(description))
    return [error_details_pb2.QuotaFailure(violations=[violation])]


def resource_info(kind: str, name: str) -> list[Message]:
    """ResourceInfo: which resource of which kind it is about."""
    return [error_details_pb2.ResourceInfo(resource_type=kind, resource_name=clip(name))]


def error_detail(error: grpc.aio.AioRpcError, kind: type[Detail]) -> Detail | None:
    """The detail of this type that came with an error; None where there is none or it cannot be read."""
    try:
        status = rpc_status.from_call(error)
        packed = next((detail for detail in status.details if detail.Is(kind.DESCRIPTOR)), None) if status else None
        detail = kind()
        return detail if packed is not None and packed.Unpack(detail) else None
    except (ValueError, DecodeError):  # trailers that contradict themselves, or are no message: another server's
        return None


def clip(text: str, limit: int = TEXT_LIMIT) -> str:
    """The text as a proto string takes it: without lone surrogates and at most `limit` characters long."""
    clean = text.encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
