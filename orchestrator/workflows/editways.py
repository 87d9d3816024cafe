"""Where the graph goes after an edit in a node's name: what the nodes that come next need must be there by then."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from langgraph.graph import START

from orchestrator.errors import InvalidRun
from orchestrator.workflows.editrules import AT, TARGETS, attempts_after, check_fresh
from orchestrator.workflows.routes import CANDIDATE, DECIDE, EXECUTE, FINALIZE, GENERATE, REPAIR, after_model
from orchestrator.workflows.state import Attempt, CodegenState, Conclusion, Decision, Outcome, Verdict, best

AS_NODE = "edit.as_node"
_PROOF = {Outcome.PASSED: Verdict.PASSED, Outcome.UNVERIFIED: Verdict.UNVERIFIED}


def check_way(before: Mapping[str, Any], fragment: CodegenState, as_node: str) -> None:
    """Checks that the graph can go on from an edited state.

    Args:
        before: the state that is edited.
        fragment: the edit, as what a node would return.
        as_node: in whose name; "__start__" where none has run yet.

    Raises:
        InvalidRun: there is no such node, or what comes after it would lack something.
    """
    if as_node not in _WAYS:
        nodes = ", ".join(name for name in _WAYS if name != START)
        raise InvalidRun((AS_NODE, f"there is no node {as_node[:80]!r}; the nodes are {nodes}"))
    attempts = attempts_after(before, fragment)
    in_order = [attempts[number] for number in sorted(attempts)]
    after = cast("CodegenState", {**before, **fragment, "attempts": in_order})
    if "plan" not in after:
        raise InvalidRun((f"{AT}.plan", "is required: the state has no plan yet"))
    _WAYS[as_node](after, attempts)


def _from_start(after: CodegenState, attempts: Mapping[int, Attempt]) -> None:
    if after.get("candidates", 1) == 1:
        check_fresh(f"{AT}.plan", after["plan"].number, attempts)
    elif attempts:
        raise InvalidRun((AS_NODE, f"cannot be {START}: there are attempts, whose places the first drafts would take"))


def _from_model(after: CodegenState, attempts: Mapping[int, Attempt]) -> None:
    draft = after.get("draft")
    if after.get("stop") is None and draft is None and not attempts:
        raise InvalidRun((f"{AT}.draft", "cannot be null: there is no attempt to go on from, and no stop"))
    if draft is not None and after_model(after).target == EXECUTE:
        check_fresh(f"{AT}.draft", draft.number, attempts)


def _from_decide(after: CodegenState, attempts: Mapping[int, Attempt]) -> None:
    decision: Decision | None = after.get("decision")
    if decision is None:
        raise InvalidRun((AS_NODE, f"cannot be {DECIDE}: there is no decision yet, and the edit gives none"))
    if decision.target not in TARGETS:
        raise InvalidRun((f"{AT}.decision.target", f"must be one of {', '.join(TARGETS)}"))
    if decision.target != FINALIZE:
        check_fresh(f"{AT}.plan", after["plan"].number, attempts)
    elif decision.stop is None:
        raise InvalidRun((f"{AT}.decision.stop", f"is required where the target is {FINALIZE}"))
    else:
        leader = best(attempts.values())
        _check_proof(f"{AT}.decision.stop.outcome", decision.stop.outcome, leader)


def _from_finalize(after: CodegenState, attempts: Mapping[int, Attempt]) -> None:
    conclusion: Conclusion | None = after.get("conclusion")
    if conclusion is None:
        raise InvalidRun((AS_NODE, f"cannot be {FINALIZE}: the run has no conclusion yet"))
    _check_proof(f"{AT}.attempts", conclusion.outcome, attempts.get(conclusion.delivered))


def _check_proof(at: str, outcome: Outcome, delivered: Attempt | None) -> None:
    """A run that is to end as passed must deliver an attempt that has."""
    needed = _PROOF.get(outcome)
    if needed is not None and (delivered is None or delivered.verdict is not needed):
        which = f"attempt {delivered.number} is {delivered.verdict.value}" if delivered is not None else "none has code"
        raise InvalidRun(
            (at, f"the run would end as {outcome.value}, but {which}: verdicts come from the sandbox alone")
        )


def _from_verdict(after: CodegenState, attempts: Mapping[int, Attempt]) -> None:
    if after.get("stop") is None and not attempts:
        raise InvalidRun((AS_NODE, "must be a node that has run: there is no attempt to go on from, and no stop"))


_WAYS: Mapping[str, Callable[[CodegenState, Mapping[int, Attempt]], None]] = {
    GENERATE: _from_model,
    CANDIDATE: _from_verdict,
    EXECUTE: _from_verdict,
    DECIDE: _from_decide,
    REPAIR: _from_model,
    FINALIZE: _from_finalize,
    START: _from_start,
}
