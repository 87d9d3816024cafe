"""Replays over gRPC are what their originals were, however those were edited, broken off, forked or replayed."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import debug_pb2 as dpb
from codemend.orchestrator.v1 import runs_pb2 as pb
from support.debugging import ADDS as TESTS
from support.debugging import RIGHT, WRONG, Debugger, debugging
from support.openai_server import Scripted
from support.orchestrator import spec
from support.sandbox import running_sandbox


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[str]:
    async with running_sandbox() as address:
        yield address


async def edited(d: Debugger, run: pb.Run, **values: Any) -> pb.Run:
    """The run at its end, with its state changed where it waits."""
    edit = dpb.StateEdit(values_json=json.dumps(values))
    await d.call("UpdateState", run_id=run.run_id, checkpoint_id=run.wait.checkpoint_id, edit=edit)
    return await d.go_on(run.run_id)


async def assert_same(d: Debugger, run: pb.Run) -> pb.Run:
    """Its replay asks nobody, has every step of it, and comes to the same end."""
    asked = len(d.model.requests)
    replayed = await d.call("ReplayRun", run_id=run.run_id)
    assert not replayed.HasField("divergence"), replayed.divergence
    steps = (await d.call("ListCheckpoints", run_id=run.run_id)).checkpoints
    assert replayed.equal_steps == sum(step.on_path for step in steps)
    one, two = run.result, replayed.run.result
    assert (one.outcome, one.reason, one.delivered_attempt) == (two.outcome, two.reason, two.delivered_attempt)
    assert (list(one.attempts), one.usage) == (list(two.attempts), two.usage)
    assert len(d.model.requests) == asked
    return replayed.run


@pytest.mark.parametrize(("node", "candidates"), [("generate", 1), ("candidate", 2)])
async def test_an_edit_before_the_first_node_is_made_again(debug: Any, node: str, candidates: int) -> None:
    d = await debug(RIGHT, RIGHT)
    run = await d.stopped(interrupt_before=[node], candidates=candidates, max_attempts=4)
    run = await edited(d, run, plan={"note": "Be brief."})
    assert "Be brief." in str(d.model.requests[0].prompt) or node == "candidate"
    await assert_same(d, run)


@pytest.mark.parametrize("node", ["decide", "repair", "finalize"])
async def test_an_edit_of_attempts_is_part_of_the_end(debug: Any, node: str) -> None:
    d = await debug(WRONG, WRONG.replace("- b", "- b - 1"))
    run = await d.stopped(interrupt_before=[node], max_attempts=2)
    if node == "decide":
        run = await d.go_on(run.run_id)  # the second time it has two attempts
    values = json.loads((await d.call("GetCheckpoint", run_id=run.run_id)).state_json)["attempts"]
    values[0]["summary"] = "edited"
    run = await edited(d, run, attempts=values)
    while run.state == pb.RUN_STATE_WAITING:
        run = await d.go_on(run.run_id)
    assert run.result.attempts[0].summary == "edited"
    await assert_same(d, run)


async def test_a_replay_of_a_replay_of_a_fork_begins_where_the_fork_did(debug: Any) -> None:
    d = await debug(WRONG, RIGHT)
    original = await d.client.generate(spec(tests=TESTS, max_attempts=1))
    points = (await d.call("ListCheckpoints", run_id=original.run_id)).checkpoints
    at = next(one for one in points if list(one.next) == ["decide"])
    options = pb.RunOptions(max_attempts=4, prompts={"system": "You write sums."})
    made = await d.call("ForkRun", run_id=original.run_id, checkpoint_id=at.checkpoint_id, options=options)
    fork = await d.settled(made.run.run_id)
    await assert_same(d, await assert_same(d, fork))


async def test_a_replay_of_a_fork_that_dropped_its_draft_has_the_forks_own_answers(debug: Any) -> None:
    d = await debug(WRONG, WRONG.replace("- b", "- b - 1"), RIGHT)
    original = await d.client.generate(spec(tests=TESTS, max_attempts=2))
    points = (await d.call("ListCheckpoints", run_id=original.run_id)).checkpoints
    at = [one for one in points if list(one.next) == ["execute"]]
    newest = max(at, key=lambda one: one.step)
    edit = dpb.StateEdit(values_json='{"draft": null}')
    made = await d.call("ForkRun", run_id=original.run_id, checkpoint_id=newest.checkpoint_id, edit=edit)
    fork = await d.settled(made.run.run_id)
    assert fork.result.outcome == pb.RUN_OUTCOME_PASSED
    await assert_same(d, fork)


async def test_a_replay_of_a_run_that_was_cancelled_ends_where_it_was(debug: Any) -> None:
    d = await debug(WRONG, RIGHT)
    run = await d.stopped(interrupt_before=["repair"])
    run = await d.client.cancel(run.run_id, "seen enough")
    assert run.result.outcome == pb.RUN_OUTCOME_CANCELLED
    await assert_same(d, run)


async def test_a_replay_uses_the_parameters_of_its_original(sandbox: str, tmp_path: Path) -> None:
    replies = [WRONG, Scripted(text="```python\ndef add(", finish_reason="length"), RIGHT]
    small = {"context_tokens": 3000, "max_output_tokens": 500, "temperature": 0.7}
    async with debugging(*replies, sandbox=sandbox, data_dir=tmp_path, **small) as d:
        run = await d.client.generate(spec(tests=TESTS, max_attempts=4))
        assert run.result.outcome == pb.RUN_OUTCOME_PASSED
    async with debugging(sandbox=sandbox, data_dir=tmp_path) as d:
        await assert_same(d, run)


async def test_two_runs_that_took_other_times_are_the_same(debug: Any) -> None:
    d = await debug(WRONG, RIGHT, WRONG, RIGHT)
    one, two = [await d.client.generate(spec(tests=TESTS)) for _ in range(2)]
    compared = await d.call("CompareRuns", run_id=one.run_id, other_run_id=two.run_id)
    assert not compared.HasField("divergence"), compared.divergence
    assert list(compared.result_changes) == []
