"""A stint that is broken off anywhere is gone on with: nothing is asked for twice, and a replay gives equal states."""

import ast
import asyncio
import contextlib
from pathlib import Path

import pytest
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt
from support.waiting import until
from support.workflow import RIGHT, ScriptedSandbox, bench, dies, dies_after, fenced, wrong

from orchestrator import workflows
from orchestrator.errors import Fenced, StoreUnavailable
from orchestrator.models import Usage
from orchestrator.workflows import (
    AttemptFinished,
    ExecutionFinished,
    NodeFinished,
    NodeStarted,
    Outcome,
    Paused,
    RouteDecision,
    Stop,
    Verdict,
    break_off,
)


@pytest.mark.parametrize("name", ["generate/1/model", "execute/1/sandbox", "repair/2/model", "execute/2/sandbox"])
async def test_an_answer_that_was_written_is_not_asked_for_again(tmp_path, name):
    async with bench(tmp_path, lambda n: fenced(wrong(1) if n == 1 else RIGHT)) as made:
        await dies_after(made, name)
        end = await made.stint()
        assert (end.conclusion.outcome, end.conclusion.delivered) == (Outcome.PASSED, 2)
        assert (len(made.models.prompts), len(made.sandbox.ran)) == (2, 2)
        assert await made.names() == ["generate/1/model", "execute/1/sandbox", "repair/2/model", "execute/2/sandbox"]
        assert made.context.progress.usage == Usage(2, 40, 20)
        replayed, states = await made.replay()
        assert replayed == end
        assert [state for state, _ in states] == [state for state, _ in await made.states()]


async def test_a_call_that_had_no_answer_is_made_again(tmp_path):
    started = asyncio.Event()

    async def hang(_code):
        if not started.is_set():
            started.set()
            await asyncio.get_running_loop().create_future()

    async with bench(tmp_path, lambda _: fenced(RIGHT), ScriptedSandbox(hang)) as made:
        work = asyncio.create_task(made.stint())
        await started.wait()
        await dies(made, work)
        assert (await made.stint()).conclusion.outcome is Outcome.PASSED
        assert (len(made.models.prompts), len(made.sandbox.ran)) == (1, 2)


async def test_what_is_told_of_a_step_carries_its_id_and_of_a_broken_one_does_not(tmp_path):
    async with bench(tmp_path, lambda _: fenced(RIGHT)) as made:
        await dies_after(made, "execute/1/sandbox")
        await made.stint()
        starts = [(step_id, event) for step_id, event in made.events(NodeStarted) if event.node == "execute"]
        ends = [(step_id, event) for step_id, event in made.events(NodeFinished) if event.node == "execute"]
        step_id = starts[0][0]
        assert [(told_in, event.step_id) for told_in, event in starts] == [(step_id, step_id)] * 2
        assert [(told_in, event.error) for told_in, event in ends] == [("", "cancelled"), (step_id, "")]
        assert {event.step_id for _, event in ends} == {step_id}
        assert [told_in for told_in, _ in made.events(ExecutionFinished)] == [step_id]
        assert all(told_in for kind in (AttemptFinished, RouteDecision) for told_in, _ in made.events(kind))
        told = [told_in for told_in, event in made.events(RouteDecision) if event.source == "generate"]
        assert told == [event.step_id for _, event in made.events(NodeFinished) if event.node == "generate"]


async def test_what_a_step_tells_is_written_before_it_is_over(tmp_path):
    async with bench(tmp_path, lambda n: fenced(wrong(n)), candidates=2, max_attempts=3) as made:
        written = []

        async def flush():
            written.extend(made.told[len(written) :])

        made.flush = flush
        end = await made.stint(before=["*"])
        while isinstance(end, Paused):
            assert written == made.told
            end = await made.stint(before=["*"])
        assert written == made.told


@pytest.mark.parametrize("candidates", [1, 2])
@pytest.mark.parametrize("failing", range(1, 9))
async def test_a_step_whose_events_could_not_be_written_is_done_again(tmp_path, failing, candidates):
    script = lambda n: fenced(wrong(n) if n <= candidates else RIGHT)  # noqa: E731
    async with bench(tmp_path, script, candidates=candidates, max_attempts=4) as made:
        flushes = iter(range(1, 100))

        async def flush():
            if next(flushes) == failing:
                raise StoreUnavailable("the database does not answer")

        made.flush = flush
        with pytest.raises(StoreUnavailable):
            await made.stint()
        made.flush = None
        await made.again()
        end = await made.stint()
        assert end.conclusion.outcome is Outcome.PASSED
        assert made.context.progress.usage == Usage(candidates + 1, 20 * (candidates + 1), 10 * (candidates + 1))
        assert (await made.replay())[1] == await made.states()


async def test_the_end_of_a_node_tells_what_went_in_and_out(tmp_path):
    async with bench(tmp_path, lambda n: fenced(wrong(1) if n == 1 else RIGHT)) as made:
        await made.stint()
        generate, _, decide, repair, *_ = [event for _, event in made.events(NodeFinished)]
        assert generate.usage == repair.usage == Usage(1, 20, 10)
        assert decide.usage == Usage()
        assert generate.input_bytes.keys() >= {"plan"}
        assert repair.input_bytes["attempts"] > 200
        assert generate.output_previews["draft"].startswith('{"base":0,"code_hash":"')
        assert all(len(text) <= 200 for text in repair.output_previews.values())


async def test_a_limit_is_not_met_before_an_answer_that_was_given(tmp_path):
    async with bench(tmp_path, lambda _: fenced(RIGHT)) as made:
        await dies_after(made, "generate/1/model")
        made.seconds = 0
        end = await made.stint()
        assert end.conclusion.outcome is Outcome.BUDGET_EXHAUSTED
        (attempt,) = made.context.progress.attempts
        assert attempt.code_hash
        assert attempt.summary.endswith("before attempt 1 was executed")
        replayed, states = await made.replay()
        assert (replayed, states) == (end, await made.states())


async def test_candidates_that_were_done_are_not_begun_again(tmp_path):
    blocked = asyncio.Event()

    async def hang(code):
        if "return 2" in code and not blocked.is_set():
            blocked.set()
            await asyncio.get_running_loop().create_future()

    sandbox = ScriptedSandbox(hang)
    async with bench(tmp_path, lambda n: fenced(wrong(n)), sandbox, candidates=3, max_attempts=3) as made:
        work = asyncio.create_task(made.stint())
        await blocked.wait()
        await until_written(made, 2)
        await dies(made, work)
        end = await made.stint()
        assert end.conclusion.outcome is Outcome.FAILED
        assert (len(made.models.prompts), len(sandbox.ran)) == (3, 4)
        assert sorted(attempt.number for attempt in made.context.progress.attempts) == [1, 2, 3]
        assert made.context.progress.usage == Usage(3, 60, 30)
        replayed, states = await made.replay()
        assert (replayed, states) == (end, await made.states())


async def until_taped(made, count):
    """Waits until so many entries are on the run's tape."""
    async with asyncio.timeout(5):
        while True:
            if len(await made.entries()) >= count:
                return
            await asyncio.sleep(0.002)


async def until_written(made, count):
    """Waits until so many tasks of the step at work have left their results with the checkpoint."""
    async with asyncio.timeout(5):
        while True:
            state = await made.graph().aget_state({"configurable": {"thread_id": made.run_id}})
            if sum(task.result is not None for task in state.tasks) >= count:
                return
            await asyncio.sleep(0.002)


async def test_a_verdict_that_was_told_stays_whichever_candidate_is_begun_again_first(tmp_path):
    failed = asyncio.Event()

    async def second(code):
        if "a + b" in code:
            await failed.wait()

    async def hang_at_the_end():
        attempts = made.events(AttemptFinished)
        if attempts:
            failed.set()
            await asyncio.get_running_loop().create_future()

    script = lambda n: fenced(RIGHT if n == 2 else wrong(n))  # noqa: E731
    async with bench(tmp_path, script, ScriptedSandbox(second), candidates=2) as made:
        made.flush = hang_at_the_end
        work = asyncio.create_task(made.stint())
        await until(lambda: len(made.events(AttemptFinished)) == 2)
        await dies(made, work)
        made.flush = None
        end = await made.stint()
        assert (end.conclusion.outcome, end.conclusion.delivered) == (Outcome.PASSED, 2)
        told = {(event.attempt.number, event.attempt.verdict) for _, event in made.events(AttemptFinished)}
        assert told == {(1, Verdict.FAILED), (2, Verdict.PASSED)}
        assert made.context.progress.usage == Usage(2, 40, 20)
        assert (await made.replay())[1] == await made.states()


async def test_a_candidate_that_is_begun_again_learns_who_has_passed(tmp_path):
    let_go = asyncio.Event()

    async def cling(code):
        if "a + b" not in code:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()
            await let_go.wait()  # it dies before it can leave a word
            raise asyncio.CancelledError

    sandbox = ScriptedSandbox(cling)
    script = lambda n: fenced(RIGHT if n == 2 else wrong(n))  # noqa: E731
    async with bench(tmp_path, script, sandbox, candidates=2) as made:
        work = asyncio.create_task(made.stint())
        await until_written(made, 1)
        asyncio.get_running_loop().call_soon(let_go.set)
        await dies(made, work)
        assert "candidate/1/race" not in await made.names()
        end = await made.stint()
        assert (end.conclusion.outcome, end.conclusion.delivered) == (Outcome.PASSED, 2)
        assert (len(made.models.prompts), len(sandbox.ran)) == (2, 2)
        loser = made.context.progress.find(1)
        assert (loser.verdict, loser.summary) == (Verdict.STOPPED, "stopped: attempt 2 passed first")
        assert (loser.usage, made.context.progress.usage) == (Usage(1, 20, 10), Usage(2, 40, 20))
        replayed, states = await made.replay()
        assert (replayed, states) == (end, await made.states())


@pytest.mark.parametrize("candidates", [1, 2])
async def test_who_has_lost_the_run_writes_nothing_and_goes_no_further(tmp_path, candidates):
    async with bench(tmp_path, lambda _: fenced(RIGHT), candidates=candidates) as made:
        lost = made.claim
        await made.again()
        held, made.claim = made.claim, lost
        with pytest.raises(Fenced):
            await made.stint()
        assert await made.names() == []
        assert made.sandbox.ran == []
        made.claim = held
        assert (await made.stint()).conclusion.outcome is Outcome.PASSED


@pytest.mark.parametrize("candidates", [1, 2])
async def test_a_database_that_does_not_answer_is_no_end_of_the_run(tmp_path, candidates):
    async with bench(tmp_path, lambda _: fenced(RIGHT), candidates=candidates) as made:

        async def flush():
            raise StoreUnavailable("down")

        made.flush = flush
        with pytest.raises(StoreUnavailable):
            await made.stint()


async def test_a_run_that_is_broken_off_keeps_and_tells_of_its_draft(tmp_path):
    async with bench(tmp_path, lambda _: fenced(RIGHT)) as made:
        paused = await made.stint(before=["execute"])
        assert paused.next == ("execute",)
        await made.stint(before=["execute"], passed="")  # as whoever ends it reads it back
        made.told.clear()
        conclusion = break_off(made.context, Stop(Outcome.CANCELLED, "enough"))
        assert (conclusion.outcome, conclusion.delivered) == (Outcome.CANCELLED, 1)
        ((_, event),) = made.events(AttemptFinished)
        assert event.attempt.summary == "cancelled before the code was executed"


@pytest.mark.parametrize("candidates", [1, 2])
async def test_a_question_from_within_a_step_gets_out_of_it(tmp_path, candidates):
    async def ask(_code):
        raise GraphInterrupt([Interrupt(value="may I?", id="0" * 32)])

    async with bench(tmp_path, lambda n: fenced(wrong(n)), ScriptedSandbox(ask), candidates=candidates) as made:
        paused = await made.stint()
        assert paused.reason == "answers"
        assert {question.value_json for question in paused.interrupts} == {'"may I?"'}
        assert made.context.progress.attempts == []


def test_no_handler_of_all_errors_keeps_a_question_from_getting_out():
    folder = Path(workflows.__file__).parent
    for path in set(folder.glob("*.py")) - {folder / "check_driver.py"}:  # which runs inside the sandbox
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Try):
                continue
            let_out = False
            for handler in node.handlers:
                names = {name.id for name in ast.walk(handler.type or ast.Tuple()) if isinstance(name, ast.Name)}
                reraises = isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None
                let_out |= reraises and bool(names & {"GraphBubbleUp", "BaseException"})
                if handler.type is None or names & {"Exception", "BaseException"}:
                    assert let_out, f"{path.name}, line {handler.lineno}"


async def test_candidates_with_the_same_code_that_are_begun_again_leave_one_to_execute(tmp_path):
    slow = asyncio.Event()

    async def later(number):  # the second has the code first; begun again, the first is the first
        if number != 2:
            await slow.wait()
        return fenced(RIGHT)

    executed = asyncio.Event()

    async def hang_once(_code):
        if not executed.is_set():
            executed.set()
            await asyncio.get_running_loop().create_future()

    async with bench(tmp_path, later, ScriptedSandbox(hang_once), candidates=3, max_attempts=3) as made:
        work = asyncio.create_task(made.stint())
        await executed.wait()
        slow.set()
        await until_taped(made, 6)  # three replies, and thrice who has the code
        await dies(made, work)
        end = await made.stint()
        assert (end.conclusion.outcome, end.conclusion.delivered) == (Outcome.PASSED, 2)
        assert len(made.models.prompts) == 3
