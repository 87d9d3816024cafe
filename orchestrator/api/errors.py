"""What each domain error becomes on the wire. Errors without a rule are faults, whose text stays in the log."""

import grpc
from codemend.rpc import ErrorRule, ErrorTable, bad_request, resource_info, retry_info

from orchestrator import errors

RULES: dict[type[Exception], ErrorRule] = {
    errors.InvalidRun: ErrorRule(
        grpc.StatusCode.INVALID_ARGUMENT, "INVALID_RUN", lambda error: bad_request(error.violations)
    ),
    errors.RunNotFound: ErrorRule(
        grpc.StatusCode.NOT_FOUND, "RUN_NOT_FOUND", lambda error: resource_info("run", error.run_id)
    ),
    errors.RequestIdTaken: ErrorRule(grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_TAKEN"),
    errors.QueueFull: ErrorRule(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", lambda error: retry_info(error.retry_after)
    ),
    errors.ServiceDraining: ErrorRule(
        grpc.StatusCode.UNAVAILABLE, "SERVICE_DRAINING", lambda error: retry_info(error.retry_after)
    ),
    errors.ArtifactError: ErrorRule(grpc.StatusCode.INTERNAL, "ARTIFACT_LOST"),
    errors.WorkflowError: ErrorRule(grpc.StatusCode.INTERNAL, "WORKFLOW_FAILED"),
}

ERRORS = ErrorTable(RULES)
