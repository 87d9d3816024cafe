"""Where the `codegen` graph goes next: each policy as a row of attempts and the decision that follows."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.workflows.routes import (
    EXECUTION_ADVICE,
    REPORT_ADVICE,
    Situation,
    after_decide,
    after_model,
    after_start,
    decide,
    next_base,
)
from orchestrator.workflows.sandbox import ExecutionStatus, ReportOutcome
from orchestrator.workflows.state import Attempt, Decision, Draft, Outcome, Plan, Stop, Strategy, Verdict

DRAFT, REPAIR, DIAGNOSE, REWRITE, FRESH = Strategy


def attempt(number, strategy=REPAIR, verdict=Verdict.FAILED, failure="", **fields):
    code = "" if verdict in {Verdict.UNUSABLE, Verdict.ERROR} else f"hash-{number}"
    defaults = {"code_hash": code, "summary": f"summary of {number}", "fingerprint": failure or f"failure-{number}"}
    return Attempt(number, strategy, verdict, **{**defaults, **fields})


def next_step(attempts, *, max_attempts=10, base=0, stop=None, limit=None):
    situation = Situation(attempts, max_attempts, base, stop, limit)
    return decide(replace(situation, base=next_base(situation)))


def test_one_draft_starts_at_generate_and_several_at_candidates():
    assert after_start(1).target == "generate"
    assert after_start(3).target == "candidate"


def test_only_code_is_executed():
    draft = Draft(1, DRAFT, 0, "hash", None, None)
    unusable = attempt(1, DRAFT, Verdict.UNUSABLE, summary="the reply holds no code")
    assert after_model({"draft": draft}).target == "execute"
    assert after_model({"draft": None, "attempts": [unusable]}).target == "decide"
    assert after_model({"draft": None, "attempts": [unusable]}).reason == "the reply holds no code"
    assert after_model({"draft": draft, "stop": Stop(Outcome.ERROR, "down")}).target == "decide"


def test_the_way_out_of_decide_is_its_decision():
    way = after_decide({"decision": Decision("repair", "because", plan=Plan())})
    assert (way.target, way.reason) == ("repair", "because")


def test_without_any_attempt_the_run_ends():
    assert decide(Situation([], 4)).stop.outcome is Outcome.ERROR
    limit = Stop(Outcome.BUDGET_EXHAUSTED, "late")
    assert decide(Situation([], 4, limit=limit)).stop == limit


def test_a_failed_draft_is_repaired():
    decision = next_step([attempt(1, DRAFT)])
    assert decision.target == "repair"
    assert decision.plan == Plan(number=2, strategy=REPAIR, base=1)
    assert decision.reason == "attempt 1 failed: summary of 1"


def test_two_repairs_are_followed_by_a_warm_fresh_sample():
    decision = next_step([attempt(1, DRAFT), attempt(2), attempt(3)], base=2)
    assert decision.target == "generate"
    assert decision.plan == Plan(number=4, strategy=FRESH, base=0, warm=True)


def test_a_fresh_sample_may_be_repaired_twice_again():
    attempts = [attempt(1, DRAFT), attempt(2), attempt(3), attempt(4, FRESH)]
    assert next_step(attempts).plan.strategy is REPAIR
    assert next_step([*attempts, attempt(5), attempt(6)]).plan.strategy is FRESH


@pytest.mark.parametrize(
    ("used", "expected"),
    [([], DIAGNOSE), ([DIAGNOSE], REWRITE), ([DIAGNOSE, REWRITE], FRESH), ([DIAGNOSE, FRESH], REWRITE)],
)
def test_the_same_failure_again_takes_the_next_way_out(used, expected):
    attempts = [attempt(1, DRAFT, failure="same"), attempt(2, failure="same")]
    attempts += [attempt(number, strategy, failure="same") for number, strategy in enumerate(used, 3)]
    decision = next_step(attempts, base=1)
    assert decision.plan.strategy is expected
    assert decision.plan.warm  # the same question at the same temperature has the same answer
    assert "failed in the same way as attempt 1" in decision.reason


def test_a_circle_with_no_way_left_is_stuck():
    ways = [DRAFT, REPAIR, DIAGNOSE, REWRITE, FRESH]
    decision = next_step([attempt(number, way, failure="same") for number, way in enumerate(ways, 1)], base=4)
    assert decision.target == "finalize"
    assert decision.stop.outcome is Outcome.STUCK
    assert "the best is attempt 5" in decision.reason


def test_a_failure_that_comes_back_later_is_a_circle_too():
    attempts = [attempt(1, DRAFT, failure="A"), attempt(2, failure="B"), attempt(3, failure="A")]
    assert next_step(attempts, base=2).plan.strategy is DIAGNOSE


def test_code_that_was_tried_before_is_a_circle():
    repeated = attempt(2, verdict=Verdict.DUPLICATE, fingerprint="")
    decision = next_step([attempt(1, DRAFT), repeated], base=1)
    assert decision.plan.strategy is DIAGNOSE
    assert decision.plan.base == 1
    assert "repeated code" in decision.plan.note


def test_drafts_that_fail_alike_side_by_side_are_no_circle():
    decision = next_step([attempt(number, DRAFT, failure="same") for number in (1, 2, 3)])
    assert decision.plan.strategy is REPAIR


def test_the_best_draft_is_the_base():
    drafts = [attempt(1, DRAFT, tests_passed=1), attempt(2, DRAFT, tests_passed=3), attempt(3, DRAFT, tests_passed=2)]
    decision = next_step(drafts)
    assert decision.plan.base == 2
    assert decision.plan.number == 4


def test_a_repair_that_breaks_a_passing_test_is_not_the_new_base():
    broken = attempt(2, base=1, regressions=2, regressed="test_a, test_b")
    decision = next_step([attempt(1, DRAFT), broken], base=1)
    assert decision.plan.base == 1
    assert "broke test_a, test_b" in decision.reason
    assert "Keep that working" in decision.plan.note


def test_an_unusable_reply_leaves_the_base_and_tells_its_fault():
    unusable = attempt(2, verdict=Verdict.UNUSABLE, summary="the reply holds no code")
    decision = next_step([attempt(1, DRAFT), unusable], base=1)
    assert decision.plan.base == 1
    assert decision.plan.note == "Your last reply could not be used: the reply holds no code."


def test_a_truncated_reply_is_followed_by_one_with_more_room_that_is_asked_to_be_shorter():
    cut = attempt(1, DRAFT, Verdict.UNUSABLE, truncated=True)
    decision = next_step([cut])
    assert decision.plan.wide
    assert "Be shorter" in decision.plan.note


def test_without_any_code_the_only_way_out_is_a_fresh_sample():
    empty = [
        attempt(1, DRAFT, Verdict.UNUSABLE, failure="empty"),
        attempt(2, verdict=Verdict.UNUSABLE, failure="empty"),
    ]
    assert next_step(empty).plan.strategy is FRESH
    decision = next_step([*empty, attempt(3, FRESH, Verdict.UNUSABLE, failure="empty")])
    assert decision.stop.outcome is Outcome.STUCK


@pytest.mark.parametrize(
    ("verdict", "outcome"), [(Verdict.PASSED, Outcome.PASSED), (Verdict.UNVERIFIED, Outcome.UNVERIFIED)]
)
def test_success_ends_the_run_whatever_limit_was_met_meanwhile(verdict, outcome):
    stop = Stop(Outcome.BUDGET_EXHAUSTED, "late")
    decision = next_step([attempt(1, DRAFT), attempt(2, verdict=verdict)], max_attempts=2, stop=stop, limit=stop)
    assert decision.stop.outcome is outcome


def test_a_pass_beats_an_unverified_candidate():
    decision = next_step([attempt(1, DRAFT, Verdict.UNVERIFIED), attempt(2, DRAFT, Verdict.PASSED)])
    assert decision.stop.outcome is Outcome.PASSED


def test_used_up_attempts_are_a_failure_even_when_the_tokens_are_used_up_as_well():
    limit = Stop(Outcome.BUDGET_EXHAUSTED, "tokens")
    decision = next_step([attempt(1, DRAFT), attempt(2, tests_passed=2, tests_total=3)], max_attempts=2, limit=limit)
    assert decision.stop.outcome is Outcome.FAILED
    assert decision.reason == "all 2 attempts are used up; the best is attempt 2 (2 of 3 tests passed)"


def test_a_limit_ends_the_run_before_the_next_attempt():
    limit = Stop(Outcome.BUDGET_EXHAUSTED, "tokens")
    assert next_step([attempt(1, DRAFT)], limit=limit).stop == limit


def test_an_error_ends_the_run_only_when_no_candidate_did_better():
    error = attempt(1, DRAFT, Verdict.ERROR, summary="401")
    assert next_step([error]).stop == Stop(Outcome.ERROR, "401")
    assert next_step([error, attempt(2, DRAFT)]).plan.base == 2


def test_every_ending_has_its_advice_and_those_that_say_all_by_themselves_have_none():
    assert set(REPORT_ADVICE) == set(ReportOutcome)
    assert set(EXECUTION_ADVICE) == set(ExecutionStatus)
    advised = [ending.value for table in (REPORT_ADVICE, EXECUTION_ADVICE) for ending, text in table.items() if text]
    assert advised == ["TAMPERED", "INCOMPLETE", "VIOLATION"]


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"report_outcome": ReportOutcome.TAMPERED}, "leave the tests, the test framework"),
        ({"report_outcome": ReportOutcome.INCOMPLETE}, "Do not call exit()"),
        ({"execution_status": ExecutionStatus.VIOLATION}, "a system call that is not allowed"),
    ],
)
def test_what_must_not_be_done_again_is_told_with_what_was_seen(fields, advice):
    decision = next_step([attempt(1, DRAFT, summary="canaries passed", **fields)])
    assert decision.plan.strategy is REPAIR
    assert advice in decision.plan.note
    assert decision.plan.note.endswith("What was seen: canaries passed.")


def test_an_attempt_that_tampered_is_no_base_where_there_is_an_honest_one():
    tampered = attempt(2, report_outcome=ReportOutcome.TAMPERED)
    assert next_step([attempt(1, DRAFT), tampered], base=1).plan.base == 1
    assert next_step([attempt(1, DRAFT, report_outcome=ReportOutcome.TAMPERED)]).plan.base == 1


VERDICTS = st.sampled_from([Verdict.FAILED, Verdict.UNUSABLE, Verdict.DUPLICATE])


@given(st.lists(st.tuples(VERDICTS, st.sampled_from("ABC"), st.booleans()), min_size=30, max_size=30))
def test_every_run_ends_within_its_attempts(script):
    """Played through with any model, the loop never exceeds its attempts and never corrects what has no code."""
    attempts, base = [], 0
    plan = Plan()
    for verdict, failure, breaks in script:
        attempts.append(
            attempt(plan.number, plan.strategy, verdict, failure=failure, base=plan.base, regressions=int(breaks))
        )
        situation = Situation(attempts, 20, base)
        base = next_base(situation)
        decision = decide(replace(situation, base=base))
        assert decision.reason
        if decision.target == "finalize":
            assert decision.stop.outcome in {Outcome.FAILED, Outcome.STUCK}
            return
        plan = decision.plan
        assert plan.number == len(attempts) + 1
        if plan.base:
            assert attempts[plan.base - 1].verdict is Verdict.FAILED
    pytest.fail("the run did not end")
