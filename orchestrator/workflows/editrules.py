"""What an edit may make of a state: ranges, names of attempts and artifacts, and verdicts that stay the sandbox's own.

What an edit leaves as it was is taken as it is, so a state from before these rules can still be edited elsewhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from orchestrator.errors import InvalidRun
from orchestrator.workflows.artifacts import FileSet
from orchestrator.workflows.candidates import PASSES
from orchestrator.workflows.routes import FINALIZE, GENERATE, REPAIR
from orchestrator.workflows.sandbox import Execution, ExecutionStatus, ReportOutcome, TestReport
from orchestrator.workflows.state import Attempt, CodegenState, Decision, Draft, Outcome, Plan, Stop, Verdict

AT = "edit.values_json"
MAXIMUM_NUMBER = 1000  # of an attempt; a run has at most 100 of them
MAXIMUM_COUNT = 2**31 - 1  # as the contract's int32 has it
MAXIMUM_TOKENS = 10**15  # sums of them stay far below 64 bits
LONGEST = timedelta(days=1)  # as a run's own time
MAXIMUM_LINE, MAXIMUM_NOTE = 1024, 64 * 1024  # characters of a one-line text; of the note, as of a task
TARGETS = (GENERATE, REPAIR, FINALIZE)
NOT_BY_EDIT = frozenset({Outcome.PASSED, Outcome.UNVERIFIED, Outcome.CANCELLED})
_VERDICTS_ARE = "verdicts come from the sandbox alone"
_RANGES: Mapping[str, tuple[int, int]] = {
    "number": (1, MAXIMUM_NUMBER),
    "base": (0, MAXIMUM_NUMBER),
    "input_tokens": (0, MAXIMUM_TOKENS),
    "output_tokens": (0, MAXIMUM_TOKENS),
}
_NEEDS_CODE = PASSES | {Verdict.FAILED, Verdict.DUPLICATE}
_KINDS: Mapping[str, tuple[Any, str]] = {
    "code_hash": (FileSet, "a set of files"),
    "report_hash": (TestReport, "a test report"),
    "execution_hash": (Execution, "an execution"),
}


@dataclass(frozen=True, slots=True)
class NamedArtifact:
    """An artifact that an edit names: the field that does, what it must hold, that in words, and its name."""

    field: str
    kind: Any
    what: str
    name: str


def check_edit(before: Mapping[str, Any], fragment: CodegenState) -> None:
    """Checks what an edit gives each field, by itself and against the attempts that there are.

    Raises:
        InvalidRun: a value is out of its range, names what is not there, or would be a verdict.
    """
    for at, old, new in _changes(before, fragment):
        _check_ranges(at, old, new)
    attempts = attempts_after(before, fragment)
    for at, old, new in _changes(before, fragment):
        match new:
            case Attempt():
                _check_attempt(at, old, new, attempts)
            case Plan():
                _check_plan(at, old, new, attempts)
            case Draft():
                _check_number(at, old, new, attempts)
                _check_base(at, old, new, attempts)
            case Stop():
                _check_stop(at, old, new)
            case Decision():
                _check_decision(at, old, new, attempts)
            case int() if new:
                _check_names_code(at, new, attempts)


def named_artifacts(before: Mapping[str, Any], fragment: CodegenState) -> Sequence[NamedArtifact]:
    """The artifacts that an edit names anew; whoever has the store sees whether they are kept."""
    found = []
    for at, old, new in _changes(before, fragment):
        for name, (kind, what) in _KINDS.items():
            value = getattr(new, name, None)
            if value is not None and value != getattr(old, name, None):
                found.append(NamedArtifact(f"{at}.{name}", kind, what, value))
    return found


def attempts_after(before: Mapping[str, Any], fragment: CodegenState) -> Mapping[int, Attempt]:
    """All attempts by number, as they are after an edit."""
    given: Iterable[Attempt] = [*before.get("attempts", []), *fragment.get("attempts", [])]
    return {attempt.number: attempt for attempt in given}


def newest(attempts: Mapping[int, Attempt]) -> int:
    """The highest number of an attempt; zero: there is none."""
    return max(attempts, default=0)


def check_fresh(at: str, number: int, attempts: Mapping[int, Attempt]) -> None:
    """A new attempt must not take the place of another, nor come before one. Raises InvalidRun."""
    if number <= (latest := newest(attempts)):
        raise InvalidRun((f"{at}.number", f"must be over {latest}, the number of the newest attempt, not {number}"))


def _changes(before: Mapping[str, Any], fragment: CodegenState) -> Iterable[tuple[str, Any, Any]]:
    """Each value that is not as it was, with its place and the value before."""
    known = {attempt.number: attempt for attempt in before.get("attempts", [])}
    for name, value in fragment.items():
        if isinstance(value, list):
            pairs = [(f"{AT}.{name}.{index}", known.get(one.number), one) for index, one in enumerate(value)]
        else:
            pairs = [(f"{AT}.{name}", before.get(name), value)]
        yield from (pair for pair in pairs if pair[1] != pair[2])


def _check_ranges(at: str, old: object, new: object) -> None:
    """Every number, time and text of a record that is not as it was."""
    if new == old or isinstance(new, (bool, Enum)):
        return
    name = at.rpartition(".")[2]
    if isinstance(new, int):
        least, most = _RANGES.get(name, (0, MAXIMUM_COUNT))
        if not least <= new <= most:
            raise InvalidRun((at, f"must be from {least} to {most}, not {new}"))
    elif isinstance(new, timedelta):
        if not timedelta() <= new <= LONGEST:
            seconds = LONGEST.total_seconds()
            raise InvalidRun((at, f"must be from 0 s to {seconds:g} s, not {new.total_seconds():g} s"))
    elif isinstance(new, str):
        most = MAXIMUM_NOTE if name == "note" else MAXIMUM_LINE
        if len(new) > most:
            raise InvalidRun((at, f"must have at most {most} characters, not {len(new)}"))
    elif is_dataclass(new):
        for field in fields(new):
            _check_ranges(f"{at}.{field.name}", getattr(old, field.name, None), getattr(new, field.name))


def _check_attempt(at: str, old: Attempt, new: Attempt, attempts: Mapping[int, Attempt]) -> None:
    if new.verdict in PASSES:
        if old.verdict is not new.verdict:
            raise InvalidRun((f"{at}.verdict", f"cannot become {new.verdict.value}: {_VERDICTS_ARE}"))
        changed = next(field.name for field in fields(new) if getattr(old, field.name) != getattr(new, field.name))
        raise InvalidRun(
            (f"{at}.{changed}", f"cannot change while the verdict is {new.verdict.value}: {_VERDICTS_ARE}")
        )
    if new.report_outcome is ReportOutcome.PASSED is not old.report_outcome:
        raise InvalidRun((f"{at}.report_outcome", f"cannot become PASSED: {_VERDICTS_ARE}"))
    if new.execution_status is ExecutionStatus.SUCCEEDED is not old.execution_status:
        raise InvalidRun((f"{at}.execution_status", f"cannot become SUCCEEDED: {_VERDICTS_ARE}"))
    if new.verdict in _NEEDS_CODE and not new.code_hash:
        raise InvalidRun((f"{at}.verdict", f"cannot be {new.verdict.value}: attempt {new.number} has no code"))
    if new.tests_passed > new.tests_total:
        raise InvalidRun(
            (f"{at}.tests_passed", f"must be at most tests_total ({new.tests_total}), not {new.tests_passed}")
        )
    _check_base(at, old, new, attempts)


def _check_plan(at: str, old: Plan | None, new: Plan, attempts: Mapping[int, Attempt]) -> None:
    _check_number(at, old, new, attempts)
    _check_base(at, old, new, attempts)


def _check_number(at: str, old: Plan | Draft | None, new: Plan | Draft, attempts: Mapping[int, Attempt]) -> None:
    if old is None or new.number != old.number:
        check_fresh(at, new.number, attempts)


def _check_base(
    at: str, old: Plan | Draft | Attempt | None, new: Plan | Draft | Attempt, attempts: Mapping[int, Attempt]
) -> None:
    if new.base and (old is None or new.base != old.base):
        _check_names_code(f"{at}.base", new.base, attempts)


def _check_names_code(at: str, number: int, attempts: Mapping[int, Attempt]) -> None:
    if number not in attempts or not attempts[number].code_hash:
        names = ", ".join(str(one) for one, attempt in sorted(attempts.items()) if attempt.code_hash)
        raise InvalidRun((at, f"must be zero or an attempt that has code ({names or 'none has'}), not {number}"))


def _check_stop(at: str, old: Stop | None, new: Stop) -> None:
    if new.outcome in NOT_BY_EDIT and (old is None or old.outcome is not new.outcome):
        why = "a run is cancelled by CancelRun" if new.outcome is Outcome.CANCELLED else _VERDICTS_ARE
        raise InvalidRun((f"{at}.outcome", f"cannot become {new.outcome.value}: {why}"))
    if not new.reason.strip():
        raise InvalidRun((f"{at}.reason", "is required: it says how the run ended"))


def _check_decision(at: str, old: Decision | None, new: Decision, attempts: Mapping[int, Attempt]) -> None:
    if new.target not in TARGETS:
        raise InvalidRun((f"{at}.target", f"must be one of {', '.join(TARGETS)}, not {new.target[:80]!r}"))
    if new.stop is not None and (old is None or old.stop != new.stop):
        _check_stop(f"{at}.stop", old.stop if old is not None else None, new.stop)
    if new.target == FINALIZE and new.stop is None:
        raise InvalidRun((f"{at}.stop", f"is required where the target is {FINALIZE}: it says how the run ends"))
    if new.plan is not None and (old is None or old.plan != new.plan):
        _check_plan(f"{at}.plan", old.plan if old is not None else None, new.plan, attempts)
