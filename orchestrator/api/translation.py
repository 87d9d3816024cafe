"""Runs, results and events as the contract's messages. What a result holds by hash is read back here."""

from dataclasses import replace
from datetime import datetime

from codemend.orchestrator.v1 import runs_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp

from orchestrator.api import sandbox_messages
from orchestrator.api.sandbox_messages import duration, text
from orchestrator.models import Usage
from orchestrator.runs import Payload, Run, RunEvent, RunResult, RunState, StateChanged
from orchestrator.workflows import (
    Artifacts,
    Attempt,
    AttemptFinished,
    ExecutionFinished,
    ModelReplied,
    ModelTokens,
    NodeFinished,
    NodeStarted,
    Outcome,
    RouteDecision,
    Verdict,
    load,
    load_files,
)
from orchestrator.workflows.sandbox import Execution, TestReport

RESULT_OUTPUT_BYTES = 64 * 1024  # of each stream of a result's execution, so that the whole run fits 4 MiB

_STATE = {state: pb.RunState.Value(f"RUN_STATE_{state.value}") for state in RunState}
_OUTCOME = {outcome: pb.RunOutcome.Value(f"RUN_OUTCOME_{outcome.value}") for outcome in Outcome}


async def run_message(run: Run, artifacts: Artifacts) -> pb.Run:
    """The run as it stands. Raises ArtifactError where its result cannot be read back."""
    message = pb.Run(
        run_id=run.run_id,
        request_id=run.request_id,
        workflow=run.workflow,
        state=_STATE[run.state],
        create_time=_timestamp(run.create_time),
        labels=run.labels,
        last_sequence=run.log.last_sequence,
    )
    if run.start_time is not None:
        message.start_time.CopyFrom(_timestamp(run.start_time))
    if run.end_time is not None:
        message.end_time.CopyFrom(_timestamp(run.end_time))
    if run.result is not None:
        message.result.CopyFrom(await _result(run.result, artifacts))
    return message


async def _result(result: RunResult, artifacts: Artifacts) -> pb.RunResult:
    message = pb.RunResult(
        outcome=_OUTCOME[result.outcome],
        reason=text(result.reason),
        delivered_attempt=result.delivered_attempt,
        attempts=[_attempt(attempt) for attempt in result.attempts],
        usage=_usage(result.usage),
        node_time={name: duration(time) for name, time in result.node_time.items()},
    )
    if result.files_hash:
        message.files.extend(sandbox_messages.files(await load_files(artifacts, result.files_hash)))
    if result.report_hash:
        message.report.CopyFrom(sandbox_messages.report(await load(artifacts, TestReport, result.report_hash)))
    if result.execution_hash:
        execution = await load(artifacts, Execution, result.execution_hash)
        cut = replace(
            execution,
            stdout=execution.stdout.cut(RESULT_OUTPUT_BYTES),
            stderr=execution.stderr.cut(RESULT_OUTPUT_BYTES),
        )
        message.execution.CopyFrom(sandbox_messages.execution(cut))
    if result.diff_hash:
        message.diff = (await artifacts.get(result.diff_hash)).decode("utf-8", "replace")
    return message


def event_message(event: RunEvent) -> pb.RunEvent:
    """One event."""
    message = pb.RunEvent(sequence=event.sequence, time=_timestamp(event.time), run_id=event.run_id)
    _set_payload(message, event.payload)
    return message


def _set_payload(message: pb.RunEvent, payload: Payload) -> None:
    match payload:
        case StateChanged(state, reason, outcome):
            ended = _OUTCOME[outcome] if outcome is not None else pb.RUN_OUTCOME_UNSPECIFIED
            message.state_changed.CopyFrom(pb.StateChanged(state=_STATE[state], reason=text(reason), outcome=ended))
        case NodeStarted(node, attempt):
            message.node_started.CopyFrom(pb.NodeStarted(node=node, attempt=attempt))
        case NodeFinished(node, attempt, time, error):
            finished = pb.NodeFinished(node=node, attempt=attempt, duration=duration(time), error=text(error))
            message.node_finished.CopyFrom(finished)
        case ModelTokens(attempt, tokens):
            message.model_tokens.CopyFrom(pb.ModelTokens(attempt=attempt, text=text(tokens)))
        case ModelReplied():
            message.model_replied.CopyFrom(_replied(payload))
        case ExecutionFinished(attempt, execution, report):
            message.execution_finished.CopyFrom(
                pb.ExecutionFinished(
                    attempt=attempt,
                    execution=sandbox_messages.execution(execution),
                    report=sandbox_messages.report(report) if report is not None else None,
                )
            )
        case AttemptFinished(finished_attempt):
            message.attempt.CopyFrom(_attempt(finished_attempt))
        case RouteDecision(source, target, reason):
            message.route.CopyFrom(pb.RouteDecision(source=source, target=target, reason=text(reason)))


def _replied(value: ModelReplied) -> pb.ModelReplied:
    return pb.ModelReplied(
        attempt=value.attempt,
        model=text(value.model),
        finish_reason=text(value.finish_reason),
        usage=_usage(value.usage),
        duration=duration(value.duration),
        fault=text(value.fault),
    )


def _attempt(value: Attempt) -> pb.Attempt:
    message = pb.Attempt(
        number=value.number,
        strategy=value.strategy.value,
        code_hash=value.code_hash,
        tests_passed=value.tests_passed,
        tests_total=value.tests_total,
        summary=text(value.summary),
        duration=duration(value.duration),
        usage=_usage(value.usage),
        passed=value.verdict is Verdict.PASSED,
    )
    if value.report_outcome is not None:
        message.report_outcome = sandbox_messages.REPORT_OUTCOME[value.report_outcome]
    if value.execution_status is not None:
        message.execution_status = sandbox_messages.EXECUTION_STATUS[value.execution_status]
    return message


def _usage(value: Usage) -> pb.Usage:
    return pb.Usage(model_calls=value.model_calls, input_tokens=value.input_tokens, output_tokens=value.output_tokens)


def _timestamp(time: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(time)
    return message
