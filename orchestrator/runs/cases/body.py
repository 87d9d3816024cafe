"""A case as it is kept and handed on: one JSON object, whole in itself, with a version of its format.

It holds the request, what came from outside, the state after each step, and what is expected. It holds no ids of runs,
no tenant and no secrets, so equal cases are equal wherever they were made.
"""

import hashlib
import json
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError, model_validator

from orchestrator.errors import InvalidRun
from orchestrator.runs.cases.limits import (
    MAXIMUM_ARTIFACT_BYTES,
    MAXIMUM_LINE_BYTES,
    MAXIMUM_NAME,
    Faults,
    too_many,
    uncollected,
)
from orchestrator.runs.store import TapeEntry
from orchestrator.workflows import Effect, Outcome, Plain, RunSpec, canonical

MAXIMUM_BODY_BYTES = MAXIMUM_LINE_BYTES - 1024  # what is left is for the name
_MICROSECOND = timedelta(microseconds=1)
STRICT = ConfigDict(extra="forbid", frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, Field(max_length=MAXIMUM_NAME)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Expectation(BaseModel):
    """What a case expects; an empty field expects nothing.

    Attributes:
        path: the way through the graph, node by node.
        files_hash: of the files delivered.
    """

    model_config = STRICT

    outcome: Outcome
    path: Annotated[tuple[Name, ...], FailFast()] = ()
    files_hash: Hash | Literal[""] = ""


class RecordedModel(BaseModel):
    """What prompts and options of calls depend on, of the model that the run was made with.

    Attributes:
        name: of the model that answered.
    """

    model_config = STRICT

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

    model_config = STRICT

    name: Name
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

    model_config = STRICT

    step: Annotated[int, Field(ge=-1, le=2**31 - 1)]
    source: Literal["input", "loop", "update", "fork"]
    next: Annotated[tuple[Name, ...], FailFast()]
    as_node: Name = ""
    state: dict[str, Any]


class CaseBody(BaseModel):
    """A case. Making one that is over a limit raises InvalidRun with the field and the limit.

    Attributes:
        spec: the request, without a tenant.
        path: the run's way, oldest point first; a fork's begins where it branched off.
        artifacts: what the states at its beginning and at changes by hand refer to, by hash.
    """

    model_config = STRICT

    format: Literal[1] = 1
    graph_version: Count
    spec: RunSpec
    model: RecordedModel
    expectation: Expectation
    tape: Annotated[tuple[RecordedAnswer, ...], FailFast()]
    path: Annotated[tuple[RecordedStep, ...], Field(min_length=1), FailFast()]
    artifacts: dict[Hash, bytes] = {}

    @model_validator(mode="after")
    def _check_sizes(self) -> "CaseBody":
        if faults := self._oversizes():
            raise InvalidRun(*faults)
        return self

    def _oversizes(self) -> Faults:
        faults = too_many(
            path=len(self.path),
            updates=sum(step.source == "update" for step in self.path),
            tape=len(self.tape),
            expected=len(self.expectation.path),
            artifacts=len(self.artifacts),
        )
        if (size := sum(map(len, self.artifacts.values()))) > MAXIMUM_ARTIFACT_BYTES:
            faults.append(("artifacts", f"must have at most {MAXIMUM_ARTIFACT_BYTES} bytes in all, not {size}"))
        return faults

    def dump(self) -> bytes:
        """The case as canonical JSON.

        Raises:
            InvalidRun: it would be longer than a line of exported cases may be.
        """
        with uncollected():
            plain = self.model_dump(mode="json")
        body = ("{" + ",".join(f'"{name}":{_in_pieces(plain[name])}' for name in sorted(plain)) + "}").encode()
        if len(body) > MAXIMUM_BODY_BYTES:
            raise InvalidRun(("", f"must have at most {MAXIMUM_BODY_BYTES} bytes as canonical JSON, not {len(body)}"))
        return body


def _in_pieces(part: Plain) -> str:
    """Canonical JSON, of a list made item by item: other threads get no turn while a text is made at one go."""
    return f"[{','.join(map(canonical, part))}]" if isinstance(part, list) else canonical(part)


def digest_of(body: bytes) -> str:
    """Equal for equal cases."""
    return hashlib.sha256(body).hexdigest()


def load_body(body: bytes) -> CaseBody:
    """Reads back what `CaseBody.dump` wrote.

    Raises:
        InvalidRun: it was written by a service with other records or limits.
    """
    try:
        with uncollected():
            return CaseBody.model_validate_json(body)
    except ValidationError as error:
        raise InvalidRun(first_fault(error, "case")) from error


def first_fault(error: ValidationError, at: str) -> tuple[str, str]:
    """The first field that does not fit, and why."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    return ".".join([at, *(str(part)[:80] for part in first["loc"])]), f"is no case: {first['msg']}"
