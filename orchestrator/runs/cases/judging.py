"""Holds what came of a case against what it expects, and says in a sentence what is not as expected."""

from dataclasses import dataclass
from datetime import timedelta

from orchestrator.runs.cases.body import CaseBody, Expectation
from orchestrator.runs.cases.playing import Played
from orchestrator.runs.records import RunRecord
from orchestrator.runs.states import RunResult
from orchestrator.runs.store import CaseRow
from orchestrator.runs.traces import Divergence
from orchestrator.workflows import WORKFLOWS, Outcome


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How a case ended.

    Attributes:
        case: its row, whose body may be empty.
        outcome: the outcome now, ERROR where no run could be made; None: there is none, since the replay left its
            recording.
        reason: what is not as expected, or what else differs from the recording; empty: nothing.
        divergence: the first step that differs from the recording; None: none, or the case was run live.
        run_id: of the run, where one was made live.
    """

    case: CaseRow
    passed: bool
    outcome: Outcome | None
    reason: str
    duration: timedelta
    divergence: Divergence | None = None
    run_id: str = ""


def judge_replay(case: CaseRow, body: CaseBody, played: Played, duration: timedelta) -> CaseResult:
    """A replay is as expected where its outcome, its way and its files are; states may differ, and it says so."""
    flipped = _flip(body.expectation, played)
    return CaseResult(
        case=case,
        passed=not flipped,
        outcome=played.outcome,
        reason=flipped or _note(body, played),
        duration=duration,
        divergence=played.divergence,
    )


def judge_live(case: CaseRow, expected: Expectation, record: RunRecord, duration: timedelta) -> CaseResult:
    """A live run is as expected where its outcome is: another way to it is not worse."""
    result = record.result or RunResult(Outcome.ERROR, "it has no result")
    passed = result.outcome is expected.outcome
    reason = "" if passed else f"the outcome is {result.outcome}, not {expected.outcome}: {result.reason}"
    return CaseResult(case, passed, result.outcome, reason, duration, run_id=record.run_id)


def judge_unmade(case: CaseRow, why: str, duration: timedelta) -> CaseResult:
    """A case that cannot be run or read is not as expected, whatever it expects: nothing was run."""
    reason = f"no run can be made of it: {why}"
    return CaseResult(case, passed=False, outcome=Outcome.ERROR, reason=reason, duration=duration)


def _flip(expected: Expectation, played: Played) -> str:
    divergence = played.divergence
    if played.outcome is None:
        at = f"step {divergence.step} ({divergence.node})" if divergence is not None else "its beginning"
        return f"the replay left its recording at {at}: {_differing(divergence.kind if divergence else 'graph')}"
    if played.outcome is not expected.outcome:
        return f"the outcome is {played.outcome}, not {expected.outcome}"
    if expected.path and played.path != expected.path:
        return f"the way is {_shown(played.path)}, not {_shown(expected.path)}"
    if expected.files_hash and played.files_hash != expected.files_hash:
        return "other files are delivered than were recorded"
    return ""


def _note(body: CaseBody, played: Played) -> str:
    """What differs without being worse."""
    notes = []
    workflow = WORKFLOWS.get(body.spec.workflow)
    if workflow is not None and workflow.version != body.graph_version:
        versions = f"version {body.graph_version} of the graph, and version {workflow.version}"
        notes.append(f"recorded with {versions} {'ends the same' if played.divergence else 'does the same'}")
    if (divergence := played.divergence) is not None:
        notes.append(f"from step {divergence.step} ({divergence.node}) on {_differing(divergence.kind)}")
    return "; ".join(notes)


def _differing(kind: str) -> str:
    return f"the {kind} {'differ' if kind.endswith('s') else 'differs'}"


def _shown(path: tuple[str, ...]) -> str:
    return " > ".join(path) or "empty"
