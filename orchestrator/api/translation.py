"""Runs, results and events as the contract's messages. What a result holds by hash is read back here.

What is stored is always told: a number that a field cannot hold as the nearest that it can, and an artifact that is
missing as a sentence of the result's reason.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta

from codemend.orchestrator.v1 import runs_pb2 as pb
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from orchestrator.api import sandbox_messages
from orchestrator.api.sandbox_messages import text
from orchestrator.errors import ArtifactMissing
from orchestrator.models import Usage
from orchestrator.runs import Payload, RunEvent, RunRecord, RunResult, RunState, StateChanged, StateEdited, Wait
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

_INT32, _INT64 = 2**31 - 1, 2**63 - 1
_LONGEST = timedelta(seconds=315_576_000_000)  # of a Duration, as its own definition has it

_STATE = {state: pb.RunState.Value(f"RUN_STATE_{state.value}") for state in RunState}
_OUTCOME = {outcome: pb.RunOutcome.Value(f"RUN_OUTCOME_{outcome.value}") for outcome in Outcome}


async def run_message(run: RunRecord, artifacts: Artifacts, *, whole: bool = True) -> pb.Run:
    """The run as it stands; unless `whole`, its result without what is large.

    Raises:
        ArtifactError: the store cannot say whether it has what the result names.
    """
    message = pb.Run(
        run_id=run.run_id,
        request_id=run.request_id,
        workflow=run.workflow,
        state=_STATE[run.state],
        create_time=timestamp(run.create_time),
        labels=run.labels,
        last_sequence=run.last_sequence,
        graph_version=run.graph_version,
        recoveries=run.recoveries,
        cancel_reason=text(run.cancel_reason or ""),
    )
    if run.start_time is not None:
        message.start_time.CopyFrom(timestamp(run.start_time))
    if run.end_time is not None:
        message.end_time.CopyFrom(timestamp(run.end_time))
    if run.wait is not None:
        message.wait.CopyFrom(_wait(run.wait))
    if run.origin is not None:
        origin = run.origin
        kind = pb.OriginKind.Value(f"ORIGIN_KIND_{origin.kind.value}")
        message.origin.CopyFrom(pb.Origin(kind=kind, run_id=origin.run_id, checkpoint_id=origin.checkpoint_id))
    if run.result is not None:
        message.result.CopyFrom(_thin_result(run.result))
        if whole:
            await _add_large(message.result, run.result, artifacts)
    return message


def _wait(wait: Wait) -> pb.Wait:
    interrupts = [
        pb.Interrupt(interrupt_id=one.interrupt_id, node=one.node, value_json=text(one.value_json))
        for one in wait.interrupts
    ]
    return pb.Wait(checkpoint_id=wait.checkpoint_id, next=wait.next, reason=wait.reason, interrupts=interrupts)


def _thin_result(result: RunResult) -> pb.RunResult:
    return pb.RunResult(
        outcome=_OUTCOME[result.outcome],
        reason=text(result.reason),
        delivered_attempt=_int32(result.delivered_attempt),
        attempts=[attempt_message(attempt) for attempt in result.attempts],
        usage=_usage(result.usage),
        node_time={name: duration(time) for name, time in result.node_time.items()},
    )


async def _add_large(message: pb.RunResult, result: RunResult, artifacts: Artifacts) -> None:
    """Adds what the result holds by hash. What is missing is left out, and the reason says so."""

    async def files() -> None:
        message.files.extend(sandbox_messages.files(await load_files(artifacts, result.files_hash)))

    async def report() -> None:
        message.report.CopyFrom(sandbox_messages.report(await load(artifacts, TestReport, result.report_hash)))

    async def execution() -> None:
        whole = await load(artifacts, Execution, result.execution_hash)
        cut = replace(whole, stdout=whole.stdout.cut(RESULT_OUTPUT_BYTES), stderr=whole.stderr.cut(RESULT_OUTPUT_BYTES))
        message.execution.CopyFrom(sandbox_messages.execution(cut))

    async def diff() -> None:
        message.diff = (await artifacts.get(result.diff_hash)).decode("utf-8", "replace")

    parts: list[tuple[str, str, Callable[[], Awaitable[None]]]] = [
        ("files", result.files_hash, files),
        ("report", result.report_hash, report),
        ("execution", result.execution_hash, execution),
        ("diff", result.diff_hash, diff),
    ]
    missing = []
    for name, kept_as, add in parts:
        try:
            if kept_as:
                await add()
        except ArtifactMissing:
            missing.append(name)
    if missing:
        message.reason += f" (left out, since the artifact store does not have it: {', '.join(missing)})"


def event_message(event: RunEvent) -> pb.RunEvent:
    """One event."""
    message = pb.RunEvent(sequence=event.sequence, time=timestamp(event.time), run_id=event.run_id)
    _set_payload(message, event.payload)
    return message


def _set_payload(message: pb.RunEvent, payload: Payload) -> None:  # noqa: C901 - one line a kind
    match payload:
        case StateChanged():
            message.state_changed.CopyFrom(_state_changed(payload))
        case NodeStarted(node, attempt, step_id):
            message.node_started.CopyFrom(pb.NodeStarted(node=node, attempt=_int32(attempt), step_id=step_id))
        case NodeFinished():
            message.node_finished.CopyFrom(_finished(payload))
        case Wait():
            message.wait.CopyFrom(_wait(payload))
        case StateEdited(parent, checkpoint, as_node, fields):
            edited = pb.StateEdited(
                parent_checkpoint_id=parent, checkpoint_id=checkpoint, as_node=as_node, fields=fields
            )
            message.state_edited.CopyFrom(edited)
        case ModelTokens(attempt, tokens):
            message.model_tokens.CopyFrom(pb.ModelTokens(attempt=_int32(attempt), text=text(tokens)))
        case ModelReplied():
            message.model_replied.CopyFrom(_replied(payload))
        case ExecutionFinished(attempt, execution, report):
            message.execution_finished.CopyFrom(
                pb.ExecutionFinished(
                    attempt=_int32(attempt),
                    execution=sandbox_messages.execution(execution),
                    report=sandbox_messages.report(report) if report is not None else None,
                )
            )
        case AttemptFinished(finished_attempt):
            message.attempt.CopyFrom(attempt_message(finished_attempt))
        case RouteDecision(source, target, reason):
            message.route.CopyFrom(pb.RouteDecision(source=source, target=target, reason=text(reason)))


def _state_changed(value: StateChanged) -> pb.StateChanged:
    ended = _OUTCOME[value.outcome] if value.outcome is not None else pb.RUN_OUTCOME_UNSPECIFIED
    return pb.StateChanged(state=_STATE[value.state], reason=text(value.reason), outcome=ended)


def _finished(value: NodeFinished) -> pb.NodeFinished:
    return pb.NodeFinished(
        node=value.node,
        attempt=_int32(value.attempt),
        duration=duration(value.duration),
        error=text(value.error),
        step_id=value.step_id,
        input_bytes=value.input_bytes,
        output_previews={name: text(preview) for name, preview in value.output_previews.items()},
        usage=_usage(value.usage),
    )


def _replied(value: ModelReplied) -> pb.ModelReplied:
    return pb.ModelReplied(
        attempt=_int32(value.attempt),
        model=text(value.model),
        finish_reason=text(value.finish_reason),
        usage=_usage(value.usage),
        duration=duration(value.duration),
        fault=text(value.fault),
    )


def attempt_message(value: Attempt) -> pb.Attempt:
    """An attempt in short."""
    message = pb.Attempt(
        number=_int32(value.number),
        strategy=value.strategy.value,
        code_hash=value.code_hash,
        tests_passed=_int32(value.tests_passed),
        tests_total=_int32(value.tests_total),
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
    return pb.Usage(
        model_calls=_int32(value.model_calls),
        input_tokens=_within(value.input_tokens, _INT64),
        output_tokens=_within(value.output_tokens, _INT64),
    )


def _int32(value: int) -> int:
    """The number, or the nearest to it that an int32 holds."""
    return _within(value, _INT32)


def _within(value: int, most: int) -> int:
    return max(-most - 1, min(value, most))


def duration(time: timedelta) -> Duration:
    """The time, or the nearest to it that a Duration holds."""
    return sandbox_messages.duration(max(-_LONGEST, min(time, _LONGEST)))


def timestamp(time: datetime) -> Timestamp:
    """A moment."""
    message = Timestamp()
    message.FromDatetime(time)
    return message
