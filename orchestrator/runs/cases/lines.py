"""Cases as lines of JSON that anybody may have written: each is a case that a service like this one could have made.

What does not fit is refused here, by its field, and not met when the case is played.
"""

import re
from collections.abc import Callable, Mapping

import pydantic_core
from pydantic import BaseModel, TypeAdapter, ValidationError, field_validator

from orchestrator.errors import InvalidRun
from orchestrator.models import CallOptions, Message
from orchestrator.runs.cases.body import STRICT, CaseBody, RecordedAnswer, RecordedModel, first_fault
from orchestrator.runs.cases.limits import MAXIMUM_NAME, check_raw, uncollected, unreadable
from orchestrator.runs.tapediff import MADE_WITH
from orchestrator.workflows import WORKFLOWS, Codec, Effect, Outcome, Plain, canonical
from orchestrator.workflows.answers import ATTEMPT, LIMIT, MODEL, OWNER, SANDBOX
from orchestrator.workflows.plain import unkeepable

_CASE_ID = re.compile("case_[0-9a-f]{24}")
_CODECS: Mapping[Effect, tuple[Codec, ...]] = {
    Effect.MODEL: (MODEL,),
    Effect.SANDBOX: (SANDBOX,),
    Effect.LIMIT: (LIMIT,),
    Effect.RACE: (ATTEMPT, OWNER),
}
_ASKED: Mapping[str, Callable[[Plain], object]] = {
    "role": TypeAdapter(str).validate_python,
    "messages": TypeAdapter(tuple[Message, ...]).validate_python,
    "options": TypeAdapter(CallOptions).validate_python,
}
"""Reads what a model is asked with, as `asking` writes it."""


class CaseLine(BaseModel):
    """A line of exported cases."""

    model_config = STRICT

    name: str
    case: CaseBody

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if fault := wrong_name(name) or ("" if name else "must not be empty"):
            raise ValueError(fault)
        return name


def wrong_name(name: str) -> str:
    """What is wrong with a case's name, in a sentence; empty: nothing."""
    if len(name) > MAXIMUM_NAME:
        return f"must have at most {MAXIMUM_NAME} characters, not {len(name)}"
    if not name.isprintable() or name != name.strip():
        return "must hold no control characters, and no space at its ends"
    if _CASE_ID.fullmatch(name):
        return "must not look like the id of a case"
    return ""


def line_of(name: str, body: bytes) -> bytes:
    """The line of a case, with its end; canonical like the body."""
    return b'{"case":' + body + b',"name":' + canonical(name).encode() + b"}\n"


def read_line(raw: bytes, at: str) -> CaseLine:
    """A line of exported cases.

    Args:
        raw: the line.
        at: what it is called in an error, such as "line 3".

    Raises:
        InvalidRun: it is no case, is over a limit of cases, or is one that no service could have made.
    """
    if fault := check_raw(raw):
        raise InvalidRun((at, fault))
    with uncollected():
        return _read(raw, at)


def _read(raw: bytes, at: str) -> CaseLine:
    plain = _read_plain(raw, at)
    try:
        line = CaseLine.model_validate_json(raw)
    except ValidationError as error:
        raise InvalidRun(first_fault(error, at)) from error
    except InvalidRun as error:
        raise _placed(error, f"{at}.case") from error
    if fault := unkeepable(plain):
        raise InvalidRun((at, fault))
    _check_made(line.case, f"{at}.case")
    return line


def _read_plain(raw: bytes, at: str) -> Plain:
    """The line as JSON, where it is small enough that what is wrong with it can be told at no great cost."""
    try:
        plain = pydantic_core.from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRun((at, f"is no case: it is no JSON: {error}")) from error
    if not isinstance(plain, dict):
        raise InvalidRun((at, "is no case: it must be an object"))
    if unknown := sorted(plain.keys() - {"case", "name"}):
        raise InvalidRun((f"{at}.{unknown[0][:80]}", "is no field of a case's line"))
    if faults := unreadable(plain.get("case")):
        raise _placed(InvalidRun(*faults), f"{at}.case")
    return plain


def _placed(error: InvalidRun, at: str) -> InvalidRun:
    return InvalidRun(*((f"{at}.{field}" if field else at, text) for field, text in error.violations))


def _check_made(case: CaseBody, at: str) -> None:
    """Refuses what no run can have left. Raises InvalidRun."""
    if case.expectation.outcome is Outcome.CANCELLED:
        raise InvalidRun((f"{at}.expectation.outcome", "CANCELLED is no outcome that a run comes to by itself"))
    workflow = WORKFLOWS.get(case.spec.workflow)
    if workflow is not None and not 1 <= case.graph_version <= workflow.version:
        known = f"must be from 1 to {workflow.version}, the versions of {workflow.name!r}, not {case.graph_version}"
        raise InvalidRun((f"{at}.graph_version", known))
    for index, answer in enumerate(case.tape):
        _check_request(answer, f"{at}.tape.{index}.request")
        _check_response(answer, f"{at}.tape.{index}.response")


def _check_request(answer: RecordedAnswer, at: str) -> None:
    request = answer.request
    if answer.kind in {Effect.LIMIT, Effect.RACE}:
        if request is not None:
            raise InvalidRun((at, f"must be null: a {answer.kind} is asked for with nothing"))
        return
    if not isinstance(request, dict):
        raise InvalidRun((at, "must be an object"))
    if answer.kind is not Effect.MODEL:
        return
    for name, read in _ASKED.items():
        if name not in request:
            raise InvalidRun((f"{at}.{name}", "is required where a model is asked"))
        _check_fits(read, request[name], f"{at}.{name}")
    if made_with := request.get(MADE_WITH):
        _check_fits(RecordedModel.model_validate, made_with, f"{at}.{MADE_WITH}")


def _check_fits(read: Callable[[Plain], object], value: Plain, at: str) -> None:
    try:
        read(value)
    except ValidationError as error:
        raise InvalidRun(first_fault(error, at)) from error


def _check_response(answer: RecordedAnswer, at: str) -> None:
    """An answer or an error, alone, that a tape would give again."""
    response = answer.response
    if response.keys() not in ({"answer"}, {"error"}):
        raise InvalidRun((at, 'must have "answer" or "error", and nothing more'))
    (name, given), *_ = response.items()
    codecs = [codec for codec in _CODECS[answer.kind] if name == "answer" or codec.errors]
    if not any(_can_be_read(codec, name, given) for codec in codecs):
        raise InvalidRun((f"{at}.{name}", f"is none that is given for a {answer.kind}"))


def _can_be_read(codec: Codec, name: str, given: Plain) -> bool:
    try:
        (codec.load if name == "answer" else codec.load_error)(given)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
        return False
    return True
