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
    errors.WrongState: ErrorRule(grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE"),
    errors.GraphChanged: ErrorRule(grpc.StatusCode.FAILED_PRECONDITION, "GRAPH_CHANGED"),
    errors.StaleCheckpoint: ErrorRule(grpc.StatusCode.ABORTED, "STALE_CHECKPOINT"),
    errors.CaseNotFound: ErrorRule(
        grpc.StatusCode.NOT_FOUND, "CASE_NOT_FOUND", lambda error: resource_info("case", error.case_id)
    ),
    errors.CaseNameTaken: ErrorRule(grpc.StatusCode.ALREADY_EXISTS, "CASE_NAME_TAKEN"),
    errors.StoreUnavailable: ErrorRule(
        grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE", lambda error: retry_info(error.retry_after)
    ),
    errors.StoreError: ErrorRule(grpc.StatusCode.INTERNAL, "STORE_FAILED"),
    errors.ArtifactError: ErrorRule(grpc.StatusCode.INTERNAL, "ARTIFACT_LOST"),
    errors.WorkflowError: ErrorRule(grpc.StatusCode.INTERNAL, "WORKFLOW_FAILED"),
}

ERRORS = ErrorTable(RULES)
