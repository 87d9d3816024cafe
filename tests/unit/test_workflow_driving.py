"""Driving the graph: breakpoints, single steps, questions, stops of the service; each goes on from where it stands."""

import asyncio
import json

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import RunControl
from langgraph.types import interrupt
from support.workflow import RIGHT, ScriptedSandbox, bench, dies, fenced, wrong

from orchestrator.runs.checkpoints import serializer
from orchestrator.workflows import CodegenContext, Conclusion, Drained, Finished, Outcome, Paused, drive
from orchestrator.workflows.state import CodegenState


@pytest.mark.parametrize(
    ("stops", "reason", "following"),
    [
        ({"before": ["execute"]}, "before execute", ("execute",)),
        ({"before": ["*"]}, "before generate", ("generate",)),
        ({"after": ["generate"]}, "after generate", ("execute",)),
        ({"after": ["*"]}, "after generate", ("execute",)),
        ({"step": True}, "step", ("execute",)),
        ({"before": ["repair"], "after": ["decide"]}, "after decide", ("repair",)),
    ],
)
async def test_a_breakpoint_stops_the_run_and_says_where(tmp_path, stops, reason, following):
    async with bench(tmp_path, lambda n: fenced(wrong(1) if n == 1 else RIGHT)) as made:
        paused = await made.stint(**stops)
        assert isinstance(paused, Paused)
        assert (paused.reason, paused.next, paused.interrupts) == (reason, following, ())
        assert paused.checkpoint_id
        end = await made.stint()
        assert (end.conclusion.outcome, len(made.models.prompts)) == (Outcome.PASSED, 2)


async def test_every_breakpoint_is_met_once_on_the_way(tmp_path):
    async with bench(tmp_path, lambda n: fenced(wrong(1) if n == 1 else RIGHT)) as made:
        reasons = []
        end = await made.stint(before=["*"])
        while isinstance(end, Paused):
            reasons.append(end.reason)
            end = await made.stint(before=["*"])
        nodes = ["generate", "execute", "decide", "repair", "execute", "decide", "finalize"]
        assert reasons == [f"before {node}" for node in nodes]


async def test_single_steps_run_one_node_each(tmp_path):
    async with bench(tmp_path, lambda _: fenced(RIGHT)) as made:
        following = []
        end = await made.stint(step=True)
        while isinstance(end, Paused):
            following.append(end.next)
            end = await made.stint(step=True)
        assert following == [("execute",), ("decide",), ("finalize",)]
        assert end.conclusion.outcome is Outcome.PASSED


async def test_a_breakpoint_that_nobody_was_told_of_is_not_passed(tmp_path):
    async with bench(tmp_path, lambda _: fenced(RIGHT)) as made:
        paused = await made.stint(before=["execute"])
        for _ in range(2):  # whoever drove it died before it could tell
            assert await made.stint(before=["execute"], passed="") == paused
        assert made.sandbox.ran == []
        end = await made.stint(before=["execute"], passed=paused.checkpoint_id)
        assert end.conclusion.outcome is Outcome.PASSED


async def test_a_step_that_was_made_before_a_crash_is_not_made_twice(tmp_path):
    async with bench(tmp_path, lambda _: fenced(RIGHT)) as made:
        first = await made.stint(before=["generate"])
        second = await made.stint(step=True, passed=first.checkpoint_id)
        again = await made.stint(step=True, passed=first.checkpoint_id)
        assert again == second
        assert second.next == ("execute",)


@pytest.mark.parametrize(
    ("node", "as_node"),
    [("execute", "generate"), ("decide", "execute"), ("repair", "decide"), ("generate", "__start__")],
)
async def test_a_run_goes_on_from_an_edit_at_a_breakpoint(tmp_path, node, as_node):
    async with bench(tmp_path, lambda n: fenced(wrong(1) if n == 1 else RIGHT)) as made:
        await made.stint(before=[node])
        graph, config = made.graph(), {"configurable": {"thread_id": made.run_id}}
        await graph.aupdate_state(config, {"base": 0}, as_node=as_node)
        edited = await graph.aget_state(config)
        assert edited.next == (node,)
        end = await made.stint(before=[node], passed=edited.config["configurable"]["checkpoint_id"])
        while isinstance(end, Paused):
            end = await made.stint(before=[node])
        assert (end.conclusion.outcome, len(made.models.prompts)) == (Outcome.PASSED, 2)


async def test_an_edit_at_the_start_keeps_the_candidates(tmp_path):
    async with bench(tmp_path, lambda _: fenced(RIGHT), candidates=2) as made:
        await made.stint(before=["candidate"])
        graph, config = made.graph(), {"configurable": {"thread_id": made.run_id}}
        await graph.aupdate_state(config, {"base": 0}, as_node="__start__")
        assert (await graph.aget_state(config)).next == ("candidate", "candidate")


async def test_a_run_that_has_ended_stays_as_it_is(tmp_path):
    async with bench(tmp_path, lambda _: fenced(RIGHT)) as made:
        end = await made.stint()
        assert await made.stint(before=["*"], passed="") == end
        assert len(made.models.prompts) == 1


@pytest.mark.parametrize("candidates", [1, 2])
async def test_a_stop_of_the_service_waits_for_the_step_alone(tmp_path, candidates):
    control = RunControl()

    async def script(number):
        control.request_drain()
        return fenced(wrong(number))

    async with bench(tmp_path, script, candidates=candidates, max_attempts=2) as made:
        assert await made.stint(control=control) == Drained()
        assert len(made.sandbox.ran) == (0 if candidates == 1 else 2)
        end = await made.stint()
        assert end.conclusion.outcome is Outcome.FAILED
        assert len(made.models.prompts) == 2


async def test_a_breakpoint_comes_before_a_stop_of_the_service(tmp_path):
    control = RunControl()
    control.request_drain()
    async with bench(tmp_path, lambda _: fenced(RIGHT)) as made:
        assert await made.stint(control=control) == Drained()
        paused = await made.stint(before=["generate"])
        assert paused.reason == "before generate"


async def test_a_cancellation_ends_the_call_at_work(tmp_path):
    started, ended = asyncio.Event(), []

    async def hang(_code):
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(True)

    async with bench(tmp_path, lambda _: fenced(RIGHT), ScriptedSandbox(hang)) as made:
        work = asyncio.create_task(made.stint())
        await started.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert ended == [True]


def asking_graph(saver):
    """A graph that asks two questions at one time, and ends with the answers."""

    async def first(_state: CodegenState) -> CodegenState:
        return {"base": interrupt({"how many": "?"})}

    async def second(_state: CodegenState) -> CodegenState:
        return {"conclusion": Conclusion(Outcome.PASSED, interrupt("why"), 0)}

    graph = StateGraph(CodegenState, context_schema=CodegenContext)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge(START, "second")
    graph.add_edge("first", END)
    graph.add_edge("second", END)
    return graph.compile(checkpointer=saver)


async def test_questions_are_answered_by_their_ids_and_each_once(tmp_path):
    graph = asking_graph(InMemorySaver(serde=serializer()))
    async with bench(tmp_path, lambda _: "") as made:
        context = made.made(None)
        asked = await drive(graph, context, "t", start={"base": 0})
        assert asked.reason == "answers"
        values = {question.node: json.loads(question.value_json) for question in asked.interrupts}
        assert values == {"first": {"how many": "?"}, "second": "why"}
        ids = {question.node: question.interrupt_id for question in asked.interrupts}
        half = await drive(graph, context, "t", answers={ids["second"]: '"since"'})
        assert [question.node for question in half.interrupts] == ["first"]
        answers = {ids["second"]: '"again"', ids["first"]: "7"}
        end = await drive(graph, context, "t", answers=answers)
        assert end == Finished(Conclusion(Outcome.PASSED, "since", 0))
        assert (await graph.aget_state({"configurable": {"thread_id": "t"}})).values["base"] == 7


async def test_a_run_that_died_after_a_step_and_before_its_checkpoint_is_not_over(tmp_path, monkeypatch):
    dead = asyncio.Event()
    async with bench(tmp_path, lambda n: fenced(RIGHT if n == 2 else wrong(n))) as made:
        kept = made.saver.aput

        async def dying(config, checkpoint, metadata, new_versions):
            if metadata["step"] == 3:  # what `decide` returned is written, and the checkpoint after it is not
                dead.set()
                await asyncio.get_running_loop().create_future()
            return await kept(config, checkpoint, metadata, new_versions)

        with monkeypatch.context() as patch:
            patch.setattr(made.saver, "aput", dying)
            work = asyncio.create_task(made.stint())
            await dead.wait()
            await dies(made, work)
        state = await made.graph().aget_state({"configurable": {"thread_id": made.run_id}})
        assert (state.next, [task.name for task in state.tasks]) == ((), ["decide"])
        end = await made.stint()
        assert (end.conclusion.outcome, end.conclusion.delivered) == (Outcome.PASSED, 2)
