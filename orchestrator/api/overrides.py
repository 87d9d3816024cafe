"""Options of a run laid over those of another: what a message leaves unset stays as it is."""

from dataclasses import fields, replace

from codemend.orchestrator.v1 import runs_pb2 as pb

from orchestrator.api.checks import Checker
from orchestrator.api.validation import Defaults, read_options
from orchestrator.models import CallOptions
from orchestrator.workflows import RunOptions
from orchestrator.workflows.sandbox import Limits


def laid_over(base: RunOptions, at: str, message: pb.RunOptions, check: Checker) -> RunOptions:
    """The base with what the message sets; what of that does not fit the base's is wrong with it, too.

    Args:
        base: options of the run that the new one comes from.
        at: where the message is in its request.
        message: what is to differ.
        check: takes what is wrong with it.
    """
    new = read_options(at, message, Defaults(base.max_attempts, base.timeout), check)
    models = dict(base.models)
    for role, options in new.models.items():
        models[role] = _model(models.get(role, CallOptions()), options)
    attempts, candidates = message.max_attempts or base.max_attempts, message.candidates or base.candidates
    if 0 < attempts < candidates and not message.max_attempts:  # `read_options` has seen those of one message
        check.add(f"{at}.candidates", f"must be at most max_attempts ({attempts}), not {candidates}")
    elif 0 < attempts < candidates and not message.candidates:
        check.add(f"{at}.max_attempts", f"must be at least candidates ({candidates}), not {attempts}")
    return replace(
        base,
        max_attempts=attempts,
        candidates=candidates,
        token_budget=new.token_budget or base.token_budget,
        timeout=new.timeout,
        models=models,
        environment=new.environment or base.environment,
        limits=_limits(base.limits, new.limits),
        omit_tokens=new.omit_tokens or base.omit_tokens,
        interrupt_before=new.interrupt_before or base.interrupt_before,
        interrupt_after=new.interrupt_after or base.interrupt_after,
        prompts={**base.prompts, **new.prompts},
        priority=new.priority or base.priority,
    )


def _model(base: CallOptions, new: CallOptions) -> CallOptions:
    return CallOptions(
        model=new.model or base.model,
        temperature=base.temperature if new.temperature is None else new.temperature,
        max_output_tokens=new.max_output_tokens or base.max_output_tokens,
    )


def _limits(base: Limits, new: Limits) -> Limits:
    given = {field.name: getattr(new, field.name) for field in fields(Limits) if getattr(new, field.name) is not None}
    return replace(base, **given)
