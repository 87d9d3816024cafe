"""A run and its replay are equal to the byte, whatever its clock, its model and its candidates did."""

import asyncio

import pytest
from support.workflow import RIGHT, ScriptedSandbox, bench, dies_after, fenced, wrong

from orchestrator.errors import Diverged
from orchestrator.models import ContextTooLong, ModelRejected, Usage
from orchestrator.workflows import Finished, Outcome


async def equal_replay(made):
    """Drives the run, replays it, and gives back the end after comparing every state."""
    end = await made.stint()
    asked, ran = len(made.models.prompts), len(made.sandbox.ran)
    replayed, states = await made.replay()
    assert replayed == end
    assert states == await made.states()
    assert (len(made.models.prompts), len(made.sandbox.ran)) == (asked, ran)
    assert isinstance(end, Finished)
    return end.conclusion


async def test_a_run_of_several_attempts_is_replayed_to_the_byte(tmp_path):
    replies = [fenced(wrong(1)), "I cannot.", fenced(wrong(1)), fenced(wrong(2)), fenced(RIGHT)]
    async with bench(tmp_path, lambda n: replies[n - 1], max_attempts=6) as made:
        conclusion = await equal_replay(made)
        assert conclusion.outcome is Outcome.PASSED
        assert (await made.names())[:4] == ["generate/1/model", "execute/1/sandbox", "repair/2/model", "repair/3/model"]
        durations = [attempt.duration for attempt in made.context.progress.attempts]
        assert all(duration.total_seconds() > 0 for duration in durations)


async def test_candidates_are_replayed_to_the_byte_whoever_was_first(tmp_path):
    gate = asyncio.Event()

    async def script(number):
        if number == 3:
            await gate.wait()
        return fenced(RIGHT if number == 3 else wrong(number))

    async def slow(code):
        if "a + b" not in code:
            gate.set()
            await asyncio.get_running_loop().create_future()

    async with bench(tmp_path, script, ScriptedSandbox(slow), candidates=3) as made:
        conclusion = await equal_replay(made)
        assert (conclusion.outcome, conclusion.delivered) == (Outcome.PASSED, 3)
        stopped = [attempt for attempt in made.context.progress.attempts if attempt.number != 3]
        assert [attempt.summary for attempt in stopped] == ["stopped: attempt 3 passed first"] * 2
        assert made.context.progress.usage == Usage(3, 60, 30)


async def test_candidates_with_the_same_code_are_replayed_to_the_byte(tmp_path):
    async with bench(tmp_path, lambda n: fenced(wrong(1) if n < 4 else RIGHT), candidates=3, max_attempts=5) as made:
        assert (await equal_replay(made)).outcome is Outcome.PASSED
        assert len(made.sandbox.ran) == 2
        assert sum(name.endswith("/race") for name in await made.names()) == 3


async def test_a_token_budget_is_met_at_the_same_place(tmp_path):
    async with bench(tmp_path, lambda n: fenced(wrong(n)), token_budget=50) as made:
        conclusion = await equal_replay(made)
        assert conclusion.outcome is Outcome.BUDGET_EXHAUSTED
        assert (await made.names())[-1] == "decide/2/limit"
        kept = [entry for entry in await made.entries() if entry.kind != "limit"]
        with pytest.raises(Diverged, match="repair/3/model"):  # the tape alone says where a limit is met
            await made.replay(entries=kept)


async def test_time_that_is_up_during_a_call_is_up_at_the_same_place(tmp_path):
    async def script(number):
        if number == 2:
            await asyncio.get_running_loop().create_future()
        return fenced(wrong(number))

    async with bench(tmp_path, script, seconds=0.3) as made:
        conclusion = await equal_replay(made)
        assert conclusion.outcome is Outcome.BUDGET_EXHAUSTED
        assert conclusion.reason.endswith("was used up while the model answered")


@pytest.mark.parametrize(
    "error",
    [
        ModelRejected("no such model", status=404, usage=Usage(1, 7, 0)),
        ContextTooLong("7 tokens too many", usage=Usage(2, 0, 3)),
    ],
)
async def test_a_model_error_is_replayed_with_what_it_had_cost(tmp_path, error):
    async with bench(tmp_path, lambda _: error) as made:
        conclusion = await equal_replay(made)
        assert conclusion.outcome is Outcome.ERROR
        assert str(error) in conclusion.reason
        assert made.context.progress.usage == error.usage


async def test_a_replay_with_another_prompt_says_where_it_differs(tmp_path):
    async with bench(tmp_path, lambda n: fenced(wrong(1) if n == 1 else RIGHT)) as made:
        await made.stint()
        with pytest.raises(Diverged) as caught:
            await made.replay(prompts={"system": "Answer in verse."})
    assert (caught.value.kind, caught.value.name) == ("prompt", "generate/1/model")
    assert "+Answer in verse." in caught.value.detail


async def test_a_replay_goes_on_live_from_a_node(tmp_path):
    replies = [wrong(1), RIGHT, wrong(5), RIGHT]
    async with bench(tmp_path, lambda n: fenced(replies[n - 1])) as made:
        await made.stint()
        end, _ = await made.replay(live_from="repair")
        assert (end.conclusion.outcome, end.conclusion.delivered) == (Outcome.PASSED, 3)
        assert len(made.models.prompts) == 4


async def test_a_replay_that_keeps_a_tape_of_its_own_can_be_broken_off(tmp_path):
    async with bench(tmp_path, lambda n: fenced(wrong(1) if n == 1 else RIGHT)) as made:
        end = await made.stint()
        original = await made.entries()
        (tmp_path / "other").mkdir()
        async with bench(tmp_path / "other", lambda _: "") as other:
            other.original = original
            other.artifacts = made.artifacts
            await dies_after(other, "execute/1/sandbox")
            assert await other.stint() == end
            assert [entry.name for entry in await other.entries()] == [entry.name for entry in original]
            assert [entry.response for entry in await other.entries()] == [entry.response for entry in original]
            assert await other.states() == await made.states()
            assert (other.models.prompts, other.sandbox.ran) == ([], [])


async def test_a_secret_reaches_neither_the_tape_nor_the_state(tmp_path):
    async with bench(tmp_path, lambda _: fenced(f"{RIGHT}# key-123")) as made:
        end = await made.stint(redact=lambda text: text.replace("key-123", "***"))
        assert end.conclusion.outcome is Outcome.PASSED
        assert not any("key-123" in entry.response + entry.request for entry in await made.entries())
        assert "key-123" not in made.sandbox.ran[0]
