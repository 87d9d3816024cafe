"""A case as it is kept and handed on: one JSON object, whole in itself, with a version of its format.

It holds the request, what came from outside, the state after each step, and what is expected. It holds no ids of runs,
no tenant and no secrets, so equal cases are equal wherever they were made.
"""

import hashlib
import json
import re
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from orchestrator.errors import InvalidRun
from orchestrator.runs.store import TapeEntry
from orchestrator.workflows import Effect, Outcome, RunSpec, canonical
from orchestrator.workflows.plain import unkeepable

MAXIMUM_NAME = 128
_CASE_ID = re.compile("case_[0-9a-f]{24}")
_MICROSECOND = timedelta(microseconds=1)
_STRICT = ConfigDict(extra="forbid", frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Expectation(BaseModel):
    """What a case expects; an empty field expects nothing.

    Attributes:
        path: the way through the graph, node by node.
        files_hash: of the files delivered.
    """

    model_config = _STRICT

    outcome: Outcome
    path: tuple[str, ...] = ()
    files_hash: Hash | Literal[""] = ""


class RecordedModel(BaseModel):
    """What prompts depend on of the model that the run was made with.

    Attributes:
        name: of the model that answered.
    """

    model_config = _STRICT

    name: str = ""
    temperature: Annotated[float, Field(ge=0, le=2)]
    max_output_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)]
    context_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)]


class RecordedAnswer(BaseModel):
    """An entry of the tape.

    Attributes:
        name: what it is within the run, as "generate/1/model".
        digest: SHA-256 of the request as it was made; the request here is without secrets.
        elapsed_us: how long it took, in microseconds.
    """

    model_config = _STRICT

    name: str
    kind: Effect
    digest: Hash
    request: Any
    response: dict[str, Any]
    elapsed_us: Annotated[int, Field(ge=0, le=2**53)]

    @classmethod
    def of(cls, entry: TapeEntry) -> "RecordedAnswer":
        """The entry as a case keeps it."""
        return cls(
            name=entry.name,
            kind=Effect(entry.kind),
            digest=entry.request_digest,
            request=json.loads(entry.request),
            response=json.loads(entry.response),
            elapsed_us=entry.elapsed // _MICROSECOND,
        )

    def entry(self) -> TapeEntry:
        """The entry as a tape has it; its step has no id, since a replay looks for names."""
        return TapeEntry(
            step_id="",
            name=self.name,
            kind=self.kind.value,
            request_digest=self.digest,
            request=canonical(self.request),
            response=canonical(self.response),
            elapsed=self.elapsed_us * _MICROSECOND,
        )


class RecordedStep(BaseModel):
    """A point on the run's way.

    Attributes:
        step: of the graph; -1 for the input.
        source: "input", "loop", "update" or "fork".
        next: nodes that came next.
        as_node: in whose name the state was changed there by hand, or begun with; empty: neither.
        state: the whole state.
    """

    model_config = _STRICT

    step: Annotated[int, Field(ge=-1, le=2**31 - 1)]
    source: Literal["input", "loop", "update", "fork"]
    next: tuple[str, ...]
    as_node: str = ""
    state: dict[str, Any]


class CaseBody(BaseModel):
    """A case.

    Attributes:
        spec: the request, without a tenant.
        path: the run's way, oldest point first; a fork's begins where it branched off.
        artifacts: what the states at its beginning and at changes by hand refer to, by hash.
    """

    model_config = _STRICT

    format: Literal[1] = 1
    graph_version: Count
    spec: RunSpec
    model: RecordedModel
    expectation: Expectation
    tape: tuple[RecordedAnswer, ...]
    path: Annotated[tuple[RecordedStep, ...], Field(min_length=1)]
    artifacts: dict[Hash, bytes] = {}

    def dump(self) -> bytes:
        """The case as canonical JSON."""
        return canonical(self.model_dump(mode="json")).encode()


class CaseLine(BaseModel):
    """A line of exported cases."""

    model_config = _STRICT

    name: Annotated[str, Field(min_length=1, max_length=MAXIMUM_NAME)]
    case: CaseBody

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if fault := wrong_name(name):
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


def digest_of(body: bytes) -> str:
    """Equal for equal cases."""
    return hashlib.sha256(body).hexdigest()


def load_body(body: bytes) -> CaseBody:
    """Reads back what `CaseBody.dump` wrote."""
    return CaseBody.model_validate_json(body)


def read_line(raw: bytes, at: str) -> CaseLine:
    """A line of exported cases.

    Args:
        raw: the line.
        at: what it is called in an error, such as "line 3".

    Raises:
        InvalidRun: it is no case.
    """
    try:
        line = CaseLine.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        field = ".".join([at, *(str(part)[:80] for part in first["loc"])])
        raise InvalidRun((field, f"is no case: {first['msg']}")) from error
    if fault := unkeepable(line.model_dump(mode="json")):
        raise InvalidRun((at, fault))
    return line
