"""How answers from outside are written to a tape and read back: replies, executions, limits, and what went wrong.

Whatever comes in passes through here, so this is also where it is freed of what no checkpoint and no database takes.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from orchestrator import models
from orchestrator.errors import OutOfTime, SandboxBusy, SandboxError, SandboxRejected, SandboxUnavailable
from orchestrator.models import ModelError, Reply, Usage
from orchestrator.workflows.plain import Plain, as_plain, clean, of_plain
from orchestrator.workflows.sandbox import Execution, TestReport
from orchestrator.workflows.state import Attempt, Stop
from orchestrator.workflows.tape import Codec

Ran = tuple[TestReport | None, Execution]
"""What came of a job; a program's has no report."""

_MODEL_ERRORS: Mapping[str, type[ModelError]] = {
    kind.__name__: kind
    for kind in (
        ModelError,
        models.ModelUnavailable,
        models.ModelRejected,
        models.ContextTooLong,
        models.MalformedReply,
        models.UnknownRole,
    )
}
_SANDBOX_ERRORS: Mapping[str, type[SandboxError]] = {
    kind.__name__: kind for kind in (SandboxError, SandboxBusy, SandboxUnavailable, SandboxRejected)
}


def _name_in(known: Mapping[str, Any], error: Exception) -> str:
    """The name of the nearest class that is known."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in known)


def _dump_model_error(error: Exception) -> Plain:
    if not isinstance(error, ModelError):
        return {"type": OutOfTime.__name__, "message": clean(str(error))}
    plain = {
        "type": _name_in(_MODEL_ERRORS, error),
        "message": str(error),
        "usage": as_plain(Usage, error.usage),
    }
    if isinstance(error, models.ModelRejected):
        plain["status"] = error.status
    return clean(plain)


def _load_model_error(plain: Plain) -> Exception:
    if plain["type"] == OutOfTime.__name__:
        return OutOfTime(plain["message"])
    kind, usage = _MODEL_ERRORS[plain["type"]], of_plain(Usage, plain["usage"])
    if kind is models.ModelRejected:
        return models.ModelRejected(plain["message"], status=plain["status"], usage=usage)
    return kind(plain["message"], usage=usage)


def _dump_sandbox_error(error: Exception) -> Plain:
    if not isinstance(error, SandboxError):
        return {"type": OutOfTime.__name__, "message": clean(str(error))}
    plain: dict[str, Any] = {"type": _name_in(_SANDBOX_ERRORS, error), "message": str(error)}
    if isinstance(error, SandboxBusy | SandboxUnavailable) and error.retry_after is not None:
        plain["retry_after"] = error.retry_after.total_seconds()
    return clean(plain)


def _load_sandbox_error(plain: Plain) -> Exception:
    if plain["type"] == OutOfTime.__name__:
        return OutOfTime(plain["message"])
    kind = _SANDBOX_ERRORS[plain["type"]]
    if issubclass(kind, SandboxBusy | SandboxUnavailable):
        seconds = plain.get("retry_after")
        return kind(plain["message"], timedelta(seconds=seconds) if seconds is not None else None)
    return kind(plain["message"])


def _dump_ran(ran: Ran) -> Plain:
    report, execution = ran
    plain = {
        "report": as_plain(TestReport, report) if report is not None else None,
        "execution": as_plain(Execution, execution),
    }
    return clean(plain)


def _load_ran(plain: Plain) -> Ran:
    report = of_plain(TestReport, plain["report"]) if plain["report"] is not None else None
    return report, of_plain(Execution, plain["execution"])


MODEL = Codec(
    lambda reply: clean(as_plain(Reply, reply)),
    lambda plain: of_plain(Reply, plain),
    (ModelError, OutOfTime),
    _dump_model_error,
    _load_model_error,
)
"""A model's reply."""
SANDBOX = Codec(_dump_ran, _load_ran, (SandboxError, OutOfTime), _dump_sandbox_error, _load_sandbox_error)
"""What came of a job."""
LIMIT = Codec(lambda stop: as_plain(Stop, stop), lambda plain: of_plain(Stop, plain))
"""A limit that was met, as the stop that it makes."""
ATTEMPT = Codec(lambda attempt: as_plain(Attempt, attempt), lambda plain: of_plain(Attempt, plain))
"""What is left of a candidate that was broken off."""
OWNER = Codec(int, int)
"""The number of the candidate that had the same code first."""
