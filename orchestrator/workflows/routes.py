"""Where the graph goes next, and why: pure functions of structured fields, never of a model's or a program's words.

The policy for code that failed: two repairs, then a fresh sample. Failing in the same way twice, or code that was
tried before, is a circle; each circle uses the next way out (diagnose, rewrite, fresh sample), and a circle with no
way left is STUCK.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.workflows.sandbox import ExecutionStatus, ReportOutcome
from orchestrator.workflows.state import (
    BUILDS_ON_BASE,
    Attempt,
    CodegenState,
    Decision,
    Outcome,
    Plan,
    Stop,
    Strategy,
    Verdict,
    best,
)

GENERATE, REPAIR, EXECUTE, DECIDE, FINALIZE, CANDIDATE = (
    "generate", "repair", "execute", "decide", "finalize", "candidate",
)  # fmt: skip
REPAIRS_PER_SAMPLE = 2  # corrections of one sample before a fresh one is drawn
WAYS_OUT = (Strategy.DIAGNOSE, Strategy.REWRITE, Strategy.FRESH)
_NO_ENDING = "Your last code ended the program before its tests were done. Do not call exit() or end the process."
_NO_TAMPERING = (
    "Your last code reached into the test framework. Solve the task itself: leave the tests, the test framework, "
    "builtins and the interpreter alone."
)
_NO_SYSTEM_CALLS = "Your last code made a system call that is not allowed here. Do without it."
REPORT_ADVICE: Mapping[ReportOutcome, str] = {
    ReportOutcome.PASSED: "",
    ReportOutcome.FAILED: "",
    ReportOutcome.ERROR: "",
    ReportOutcome.NO_TESTS: "",
    ReportOutcome.TIMED_OUT: "",
    ReportOutcome.LIMIT_EXCEEDED: "",
    ReportOutcome.TAMPERED: _NO_TAMPERING,
    ReportOutcome.INCOMPLETE: _NO_ENDING,
}
"""What a model is told beside what failed, for every outcome of a test run; empty where its failures say all."""
EXECUTION_ADVICE: Mapping[ExecutionStatus, str] = {
    ExecutionStatus.SUCCEEDED: "",
    ExecutionStatus.FAILED: "",
    ExecutionStatus.TIMED_OUT: "",
    ExecutionStatus.CPU_LIMIT: "",
    ExecutionStatus.MEMORY_LIMIT: "",
    ExecutionStatus.OUTPUT_LIMIT: "",
    ExecutionStatus.DISK_LIMIT: "",
    ExecutionStatus.PROCESS_LIMIT: "",
    ExecutionStatus.SIGNALED: "",
    ExecutionStatus.CANCELLED: "",
    ExecutionStatus.VIOLATION: _NO_SYSTEM_CALLS,
}
"""The same, for every end of a program."""
_NODE = {strategy: REPAIR if strategy in BUILDS_ON_BASE else GENERATE for strategy in Strategy}


@dataclass(frozen=True, slots=True)
class Route:
    """One way out of a node, with its reason."""

    target: str
    reason: str


def after_start(candidates: int) -> Route:
    """From the start: one draft, or several side by side."""
    if candidates > 1:
        return Route(CANDIDATE, f"{candidates} drafts side by side were asked for")
    return Route(GENERATE, "the first draft")


def after_model(state: CodegenState) -> Route:
    """From generate or repair: only code that can be executed is executed."""
    if (stop := state.get("stop")) is not None:
        return Route(DECIDE, stop.reason)
    if (draft := state.get("draft")) is not None:
        return Route(EXECUTE, f"attempt {draft.number} has code that was not tried before")
    return Route(DECIDE, state["attempts"][-1].summary)


def after_decide(state: CodegenState) -> Route:
    """From decide: where its decision says."""
    decision = state["decision"]
    return Route(decision.target, decision.reason)


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a decision depends on.

    Attributes:
        attempts: all of them, by number.
        base: number of the attempt that corrections start from; zero: none.
        stop: set when a limit was met inside an attempt, or a part failed.
        limit: set when a limit would be met by another attempt.
    """

    attempts: Sequence[Attempt]
    max_attempts: int
    base: int = 0
    stop: Stop | None = None
    limit: Stop | None = None


def next_base(situation: Situation) -> int:
    """Which attempt corrections start from: a repair that breaks a test which passed is not taken as the new base."""
    latest = situation.attempts[-1]
    if all(attempt.strategy is Strategy.DRAFT for attempt in situation.attempts):
        executed = best(attempt for attempt in situation.attempts if attempt.verdict is Verdict.FAILED)
        return executed.number if executed else 0
    is_worse = latest.regressions or latest.report_outcome is ReportOutcome.TAMPERED
    if latest.verdict is not Verdict.FAILED or (is_worse and situation.base):
        return situation.base
    return latest.number


def decide(situation: Situation) -> Decision:
    """The next step, or the end. `situation.base` is the base already chosen by `next_base`."""
    stop = _end(situation)
    if stop is None and not situation.attempts:
        stop = Stop(Outcome.ERROR, "there is no attempt to go on from")
    if stop is not None:
        return Decision(FINALIZE, stop.reason, stop=stop)
    strategy, reason = _strategy(situation)
    if strategy is None:
        return Decision(FINALIZE, reason, stop=Stop(Outcome.STUCK, reason))
    plan = Plan(
        number=situation.attempts[-1].number + 1,
        strategy=strategy,
        base=situation.base if strategy in BUILDS_ON_BASE or strategy is Strategy.REWRITE else 0,
        warm=strategy in WAYS_OUT,  # who has gone in a circle would go the same way again
        wide=latest_of(situation.attempts).truncated,
        note=_note(situation),
    )
    return Decision(_NODE[strategy], reason, plan=plan)


def latest_of(attempts: Sequence[Attempt]) -> Attempt:
    """The attempt that the next step answers to: the last one, or the best of the first drafts."""
    if all(attempt.strategy is Strategy.DRAFT for attempt in attempts):
        return best(attempts) or attempts[-1]
    return attempts[-1]


def _end(situation: Situation) -> Stop | None:
    attempts = situation.attempts
    leader = best(attempts)
    if leader is not None and leader.verdict is Verdict.PASSED:
        return Stop(Outcome.PASSED, f"attempt {leader.number} passed: {leader.summary}")
    if leader is not None and leader.verdict is Verdict.UNVERIFIED:
        reason = f"attempt {leader.number} ran to its end; no tests and no check script were given to verify it"
        return Stop(Outcome.UNVERIFIED, reason)
    if situation.stop is not None:
        return situation.stop
    if attempts and all(attempt.verdict is Verdict.ERROR for attempt in attempts):
        return Stop(Outcome.ERROR, attempts[-1].summary)
    if len(attempts) >= situation.max_attempts:
        return Stop(Outcome.FAILED, f"all {situation.max_attempts} attempts are used up; {describe(leader)}")
    return situation.limit


def describe(attempt: Attempt | None) -> str:
    """Which attempt is the best, and how far it came."""
    if attempt is None:
        return "none of them has code"
    if attempt.tests_total:
        how = f"{attempt.tests_passed} of {attempt.tests_total} tests passed"
    else:
        how = attempt.summary or "not executed"
    return f"the best is attempt {attempt.number} ({how})"


def _strategy(situation: Situation) -> tuple[Strategy | None, str]:
    attempts, latest = situation.attempts, latest_of(situation.attempts)
    circle = _circle(attempts, latest)
    if circle:
        used = {attempt.strategy for attempt in attempts}
        ways = [way for way in WAYS_OUT if way not in used and (situation.base or way is Strategy.FRESH)]
        if not ways:
            return None, f"{circle}, and no other strategy is left; {describe(best(attempts))}"
        return ways[0], f"{circle}, so the strategy changes to {ways[0].value}"
    if (spent := _repairs_since_sample(attempts)) >= REPAIRS_PER_SAMPLE:
        return Strategy.FRESH, f"{spent} repairs of the last sample did not pass"
    if latest.verdict in {Verdict.UNUSABLE, Verdict.ERROR, Verdict.STOPPED}:
        return Strategy.REPAIR, f"attempt {latest.number} gave nothing to execute: {latest.summary}"
    if latest.regressions:
        broken = f"attempt {latest.number} broke {latest.regressed}"
        return Strategy.REPAIR, f"{broken}, so the next starts from attempt {situation.base} again"
    return Strategy.REPAIR, f"attempt {latest.number} failed: {latest.summary}"


def _circle(attempts: Sequence[Attempt], latest: Attempt) -> str:
    """How the latest attempt repeats an earlier one; empty where it does not. First drafts are no circle."""
    if latest.strategy is Strategy.DRAFT:
        return ""
    if latest.verdict is Verdict.DUPLICATE:
        return f"attempt {latest.number} repeats code that was tried before"
    for earlier in attempts:
        if earlier.number != latest.number and latest.fingerprint and earlier.fingerprint == latest.fingerprint:
            return f"attempt {latest.number} failed in the same way as attempt {earlier.number}"
    return ""


def _repairs_since_sample(attempts: Sequence[Attempt]) -> int:
    count = 0
    for attempt in reversed(attempts):
        if attempt.strategy not in BUILDS_ON_BASE:
            break
        count += 1
    return count


def _advice(attempt: Attempt) -> str:
    """What an attempt's code must not do again; empty where its failures say all."""
    if attempt.verdict is not Verdict.FAILED:
        return ""
    if attempt.report_outcome is not None:
        return REPORT_ADVICE[attempt.report_outcome]
    return EXECUTION_ADVICE[attempt.execution_status] if attempt.execution_status is not None else ""


def _note(situation: Situation) -> str:
    latest = latest_of(situation.attempts)
    if latest.truncated:
        return "Your last reply was too long and was cut off. Be shorter: only the code, few comments, no explanation."
    if latest.verdict is Verdict.UNUSABLE:
        return f"Your last reply could not be used: {latest.summary}."
    if latest.verdict is Verdict.DUPLICATE:
        return "Your last reply repeated code that has failed already. Change what it does."
    if advice := _advice(latest):
        return f"{advice} What was seen: {latest.summary}."
    if latest.regressions:
        return f"Your last correction broke {latest.regressed}, which this code passes. Keep that working."
    return ""
