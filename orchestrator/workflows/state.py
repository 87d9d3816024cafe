"""The state of a `codegen` run: thin records, their reducers, and the running total that outlives a broken-off graph.

Records hold ids, counters, hashes and one-line summaries; code, reports and output live in the artifact store under
the hashes here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, TypedDict

from orchestrator.models import Usage
from orchestrator.workflows.plain import GREATEST_INT
from orchestrator.workflows.sandbox import ExecutionStatus, ReportOutcome


class Strategy(StrEnum):
    """How code is asked for."""

    DRAFT = "draft"
    REPAIR = "repair"
    DIAGNOSE = "diagnose"
    REWRITE = "rewrite"
    FRESH = "fresh"


BUILDS_ON_BASE = frozenset({Strategy.REPAIR, Strategy.DIAGNOSE})


class Verdict(StrEnum):
    """What became of one attempt."""

    PASSED = "passed"
    UNVERIFIED = "unverified"  # it ran to its end, and nothing was given that could verify it
    FAILED = "failed"
    UNUSABLE = "unusable"  # the reply held no code that could be executed
    DUPLICATE = "duplicate"  # the same code was tried before, so it was not executed again
    STOPPED = "stopped"  # a limit, or another candidate's pass, came before its verdict
    ERROR = "error"  # the model or the sandbox could not be used


class Outcome(StrEnum):
    """What becomes of a run."""

    PASSED = "PASSED"
    UNVERIFIED = "UNVERIFIED"
    FAILED = "FAILED"
    STUCK = "STUCK"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    CANCELLED = "CANCELLED"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt with its verdict.

    Attributes:
        base: number of the attempt that it corrects; zero: none.
        code_hash: name of its files in the artifact store; empty where the reply held no code.
        errors: tests that failed, and files that could not be collected.
        fingerprint: equal for attempts that failed in the same way.
        regressions: tests that passed in the base and do not pass here.
        regressed: the first of their names.
        truncated: the reply was cut off at its token limit.
        report_hash: name of the test report in the artifact store.
        execution_hash: name of the execution in the artifact store.
        duration: from asking the model to the verdict.
    """

    number: int
    strategy: Strategy
    verdict: Verdict
    base: int = 0
    code_hash: str = ""
    report_outcome: ReportOutcome | None = None
    execution_status: ExecutionStatus | None = None
    tests_passed: int = 0
    tests_total: int = 0
    errors: int = 0
    summary: str = ""
    fingerprint: str = ""
    regressions: int = 0
    regressed: str = ""
    truncated: bool = False
    report_hash: str = ""
    execution_hash: str = ""
    duration: timedelta = timedelta()
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the model is asked for next.

    Attributes:
        number: of the attempt that comes of it.
        base: number of the attempt to correct; zero: none.
        warm: ask with a higher temperature, for another sample than the last.
        wide: ask with room for a longer reply.
        note: what the model must know of its last reply, in a sentence or two.
    """

    number: int = 1
    strategy: Strategy = Strategy.DRAFT
    base: int = 0
    warm: bool = False
    wide: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """Code that waits for its verdict. `spent` is the time that the model took."""

    number: int
    strategy: Strategy
    base: int
    code_hash: str
    spent: timedelta
    usage: Usage


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run must end before its next step."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do next. With target "finalize", `stop` says how the run ends; else `plan` says what to ask for."""

    target: str
    reason: str
    plan: Plan | None = None
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How a run ended. `delivered` is the number of the attempt delivered; zero: none has code."""

    outcome: Outcome
    reason: str
    delivered: int


def merge_attempts(known: list[Attempt], new: list[Attempt]) -> list[Attempt]:
    """Reducer: attempts by number, the newer record of a number wins."""
    return [attempt for _, attempt in sorted({attempt.number: attempt for attempt in [*known, *new]}.items())]


def add_usage(known: Usage, new: Usage) -> Usage:
    """Reducer: what was spent, in all; never over 64 bits, whatever an endpoint says."""
    total = known + new
    counts = (total.model_calls, total.input_tokens, total.output_tokens)
    return Usage(*(min(count, GREATEST_INT) for count in counts))


class CodegenState(TypedDict, total=False):
    """The state of the graph; also the shape of what a node returns."""

    attempts: Annotated[list[Attempt], merge_attempts]
    usage: Annotated[Usage, add_usage]
    base: int
    candidates: int
    plan: Plan
    draft: Draft | None
    stop: Stop | None
    decision: Decision
    conclusion: Conclusion


RECORDS: tuple[type, ...] = (
    Attempt, Conclusion, Decision, Draft, ExecutionStatus, Outcome, Plan, ReportOutcome, Stop, Strategy, Usage, Verdict,
)  # fmt: skip
"""Every type that a checkpoint of this state may hold, beside plain values."""


class Progress:
    """The run so far, folded from the same fragments by the same reducers as the graph's state.

    The graph's own state lacks whatever a broken-off step had reached; this does not, so a cancelled or expired run
    can still deliver its best attempt, and candidates that run side by side share one count of tokens.
    """

    def __init__(self, attempts: Iterable[Attempt] = ()) -> None:
        self.attempts: list[Attempt] = []
        self.usage = Usage()
        self.drafts: dict[int, Draft] = {}  # code that has no verdict yet, by the number of its attempt
        self.executing: set[int] = set()  # of those: what was given to the sandbox
        self._claims: dict[str, int] = {}
        self.apply({"attempts": list(attempts)})

    @property
    def tokens(self) -> int:
        """Tokens in and out so far."""
        return self.usage.input_tokens + self.usage.output_tokens

    def apply(self, fragment: CodegenState) -> list[Attempt]:
        """Folds in what a node returned, or a whole state, and gives back the attempts that are new."""
        seen = {attempt.number for attempt in self.attempts}
        new = [attempt for attempt in fragment.get("attempts", []) if attempt.number not in seen]
        self.attempts = merge_attempts(self.attempts, new)
        self.usage = add_usage(self.usage, fragment.get("usage", Usage()))
        for attempt in new:
            self.drafts.pop(attempt.number, None)
            if attempt.code_hash and attempt.verdict is not Verdict.DUPLICATE:
                self.claim(attempt.code_hash, attempt.number)
        if (draft := fragment.get("draft")) is not None:
            self.drafts[draft.number] = draft
            self.claim(draft.code_hash, draft.number)
        return new

    def become(self, other: "Progress") -> None:
        """Takes the place of this, for all who have it: the state was changed by hand."""
        self.attempts, self.usage, self.drafts = other.attempts, other.usage, other.drafts
        self.executing, self._claims = other.executing, other._claims  # noqa: SLF001 - its own kind

    def close(self, why: str) -> list[Attempt]:
        """Ends a run that was broken off: code without a verdict counts as stopped. Gives back those attempts."""
        left = []
        for draft in self.drafts.values():
            when = "while the code was executed" if draft.number in self.executing else "before the code was executed"
            left.append(unexecuted(draft, Verdict.STOPPED, f"{why} {when}"))
        return self.apply({"attempts": left})

    def claim(self, code_hash: str, number: int) -> int:
        """Reserves code for an attempt; gives back the number of the attempt that has it."""
        return self._claims.setdefault(code_hash, number)

    def give(self, code_hash: str, number: int) -> None:
        """Lets an attempt have code, whoever reserved it."""
        self._claims[code_hash] = number

    def find(self, number: int) -> Attempt | None:
        """The attempt with this number."""
        return next((attempt for attempt in self.attempts if attempt.number == number), None)


def unexecuted(draft: Draft, verdict: Verdict, reason: str, elapsed: timedelta = timedelta()) -> Attempt:
    """An attempt whose code has no verdict of its own."""
    return Attempt(
        draft.number,
        draft.strategy,
        verdict,
        base=draft.base,
        code_hash=draft.code_hash,
        summary=reason,
        duration=draft.spent + elapsed,
        usage=draft.usage,
    )


_RANK = {Verdict.PASSED: 3, Verdict.UNVERIFIED: 2, Verdict.FAILED: 1}


def best(attempts: Iterable[Attempt]) -> Attempt | None:
    """The attempt to deliver: most trusted tests passed; of equals the one with fewer errors, then the later one."""
    usable = [attempt for attempt in attempts if attempt.code_hash and attempt.verdict is not Verdict.DUPLICATE]
    return max(usable, key=lambda a: (_RANK.get(a.verdict, 0), a.tests_passed, -a.errors, a.number), default=None)
