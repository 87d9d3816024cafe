"""The table of errors for callers: by it the interceptor of `codemend.rpc` makes statuses of what leaves a handler."""

import grpc
from codemend.rpc import ErrorRule, ErrorTable, bad_request, quota_failure, resource_info, retry_info

from sandbox_service import errors

ERRORS = ErrorTable(
    {
        errors.InvalidJob: ErrorRule(
            grpc.StatusCode.INVALID_ARGUMENT, "INVALID_JOB", lambda error: bad_request(error.violations)
        ),
        errors.QueueFull: ErrorRule(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", lambda error: retry_info(error.retry_after)
        ),
        errors.TenantQueueFull: ErrorRule(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "TENANT_LIMIT",
            lambda error: [*retry_info(error.retry_after), *quota_failure(f"tenant:{error.tenant}", error.limit)],
        ),
        errors.KeyReused: ErrorRule(grpc.StatusCode.ALREADY_EXISTS, "IDEMPOTENCY_KEY_REUSED"),
        errors.SessionNotFound: ErrorRule(
            grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND", lambda error: resource_info("session", error.session)
        ),
        errors.SessionBusy: ErrorRule(grpc.StatusCode.ABORTED, "SESSION_BUSY"),
        errors.TooManySessions: ErrorRule(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_SESSIONS", lambda error: retry_info(error.retry_after)
        ),
        errors.SessionStorageFull: ErrorRule(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "SESSION_STORAGE_FULL", lambda error: retry_info(error.retry_after)
        ),
        errors.TooManyStreams: ErrorRule(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_STREAMS", lambda error: retry_info(error.retry_after)
        ),
        errors.UploadStalled: ErrorRule(grpc.StatusCode.DEADLINE_EXCEEDED, "UPLOAD_STALLED"),
        errors.DeadlineTooShort: ErrorRule(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_TOO_SHORT"),
        errors.ServiceDraining: ErrorRule(
            grpc.StatusCode.UNAVAILABLE, "SERVICE_DRAINING", lambda error: retry_info(error.retry_after)
        ),
        errors.CellFailure: ErrorRule(grpc.StatusCode.INTERNAL, "CELL_FAILURE"),
        errors.CellUnavailable: ErrorRule(
            grpc.StatusCode.UNAVAILABLE, "CELL_UNAVAILABLE", lambda error: retry_info(error.retry_after)
        ),
        errors.ReaderTooSlow: ErrorRule(grpc.StatusCode.RESOURCE_EXHAUSTED, "READER_TOO_SLOW"),
    }
)
