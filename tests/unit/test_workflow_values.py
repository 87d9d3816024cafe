"""What comes from outside is made fit to be kept, errors are read back as they were, edits change what they name."""

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.workflow import WORKFLOW, ScriptedSandbox, bench, fenced

from orchestrator.errors import InvalidRun, OutOfTime, SandboxBusy, SandboxError, SandboxRejected, SandboxUnavailable
from orchestrator.models import (
    ContextTooLong,
    MalformedReply,
    ModelError,
    ModelRejected,
    ModelUnavailable,
    Reply,
    UnknownRole,
    Usage,
)
from orchestrator.models.errors import EmbeddedModelFailed
from orchestrator.runs.checkpoints import serializer
from orchestrator.workflows import Outcome, check_prompt
from orchestrator.workflows.answers import MODEL, SANDBOX
from orchestrator.workflows.plain import GREATEST_INT, canonical, clean, unkeepable
from orchestrator.workflows.sandbox import (
    Execution,
    ExecutionStatus,
    Failure,
    ReportOutcome,
    TestCase,
    TestOutcome,
    TestReport,
)
from orchestrator.workflows.state import Attempt, Decision, Plan, Stop, Strategy, Verdict
from orchestrator.workflows.templates import prompt_names, template

BAD = "\ud800 and \x00 and "
HUGE = 10**30
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec=None)), inner),
)


@given(VALUES)
def test_clean_values_can_be_kept_anywhere_and_cleaning_them_again_changes_nothing(value):
    cleaned = clean(value)
    assert unkeepable(cleaned) == ""
    assert clean(cleaned) == cleaned
    canonical(cleaned).encode("ascii")
    serde = serializer()
    assert serde.loads_typed(serde.dumps_typed(cleaned)) == cleaned
    if unkeepable(value) == "":
        assert cleaned == value


class HostileSandbox(ScriptedSandbox):
    """Reports texts that no database takes."""

    async def run_tests(self, job, **_):
        self.ran.append(job)
        case = TestCase(f"test::{BAD}", TestOutcome.FAILED, failure=Failure(BAD, f"{BAD}{len(self.ran)}"))
        report = TestReport(ReportOutcome.FAILED, BAD, tests=(case,), counts={TestOutcome.FAILED: HUGE})
        return report, Execution(ExecutionStatus.FAILED, BAD, exit_code=HUGE, peak_memory_bytes=HUGE)


@pytest.mark.parametrize("text", [fenced(f"def add(a, b):\n    return 1  # {BAD}"), f"{BAD} I cannot", fenced(BAD)])
async def test_hostile_texts_and_numbers_pass_tape_and_checkpoints(tmp_path, text):
    reply = Reply(text, BAD, "stop", Usage(1, HUGE, HUGE), BAD, timedelta())
    async with bench(tmp_path, lambda _: reply, HostileSandbox(), max_attempts=3) as made:
        end = await made.stint()
        assert end.conclusion.outcome in {Outcome.FAILED, Outcome.STUCK}
        replayed, states = await made.replay()
        assert (replayed, states) == (end, await made.states())
        for state, _ in states:
            assert unkeepable(json.loads(state)) == ""
        assert made.context.progress.usage.input_tokens == GREATEST_INT
        assert made.tokens
        assert unkeepable(made.tokens) == ""


async def test_a_hostile_error_is_fit_to_be_kept(tmp_path):
    async with bench(tmp_path, lambda _: ModelUnavailable(BAD, usage=Usage(HUGE, 0, 0))) as made:
        end = await made.stint()
        assert end.conclusion.reason == "the model could not be used: \ufffd and \ufffd and"
        assert made.context.progress.usage.model_calls == GREATEST_INT


@pytest.mark.parametrize(
    ("codec", "error"),
    [
        (MODEL, ModelError("a", usage=Usage(1, 2, 3))),
        (MODEL, ModelUnavailable("b", usage=Usage(1, 2, 3))),
        (MODEL, ModelRejected("c", status=401, usage=Usage(1, 2, 3))),
        (MODEL, ContextTooLong("d")),
        (MODEL, MalformedReply("e", usage=Usage(4, 5, 6))),
        (MODEL, UnknownRole("f")),
        (MODEL, OutOfTime("g")),
        (SANDBOX, SandboxError("h")),
        (SANDBOX, SandboxBusy("i", timedelta(seconds=1.5))),
        (SANDBOX, SandboxBusy("j")),
        (SANDBOX, SandboxUnavailable("k", timedelta(seconds=2))),
        (SANDBOX, SandboxRejected("l")),
        (SANDBOX, OutOfTime("m")),
    ],
)
def test_errors_are_read_back_as_they_were(codec, error):
    assert isinstance(error, codec.errors)
    again = codec.load_error(json.loads(canonical(codec.dump_error(error))))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_an_error_of_a_narrower_kind_is_read_back_as_the_nearest_that_is_known():
    again = MODEL.load_error(MODEL.dump_error(EmbeddedModelFailed("no weights", usage=Usage(1, 0, 0))))
    assert type(again) is ModelUnavailable
    assert (str(again), again.usage) == ("no weights", Usage(1, 0, 0))


STATE = {
    "attempts": [Attempt(1, Strategy.DRAFT, Verdict.FAILED, code_hash="a"), Attempt(2, Strategy.REPAIR, Verdict.ERROR)],
    "base": 1,
    "plan": Plan(3, Strategy.REPAIR, base=1),
    "stop": None,
    "decision": Decision("repair", "why", plan=Plan(3)),
    "usage": Usage(2, 3, 4),
}


def edit(**values):
    return WORKFLOW.read_edit(json.dumps(values), STATE)


def test_an_edit_changes_the_given_fields_of_a_record_and_no_other():
    assert edit(plan={"strategy": "rewrite", "note": "Be brief."}) == {
        "plan": Plan(3, Strategy.REWRITE, base=1, note="Be brief.")
    }
    assert edit(attempts=[{"number": 2, "verdict": "unusable"}]) == {
        "attempts": [Attempt(2, Strategy.REPAIR, Verdict.UNUSABLE)]
    }
    assert edit(decision={"plan": {"warm": True}}) == {"decision": Decision("repair", "why", plan=Plan(3, warm=True))}
    assert edit(stop={"outcome": "STUCK", "reason": "no"}, base=0) == {"stop": Stop(Outcome.STUCK, "no"), "base": 0}
    assert edit(stop=None) == {"stop": None}


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"usage": {}}, "usage"),
        ({"nonsense": 1}, "nonsense"),
        ({"plan": {"number": "many"}}, "plan.number"),
        ({"plan": {"colour": "red"}}, "plan.colour"),
        ({"plan": {"number": HUGE}}, "plan"),
        ({"plan": {"note": "a\x00b"}}, "plan"),
        ({"plan": {"note": "\ud800"}}, "plan"),
        ({"plan": None}, "plan"),
        ({"attempts": [{"number": 9}]}, "attempts"),
        ({"attempts": [{"number": []}]}, "attempts"),
        ({"attempts": {}}, "attempts"),
        ({"attempts": [{"number": 1, "usage": {"tokens": 1}}]}, "attempts.0.usage.tokens"),
        ({"decision": {"plan": {"strategy": "luck"}}}, "decision.plan.strategy"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused_by_the_name_of_its_field(values, field):
    with pytest.raises(InvalidRun) as caught:
        edit(**values)
    ((path, text),) = caught.value.violations
    assert path == f"edit.values_json.{field}"
    assert text


@pytest.mark.parametrize("text", ["", "[]", "{", '"plan"', "[" * 100_000, '{"base": NaN}'])
def test_an_edit_that_is_no_object_is_refused(text):
    with pytest.raises(InvalidRun):
        WORKFLOW.read_edit(text, STATE)


def test_equal_states_have_equal_texts_whatever_their_order():
    text = WORKFLOW.state_json(STATE)
    assert text == WORKFLOW.state_json(dict(reversed(STATE.items())))
    assert text == canonical(json.loads(text))
    assert WORKFLOW.state_json({**STATE, "base": 2}) != text


@pytest.mark.parametrize("name", prompt_names())
def test_every_prompt_may_be_replaced_by_itself(name):
    assert check_prompt(name, template(name).text) == ""


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("haiku", "x", "there is no prompt 'haiku'"),
        ("system", " \n", "must not be empty"),
        ("draft", "Just do it.", "must use the slots"),
        ("system", "You are {{who}}.", "uses {{who}}"),
    ],
)
def test_a_prompt_with_other_slots_is_refused(name, text, fault):
    assert fault in check_prompt(name, text)


async def test_a_replaced_prompt_is_what_the_model_is_told(tmp_path):
    text = "PLEASE " + template("draft").text
    async with bench(tmp_path, lambda _: fenced("x = 1"), max_attempts=1, prompts={"draft": text}) as made:
        await made.stint()
        assert made.models.prompts[0].startswith("PLEASE ")
        assert "Write add(a, b)." in made.models.prompts[0]


@pytest.mark.parametrize("candidates", [1, 2])
async def test_a_replaced_prompt_that_does_not_fit_ends_the_run_with_a_reason(tmp_path, candidates):
    prompts = {"system": "{{nonsense}}"}
    async with bench(tmp_path, lambda _: "", prompts=prompts, candidates=candidates) as made:
        end = await made.stint()
        assert (end.conclusion.outcome, end.conclusion.reason) == (
            Outcome.ERROR,
            "prompt system: no value for nonsense",
        )
