"""What an edit may make of a state, and where the graph may go from there: rules that need no service."""

import json
from datetime import timedelta

import pytest
from support.workflow import WORKFLOW

from orchestrator.errors import InvalidRun
from orchestrator.models import Usage
from orchestrator.workflows.edits import MAXIMUM_DEPTH
from orchestrator.workflows.filesets import MOST_BYTES, MOST_FILES, edit_fault
from orchestrator.workflows.sandbox import File
from orchestrator.workflows.state import (
    Attempt,
    Conclusion,
    Decision,
    Draft,
    Outcome,
    Plan,
    Stop,
    Strategy,
    Verdict,
)

PASSED = Attempt(2, Strategy.REPAIR, Verdict.PASSED, base=1, code_hash="b", tests_passed=1, tests_total=1)
FAILED = Attempt(1, Strategy.DRAFT, Verdict.FAILED, code_hash="a", tests_total=1)
END = Stop(Outcome.PASSED, "attempt 2 passed")
STATE = {
    "attempts": [FAILED, PASSED],
    "plan": Plan(2, Strategy.REPAIR, base=1),
    "draft": None,
    "decision": Decision("finalize", "attempt 2 passed", stop=END),
    "conclusion": Conclusion(Outcome.PASSED, "attempt 2 passed", 2),
}


def edit(state, **values):
    return WORKFLOW.read_edit(json.dumps(values), state)


def refused(call, *args, **values):
    with pytest.raises(InvalidRun) as caught:
        call(*args, **values)
    ((field, text),) = caught.value.violations
    return field, text


def way(state, as_node, **values):
    WORKFLOW.check_way(state, edit(state, **values), as_node)


def test_what_was_out_of_range_before_an_edit_does_not_stop_one_of_another_field():
    old = Attempt(1, Strategy.DRAFT, Verdict.FAILED, tests_passed=2**40, tests_total=2**41, duration=timedelta(days=9))
    state = {"attempts": [old], "plan": Plan(2**31, base=9)}
    made = edit(state, plan={"note": "Be brief."})
    assert made == {"plan": Plan(2**31, base=9, note="Be brief.")}
    assert refused(edit, state, plan={"base": 2}) == (
        "edit.values_json.plan.base",
        "must be zero or an attempt that has code (none has), not 2",
    )


def test_an_attempt_without_code_cannot_be_one_that_was_executed():
    state = {"attempts": [Attempt(1, Strategy.DRAFT, Verdict.UNUSABLE)], "plan": Plan(2)}
    field, text = refused(edit, state, attempts=[{"number": 1, "verdict": "failed"}])
    assert field == "edit.values_json.attempts.0.verdict"
    assert "has no code" in text


def test_an_attempt_may_give_up_its_pass_and_never_get_it_back():
    made = edit({**STATE, "decision": None}, attempts=[{"number": 2, "verdict": "failed"}])
    state = {**STATE, **made}
    assert refused(edit, state, attempts=[{"number": 2, "verdict": "passed"}])[0].endswith("attempts.0.verdict")


@pytest.mark.parametrize("depth", [MAXIMUM_DEPTH, 900])
def test_values_nested_deeply_are_refused_whatever_field_they_are_for(depth):
    text = '{"plan": ' + '{"note": ' * depth + "1" + "}" * depth + "}"
    assert refused(WORKFLOW.read_edit, text, STATE)[0] == "edit.values_json"


def test_values_nested_less_deeply_are_refused_by_their_own_field():
    text = '{"plan": {"note": ' + "[" * (MAXIMUM_DEPTH - 2) + "]" * (MAXIMUM_DEPTH - 2) + "}}"
    assert refused(WORKFLOW.read_edit, text, STATE)[0] == "edit.values_json.plan.note"


@pytest.mark.parametrize("as_node", ["decide", "finalize"])
def test_a_run_does_not_end_as_passed_by_an_attempt_that_lost_its_pass(as_node):
    way(STATE, as_node, plan={"note": "x"})
    _, text = refused(way, STATE, as_node, attempts=[{"number": 2, "verdict": "failed"}])
    assert "would end as PASSED, but attempt" in text
    assert "is failed" in text


def test_first_drafts_do_not_take_the_places_of_attempts():
    assert refused(way, {**STATE, "candidates": 3}, "__start__", plan={"note": "x"})[0] == "edit.as_node"
    way({"plan": Plan(), "candidates": 3}, "__start__", plan={"note": "x"})


@pytest.mark.parametrize(("target", "as_node"), [("repair", "decide"), ("generate", "decide")])
def test_a_node_that_asks_the_model_needs_a_number_of_its_own(target, as_node):
    decision = {"target": target, "stop": None}
    assert refused(way, STATE, as_node, decision=decision) == (
        "edit.values_json.plan.number",
        "must be over 2, the number of the newest attempt, not 2",
    )
    way(STATE, as_node, decision=decision, plan={"number": 3})


def test_a_draft_that_has_the_number_of_an_attempt_is_not_executed():
    draft = Draft(2, Strategy.REPAIR, 1, "c", timedelta(), Usage())
    field, _ = refused(way, {**STATE, "draft": draft}, "repair", plan={"note": "x"})
    assert field == "edit.values_json.draft.number"


def test_a_state_without_a_plan_cannot_go_on():
    assert refused(way, {}, "__start__", base=0)[0] == "edit.values_json.plan"


def test_only_what_an_edit_names_anew_must_be_kept():
    made = edit(STATE, attempts=[{"number": 1, "code_hash": "c", "summary": "x"}])
    (named,) = WORKFLOW.edit_artifacts(STATE, made)
    assert (named.field, named.name) == ("edit.values_json.attempts.0.code_hash", "c")
    assert WORKFLOW.edit_artifacts(STATE, edit(STATE, attempts=[{"number": 1, "summary": "x"}])) == []


def files(count, content=b""):
    return tuple(File(f"f{number}", content) for number in range(count))


@pytest.mark.parametrize(
    ("below", "whole", "fault"),
    [
        (files(1), files(MOST_FILES), ""),
        (files(1), files(MOST_FILES + 1), "make 65 files of the draft, and at most 64 are allowed"),
        (files(80), files(80, b"x"), ""),
        (files(80), files(81), "make 81 files"),
        (files(2), files(2, b"x" * (MOST_BYTES // 2)), ""),
        (files(2), files(2, b"x" * (MOST_BYTES // 2 + 1)), "make 1048578 bytes of the draft"),
        (files(1), (*files(1), File("f0/a/b", b"")), "make 'f0' both a file and a folder of the draft"),
    ],
)
def test_the_files_of_an_edited_draft_keep_to_the_limits_of_a_solution(below, whole, fault):
    assert edit_fault(below, whole).startswith(fault)
    assert bool(edit_fault(below, whole)) is bool(fault)
