"""Cases and how they ended as the contract's messages, and a kept request as the message that would make it."""

from collections.abc import Mapping

from codemend.orchestrator.v1 import regression_pb2 as pb
from codemend.orchestrator.v1 import runs_pb2

from orchestrator.api.debug_messages import divergence_message
from orchestrator.api.sandbox_messages import duration, text
from orchestrator.api.sandbox_messages import files as file_messages
from orchestrator.api.translation import timestamp
from orchestrator.models import CallOptions
from orchestrator.runs.cases import CaseResult, Expectation
from orchestrator.runs.store import CaseRow
from orchestrator.sandbox_client import limits_message
from orchestrator.workflows import Outcome, RunOptions, RunSpec

_OUTCOME = {outcome: runs_pb2.RunOutcome.Value(f"RUN_OUTCOME_{outcome.value}") for outcome in Outcome}
OUTCOMES: Mapping[int, Outcome] = {number: outcome for outcome, number in _OUTCOME.items()}


def case_message(row: CaseRow) -> pb.Case:
    """A case in short."""
    expected = Expectation.model_validate_json(row.expectation)
    return pb.Case(
        case_id=row.case_id,
        name=text(row.name),
        run_id=row.run_id,
        create_time=timestamp(row.create_time),
        workflow=text(row.workflow),
        graph_version=row.graph_version,
        expectation=pb.Expectation(
            outcome=_OUTCOME[expected.outcome],
            path=[text(node) for node in expected.path],
            files_hash=expected.files_hash,
        ),
        tape_entries=row.tape_entries,
    )


def result_message(result: CaseResult) -> pb.CaseResult:
    """How a case ended."""
    return pb.CaseResult(
        case=case_message(result.case),
        passed=result.passed,
        outcome=_OUTCOME[result.outcome] if result.outcome is not None else runs_pb2.RUN_OUTCOME_UNSPECIFIED,
        reason=text(result.reason),
        divergence=divergence_message(result.divergence),
        duration=duration(result.duration),
        run_id=result.run_id,
    )


def spec_message(spec: RunSpec) -> runs_pb2.RunSpec:
    """The request that makes this specification. Raises ValueError or OverflowError where no message can hold it."""
    task = spec.task
    return runs_pb2.RunSpec(
        workflow=spec.workflow,
        codegen=runs_pb2.CodegenInput(
            task=task.task,
            files=file_messages(task.files),
            entry_point=task.entry_point,
            tests=file_messages(task.tests),
            check_script=task.check_script,
            hide_tests=task.hide_tests,
            solution_path=task.solution_path,
        ),
        options=_options_message(spec.options),
        labels=spec.labels,
    )


def _options_message(options: RunOptions) -> runs_pb2.RunOptions:
    return runs_pb2.RunOptions(
        max_attempts=options.max_attempts,
        candidates=options.candidates,
        token_budget=options.token_budget,
        timeout=duration(options.timeout),
        models={role: _model_message(model) for role, model in options.models.items()},
        environment=options.environment,
        limits=limits_message(options.limits),
        omit_tokens=options.omit_tokens,
        interrupt_before=options.interrupt_before,
        interrupt_after=options.interrupt_after,
        prompts=options.prompts,
        priority=options.priority,
    )


def _model_message(model: CallOptions) -> runs_pb2.ModelOptions:
    message = runs_pb2.ModelOptions(model=model.model, max_output_tokens=model.max_output_tokens)
    if model.temperature is not None:
        message.temperature = model.temperature
    return message
