"""Taking runs apart over gRPC: breakpoints, looks, edits, single steps, forks, replays and comparisons."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import debug_pb2 as dpb
from codemend.orchestrator.v1 import runs_pb2 as pb
from codemend.sandbox.v1 import sandbox_pb2
from support.debugging import ADDS as TESTS
from support.debugging import RIGHT, WRONG, Debugger, debugging
from support.orchestrator import spec
from support.sandbox import running_sandbox

from orchestrator.workflows.templates import template

WAITING = pb.RUN_STATE_WAITING


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[str]:
    async with running_sandbox() as address:
        yield address


@pytest.fixture(params=["sqlite"])
def database_url(request: Any, tmp_path: Path) -> str:
    """URL of an empty database: SQLite, and for what depends on it, Postgres as well."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.sqlite'}"
    return request.getfixturevalue("postgres_url")


ON_BOTH = pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)


@pytest_asyncio.fixture
async def debug(sandbox: str, tmp_path: Path, database_url: str) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def start(*replies: Any) -> Debugger:
            url = "" if database_url.startswith("sqlite") else database_url
            started = debugging(*replies, sandbox=sandbox, data_dir=tmp_path, database_url=url)
            return await stack.enter_async_context(started)

        yield start


async def test_a_run_waits_before_a_node_and_goes_on(debug: Any) -> None:
    d = await debug(RIGHT)
    run = await d.stopped(interrupt_before=["execute"])
    assert (run.wait.reason, list(run.wait.next)) == ("before execute", ["execute"])
    ended = await d.go_on(run.run_id, checkpoint_id=run.wait.checkpoint_id)
    assert ended.result.outcome == pb.RUN_OUTCOME_PASSED
    assert len(d.model.requests) == 1


async def test_breakpoints_hold_at_every_visit(debug: Any) -> None:
    d = await debug(WRONG, RIGHT)
    run = await d.stopped(interrupt_after=["execute"])
    reasons = [run.wait.reason]
    while (run := await d.go_on(run.run_id)).state == WAITING:
        reasons.append(run.wait.reason)
    assert reasons == ["after execute", "after execute"]
    assert run.result.outcome == pb.RUN_OUTCOME_PASSED


async def test_new_breakpoints_replace_the_old_ones(debug: Any) -> None:
    d = await debug(WRONG, RIGHT)
    run = await d.stopped(interrupt_before=["*"])
    run = await d.go_on(run.run_id, breakpoints=dpb.Breakpoints(before=["repair"]))
    assert run.wait.reason == "before repair"
    assert (await d.go_on(run.run_id, breakpoints=dpb.Breakpoints())).result.outcome == pb.RUN_OUTCOME_PASSED


@ON_BOTH
async def test_single_steps_go_one_node_each(debug: Any) -> None:
    d = await debug(RIGHT)
    run = await d.stopped(interrupt_before=["generate"])
    seen = [list(run.wait.next)]
    while (run := await d.go_on(run.run_id, mode=dpb.RESUME_MODE_STEP)).state == WAITING:
        assert run.wait.reason == "step"
        seen.append(list(run.wait.next))
    assert seen == [["generate"], ["execute"], ["decide"], ["finalize"]]
    assert run.result.outcome == pb.RUN_OUTCOME_PASSED


async def test_waiting_time_is_no_part_of_a_runs_time(debug: Any) -> None:
    d = await debug(RIGHT)
    made = await d.client.create(spec(tests=TESTS, timeout={"seconds": 5}, interrupt_before=["execute"]))
    run = await d.settled(made.run_id)
    await asyncio.sleep(0)
    record = await d.client.parts.runs.manager.get(run.run_id)
    assert record.deadline is None
    assert record.time_left is not None


@ON_BOTH
async def test_a_second_resume_is_refused(debug: Any) -> None:
    d = await debug(RIGHT)
    run = await d.stopped(interrupt_before=["execute"])
    calls = [d.call("ResumeRun", run_id=run.run_id) for _ in range(5)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [one for one in results if isinstance(one, grpc.aio.AioRpcError)]
    assert len(refused) == 4
    assert {error.code() for error in refused} == {grpc.StatusCode.FAILED_PRECONDITION}
    await d.settled(run.run_id)
    error = await d.refused("ResumeRun", run_id=run.run_id)
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_an_unknown_answer_is_refused(debug: Any) -> None:
    d = await debug(RIGHT)
    run = await d.stopped(interrupt_before=["execute"])
    error = await d.refused("ResumeRun", run_id=run.run_id, answers={"nobody-asked": "true"})
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "nobody-asked" in error.details()
    assert (await d.client.get(run.run_id)).state == WAITING


async def test_checkpoints_tell_what_changed(debug: Any) -> None:
    d = await debug(RIGHT)
    made = await d.client.generate(spec(tests=TESTS))
    found = (await d.call("ListCheckpoints", run_id=made.run_id)).checkpoints
    assert [one.step for one in found] == [4, 3, 2, 1, 0, -1]
    assert [list(one.next) for one in found][:2] == [[], ["finalize"]]
    assert found[-1].source == "input"
    assert "attempts.0.verdict" in {change.field for change in found[2].changes}
    assert found[0].attempt.passed
    pages = await d.call("ListCheckpoints", run_id=made.run_id, page_size=2)
    rest = await d.call("ListCheckpoints", run_id=made.run_id, page_size=200, page_token=pages.next_page_token)
    assert [*pages.checkpoints, *rest.checkpoints] == list(found)


async def test_a_checkpoint_shows_state_and_files(debug: Any) -> None:
    d = await debug(RIGHT)
    run = await d.stopped(interrupt_before=["execute"])
    found = await d.call("GetCheckpoint", run_id=run.run_id)
    assert found.checkpoint.checkpoint_id == run.wait.checkpoint_id
    assert json.loads(found.state_json)["draft"]["number"] == 1
    assert [file.path for file in found.files] == ["solution.py"]


@ON_BOTH
async def test_an_edited_draft_is_what_is_executed(debug: Any) -> None:
    d = await debug(WRONG)
    run = await d.stopped(interrupt_before=["execute"])
    mended = sandbox_pb2.File(path="solution.py", content=b"def add(a, b):\n    return b + a\n")
    edit = dpb.StateEdit(files=[mended])
    edited = await d.call("UpdateState", run_id=run.run_id, checkpoint_id=run.wait.checkpoint_id, edit=edit)
    assert edited.run.state == WAITING
    assert edited.run.wait.checkpoint_id != run.wait.checkpoint_id
    ended = await d.go_on(run.run_id, checkpoint_id=edited.run.wait.checkpoint_id)
    assert ended.result.outcome == pb.RUN_OUTCOME_PASSED
    assert ended.result.files[0].content == mended.content
    assert len(d.model.requests) == 1
    events = await d.client.events(run.run_id)
    (told,) = [event.state_edited for event in events if event.HasField("state_edited")]
    assert (list(told.fields), told.as_node) == (["draft"], "generate")


async def test_an_edited_note_reaches_the_model(debug: Any) -> None:
    d = await debug(WRONG, RIGHT)
    run = await d.stopped(interrupt_before=["repair"])
    edit = dpb.StateEdit(values_json=json.dumps({"plan": {"note": "Use the plus sign."}}))
    await d.call("UpdateState", run_id=run.run_id, checkpoint_id=run.wait.checkpoint_id, edit=edit)
    ended = await d.go_on(run.run_id)
    assert ended.result.outcome == pb.RUN_OUTCOME_PASSED
    assert "Use the plus sign." in str(d.model.requests[1].body)


async def test_a_stale_edit_is_aborted_and_names_both_checkpoints(debug: Any) -> None:
    d = await debug(WRONG)
    run = await d.stopped(interrupt_before=["execute"])
    edit = dpb.StateEdit(values_json=json.dumps({"draft": {"strategy": "fresh"}}))
    first = await d.call("UpdateState", run_id=run.run_id, checkpoint_id=run.wait.checkpoint_id, edit=edit)
    error = await d.refused("UpdateState", run_id=run.run_id, checkpoint_id=run.wait.checkpoint_id, edit=edit)
    assert error.code() == grpc.StatusCode.ABORTED
    assert run.wait.checkpoint_id in error.details()
    assert first.run.wait.checkpoint_id in error.details()


@ON_BOTH
async def test_of_two_edits_at_one_time_one_is_made(debug: Any) -> None:
    d = await debug(WRONG)
    run = await d.stopped(interrupt_before=["execute"])
    edits = [dpb.StateEdit(values_json=json.dumps({"plan": {"note": f"edit {number}"}})) for number in range(4)]
    calls = [
        d.call("UpdateState", run_id=run.run_id, checkpoint_id=run.wait.checkpoint_id, edit=edit) for edit in edits
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [one.code() for one in results if isinstance(one, grpc.aio.AioRpcError)]
    assert refused == [grpc.StatusCode.ABORTED] * 3
    found = (await d.call("ListCheckpoints", run_id=run.run_id)).checkpoints
    assert sum(one.source == "update" for one in found) == 1


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ('{"nothing": 1}', "edit.values_json.nothing"),
        ('{"usage": {"model_calls": 0}}', "edit.values_json.usage"),
        ('{"plan": {"strategy": "guess"}}', "edit.values_json.plan.strategy"),
        ('{"plan": {"notes": "x"}}', "edit.values_json.plan.notes"),
        ("[1]", "edit.values_json"),
        ("{", "edit.values_json"),
    ],
)
async def test_an_edit_that_does_not_fit_names_the_field(debug: Any, values: str, field: str) -> None:
    d = await debug(WRONG)
    run = await d.stopped(interrupt_before=["execute"])
    edit = dpb.StateEdit(values_json=values)
    error = await d.refused("UpdateState", run_id=run.run_id, checkpoint_id=run.wait.checkpoint_id, edit=edit)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert field in error.details()


@ON_BOTH
async def test_a_fork_goes_its_own_way_and_leaves_the_other_alone(debug: Any) -> None:
    d = await debug(WRONG, WRONG, RIGHT)
    original = await d.client.generate(spec(tests=TESTS, max_attempts=1))
    assert original.result.outcome == pb.RUN_OUTCOME_FAILED
    points = (await d.call("ListCheckpoints", run_id=original.run_id)).checkpoints
    at = next(one for one in points if list(one.next) == ["decide"])
    made = await d.call(
        "ForkRun", run_id=original.run_id, checkpoint_id=at.checkpoint_id, options=pb.RunOptions(max_attempts=4)
    )
    fork = await d.settled(made.run.run_id)
    assert fork.result.outcome == pb.RUN_OUTCOME_PASSED
    assert [attempt.number for attempt in fork.result.attempts] == [1, 2, 3]
    assert (fork.origin.kind, fork.origin.run_id) == (pb.ORIGIN_KIND_FORK, original.run_id)
    assert await d.client.get(original.run_id) == original
    compared = await d.call("CompareRuns", run_id=original.run_id, other_run_id=fork.run_id)
    assert compared.common_steps >= 3
    assert compared.divergence.node == "decide"
    assert "outcome" in {change.field for change in compared.result_changes}


async def test_a_fork_with_another_prompt_asks_the_model_anew(debug: Any) -> None:
    d = await debug(WRONG, RIGHT)
    original = await d.client.generate(spec(tests=TESTS, max_attempts=1))
    points = (await d.call("ListCheckpoints", run_id=original.run_id)).checkpoints
    first = points[-1] if list(points[-1].next) == ["generate"] else points[-2]
    options = pb.RunOptions(prompts={"system": "You write sums."})
    made = await d.call("ForkRun", run_id=original.run_id, checkpoint_id=first.checkpoint_id, options=options)
    fork = await d.settled(made.run.run_id)
    assert fork.result.outcome == pb.RUN_OUTCOME_PASSED
    assert "You write sums." in str(d.model.requests[1].body)


async def test_a_fork_that_waits_can_be_looked_into_first(debug: Any) -> None:
    d = await debug(WRONG, RIGHT)
    original = await d.client.generate(spec(tests=TESTS, max_attempts=1))
    points = (await d.call("ListCheckpoints", run_id=original.run_id)).checkpoints
    at = next(one for one in points if list(one.next) == ["execute"])
    mended = sandbox_pb2.File(path="solution.py", content=b"def add(a, b):\n    return a + b\n")
    fields = {
        "request_id": "once",
        "run_id": original.run_id,
        "checkpoint_id": at.checkpoint_id,
        "edit": dpb.StateEdit(files=[mended]),
        "wait": True,
    }
    made = await d.call("ForkRun", **fields)
    again = await d.call("ForkRun", **fields)
    assert made.run.run_id == again.run.run_id
    assert made.run.state == WAITING
    assert (await d.go_on(made.run.run_id)).result.outcome == pb.RUN_OUTCOME_PASSED


@ON_BOTH
@pytest.mark.parametrize("candidates", [1, 3])
async def test_a_replay_is_the_same_byte_for_byte_and_asks_nobody(debug: Any, candidates: int) -> None:
    d = await debug(*[WRONG] * candidates, RIGHT)
    original = await d.client.generate(spec(tests=TESTS, candidates=candidates, max_attempts=6))
    asked = len(d.model.requests)
    replayed = await d.call("ReplayRun", run_id=original.run_id)
    points = (await d.call("ListCheckpoints", run_id=original.run_id)).checkpoints
    assert not replayed.HasField("divergence"), replayed.divergence
    assert replayed.equal_steps == len(points)
    assert replayed.run.result.outcome == original.result.outcome
    assert replayed.run.result.files == original.result.files
    assert len(d.model.requests) == asked


async def test_a_replay_of_an_edited_run_makes_the_edit_again(debug: Any) -> None:
    d = await debug(WRONG, RIGHT)
    run = await d.stopped(interrupt_before=["repair"])
    edit = dpb.StateEdit(values_json=json.dumps({"plan": {"note": "Use the plus sign."}}))
    await d.call("UpdateState", run_id=run.run_id, checkpoint_id=run.wait.checkpoint_id, edit=edit)
    await d.go_on(run.run_id)
    replayed = await d.call("ReplayRun", run_id=run.run_id)
    assert not replayed.HasField("divergence"), replayed.divergence
    assert replayed.run.result.outcome == pb.RUN_OUTCOME_PASSED


async def test_a_replay_of_a_fork_is_the_same(debug: Any) -> None:
    d = await debug(WRONG, RIGHT)
    original = await d.client.generate(spec(tests=TESTS, max_attempts=1))
    points = (await d.call("ListCheckpoints", run_id=original.run_id)).checkpoints
    at = next(one for one in points if list(one.next) == ["decide"])
    options = pb.RunOptions(max_attempts=4, prompts={"system": "You write sums."})
    made = await d.call("ForkRun", run_id=original.run_id, checkpoint_id=at.checkpoint_id, options=options)
    await d.settled(made.run.run_id)
    replayed = await d.call("ReplayRun", run_id=made.run.run_id)
    assert not replayed.HasField("divergence"), replayed.divergence


async def test_a_changed_prompt_shows_the_first_step_that_differs(debug: Any) -> None:
    d = await debug(WRONG, RIGHT)
    original = await d.client.generate(spec(tests=TESTS))
    repair = template("repair").text + "Be brief.\n"
    replayed = await d.call("ReplayRun", run_id=original.run_id, options=pb.RunOptions(prompts={"repair": repair}))
    assert (replayed.divergence.node, replayed.divergence.kind) == ("repair", "prompt")
    assert "+Be brief." in replayed.divergence.detail
    assert replayed.run.result.outcome == pb.RUN_OUTCOME_ERROR
    assert len(d.model.requests) == 2


async def test_a_replay_goes_on_live_from_a_node(debug: Any) -> None:
    d = await debug(WRONG, WRONG, RIGHT)
    original = await d.client.generate(spec(tests=TESTS, max_attempts=2))
    assert original.result.outcome == pb.RUN_OUTCOME_FAILED
    replayed = await d.call("ReplayRun", run_id=original.run_id, live_from="repair")
    assert replayed.run.result.outcome == pb.RUN_OUTCOME_PASSED
    assert len(d.model.requests) == 3


async def test_what_cannot_be_debugged_is_told(debug: Any) -> None:
    d = await debug(RIGHT)
    unknown = await d.refused("ListCheckpoints", run_id="run_x")
    assert unknown.code() == grpc.StatusCode.NOT_FOUND
    empty = await d.refused("GetCheckpoint", run_id="")
    assert empty.code() == grpc.StatusCode.INVALID_ARGUMENT
    run = await d.stopped(interrupt_before=["execute"])
    early = await d.refused("ReplayRun", run_id=run.run_id)
    assert early.code() == grpc.StatusCode.FAILED_PRECONDITION
    nowhere = await d.refused("GetCheckpoint", run_id=run.run_id, checkpoint_id="nowhere")
    assert nowhere.code() == grpc.StatusCode.INVALID_ARGUMENT
    node = await d.refused("ResumeRun", run_id=run.run_id, breakpoints=dpb.Breakpoints(before=["nobody"]))
    assert "breakpoints.before" in node.details()
