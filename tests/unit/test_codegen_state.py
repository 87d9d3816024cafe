"""Reducers, the running total, the choice of the best attempt, and checkpoints that read back what was written."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from orchestrator.models import Usage
from orchestrator.runs.checkpoints import serializer
from orchestrator.workflows.sandbox import ExecutionStatus, ReportOutcome
from orchestrator.workflows.state import (
    Attempt,
    Decision,
    Draft,
    Outcome,
    Plan,
    Progress,
    Stop,
    Strategy,
    Verdict,
    best,
    merge_attempts,
)


def attempt(number, verdict=Verdict.FAILED, **fields):
    return Attempt(number, Strategy.REPAIR, verdict, **{"code_hash": f"hash-{number}", **fields})


ATTEMPTS = st.lists(st.integers(1, 8).map(attempt), max_size=8)


@given(ATTEMPTS, ATTEMPTS)
def test_merged_attempts_are_in_order_and_have_each_number_once(known, new):
    numbers = [item.number for item in merge_attempts(known, new)]
    assert numbers == sorted({item.number for item in known + new})


@given(ATTEMPTS, ATTEMPTS)
def test_merging_the_same_attempts_twice_changes_nothing(known, new):
    once = merge_attempts(known, new)
    assert merge_attempts(once, new) == once


def test_the_newer_record_of_a_number_wins_and_neither_list_is_changed():
    known, new = [attempt(1)], [attempt(1, Verdict.PASSED)]
    assert merge_attempts(known, new)[0].verdict is Verdict.PASSED
    assert known[0].verdict is Verdict.FAILED


def test_the_best_attempt_passed_the_most_tests_and_of_equals_is_later_with_fewer_errors():
    attempts = [
        attempt(1, tests_passed=2, errors=1),
        attempt(2, tests_passed=2, errors=1),
        attempt(3, tests_passed=2, errors=2),
        attempt(4, tests_passed=1, errors=0),
    ]
    assert best(attempts).number == 2


@pytest.mark.parametrize("verdict", [Verdict.PASSED, Verdict.UNVERIFIED])
def test_success_is_better_than_any_number_of_passed_tests(verdict):
    assert best([attempt(1, verdict), attempt(2, tests_passed=9)]).number == 1


def test_an_attempt_without_code_or_with_code_of_another_is_never_the_best():
    assert best([attempt(1, code_hash=""), attempt(2, Verdict.DUPLICATE)]) is None


def test_code_without_a_verdict_is_better_than_none_and_worse_than_code_that_failed():
    assert best([attempt(1, Verdict.STOPPED)]).number == 1
    assert best([attempt(1), attempt(2, Verdict.STOPPED)]).number == 1


def test_progress_counts_each_attempt_once_and_adds_usage():
    progress = Progress()
    fragment = {"attempts": [attempt(1)], "usage": Usage(1, 10, 5)}
    assert [item.number for item in progress.apply(fragment)] == [1]
    assert progress.apply(fragment) == []
    assert progress.tokens == 30


def test_the_first_to_claim_code_has_it():
    progress = Progress([attempt(1)])
    assert progress.claim("hash-1", 2) == 1
    assert progress.claim("new", 2) == 2
    assert progress.claim("new", 3) == 2


def test_code_that_is_a_duplicate_belongs_to_whoever_had_it_first():
    progress = Progress([attempt(2, Verdict.DUPLICATE, code_hash="same")])
    assert progress.claim("same", 1) == 1


def test_code_without_a_verdict_counts_as_stopped_when_the_run_is_broken_off():
    progress = Progress()
    progress.apply({"draft": Draft(1, Strategy.DRAFT, 0, "one", timedelta(seconds=2), Usage(1, 2, 3))})
    progress.apply({"draft": Draft(2, Strategy.DRAFT, 0, "two", timedelta(), Usage())})
    progress.executing.add(2)
    progress.apply({"attempts": [attempt(3)]})
    closed = progress.close("cancelled")
    assert [(item.number, item.verdict, item.summary) for item in closed] == [
        (1, Verdict.STOPPED, "cancelled before the code was executed"),
        (2, Verdict.STOPPED, "cancelled while the code was executed"),
    ]
    assert (closed[0].duration, closed[0].usage) == (timedelta(seconds=2), Usage(1, 2, 3))
    assert progress.close("cancelled") == []
    assert best(progress.attempts).number == 3


STATE = {
    "attempts": [
        replace(
            attempt(1, duration=timedelta(seconds=1.5), usage=Usage(1, 2, 3)),
            report_outcome=ReportOutcome.FAILED,
            execution_status=ExecutionStatus.FAILED,
        )
    ],
    "plan": Plan(2, Strategy.FRESH, warm=True, note="näher"),
    "draft": Draft(1, Strategy.DRAFT, 0, "hash", timedelta(seconds=2), Usage()),
    "decision": Decision("finalize", "why", stop=Stop(Outcome.FAILED, "why")),
}


def test_a_checkpoint_reads_back_every_record_of_the_state():
    serde = serializer()
    assert serde.loads_typed(serde.dumps_typed(STATE)) == STATE


def test_a_checkpoint_reads_back_no_other_type():
    foreign = JsonPlusSerializer(allowed_msgpack_modules=True).dumps_typed({"value": Foreign(1)})
    read = serializer().loads_typed(foreign)
    assert not isinstance(read["value"], Foreign)


class Foreign:
    """Stands for whatever somebody writes into the database."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def model_dump(self) -> dict:
        return {"number": self.number}
