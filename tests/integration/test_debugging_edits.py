"""Edits over gRPC: what does not fit is refused by its field and leaves the run as it was, and no edit makes a pass."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import debug_pb2 as dpb
from codemend.orchestrator.v1 import runs_pb2 as pb
from codemend.rpc import error_detail
from codemend.sandbox.v1 import sandbox_pb2
from google.rpc import error_details_pb2
from support.debugging import ADDS, RIGHT, SECONDS, WRONG, Debugger, debugging
from support.orchestrator import spec
from support.sandbox import running_sandbox

from orchestrator.workflows.edits import MAXIMUM_DEPTH

UNKNOWN = "0" * 64
VALUES = "edit.values_json"
FAILED, PASSED = pb.RUN_OUTCOME_FAILED, pb.RUN_OUTCOME_PASSED


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[str]:
    async with running_sandbox() as address:
        yield address


@pytest_asyncio.fixture(scope="module")
async def standing(sandbox: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Debugger, Any]]:
    """Runs that wait before each node, by its name: what is refused leaves them there, so tests may share them."""
    folder = tmp_path_factory.mktemp("standing")
    async with debugging(*[WRONG] * 4, RIGHT, sandbox=sandbox, data_dir=folder) as d:
        runs = {
            "finalize": await d.stopped(interrupt_before=["finalize"], max_attempts=1),
            **{name: await d.stopped(interrupt_before=[name]) for name in ("execute", "decide", "repair")},
            "passed": await d.stopped(interrupt_before=["finalize"]),
        }
        yield d, runs


def fields(error: grpc.aio.AioRpcError) -> dict[str, str]:
    """What a refused request is refused for, by its fields."""
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error.details()
    found = error_detail(error, error_details_pb2.BadRequest)
    return {one.field: one.description for one in found.field_violations}


def edit_of(values: Any = None, *, as_node: str = "", files: dict[str, bytes] | None = None) -> dpb.StateEdit:
    given = [sandbox_pb2.File(path=path, content=content) for path, content in (files or {}).items()]
    text = values if isinstance(values, str) else json.dumps(values) if values is not None else ""
    return dpb.StateEdit(values_json=text, as_node=as_node, files=given)


async def edited(d: Debugger, run: pb.Run, *args: Any, **options: Any) -> pb.Run:
    """The run after an edit where it stands."""
    edit = edit_of(*args, **options)
    answer = await d.call("UpdateState", run_id=run.run_id, checkpoint_id=run.wait.checkpoint_id, edit=edit)
    return answer.run


async def refused(d: Debugger, run: pb.Run, *args: Any, **options: Any) -> dict[str, str]:
    """What an edit is refused for; the run must stand where it stood."""
    edit = edit_of(*args, **options)
    error = await d.refused("UpdateState", run_id=run.run_id, checkpoint_id=run.wait.checkpoint_id, edit=edit)
    assert await d.client.get(run.run_id) == run
    return fields(error)


def attempt(**values: Any) -> dict[str, Any]:
    return {"attempts": [{"number": 1, **values}]}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


OUT_OF_RANGE = [
    ("execute", {"draft": {"number": 2**31}}, "draft.number", "from 1 to 1000"),
    ("execute", {"draft": {"number": 0}}, "draft.number", "from 1 to 1000"),
    ("execute", {"draft": {"usage": {"model_calls": -1}}}, "draft.usage.model_calls", "from 0 to 2147483647"),
    ("execute", {"draft": {"usage": {"input_tokens": 2**62}}}, "draft.usage.input_tokens", "from 0 to"),
    ("execute", {"draft": {"spent": "P2D"}}, "draft.spent", "86400 s"),
    ("execute", {"draft": {"spent": "-PT1S"}}, "draft.spent", "from 0 s"),
    ("repair", {"plan": {"number": 2**31}}, "plan.number", "from 1 to 1000"),
    ("repair", {"plan": {"number": 1001}}, "plan.number", "from 1 to 1000"),
    ("repair", {"plan": {"note": "x" * 65537}}, "plan.note", "at most 65536 characters"),
    ("repair", {"base": -5}, "base", "from 0 to 1000"),
    ("repair", attempt(tests_total=2**31), "attempts.0.tests_total", "from 0 to 2147483647"),
    ("repair", attempt(tests_passed=-4), "attempts.0.tests_passed", "from 0 to"),
    ("repair", attempt(tests_passed=7, tests_total=3), "attempts.0.tests_passed", "at most tests_total (3)"),
    ("repair", attempt(duration="P99999999D"), "attempts.0.duration", "86400 s"),
    ("repair", attempt(usage={"output_tokens": -9}), "attempts.0.usage.output_tokens", "from 0 to"),
    ("repair", attempt(summary="s" * 1025), "attempts.0.summary", "at most 1024 characters"),
    ("repair", {"decision": {"plan": {"number": 2**31}}}, "decision.plan.number", "from 1 to 1000"),
    ("repair", {"base": nested(MAXIMUM_DEPTH)}, "", "at most 32 deep"),
    ("repair", {"plan": {"note": nested(900)}}, "", "at most 32 deep"),
]
OF_ANOTHER_TYPE = [
    ("repair", {"plan": {"number": True}}, "plan.number", "integer"),
    ("repair", {"plan": {"number": "2"}}, "plan.number", "integer"),
    ("repair", {"plan": {"number": 2.0}}, "plan.number", "integer"),
    ("repair", {"plan": {"wide": "yes"}}, "plan.wide", "boolean"),
    ("repair", {"plan": {"wide": 1}}, "plan.wide", "boolean"),
    ("repair", {"base": "1"}, "base", "integer"),
    ("repair", attempt(duration=5), "attempts.0.duration", "duration"),
    ("repair", {"attempts": [{"number": True}]}, "attempts", "no attempt 'True'"),
    ("repair", {"attempts": [{"number": 1}, {"number": 1}]}, "attempts", "attempt 1 is given twice"),
]
NAMES_NOTHING = [
    ("repair", {"decision": {"target": "nowhere"}}, "decision.target", "generate, repair, finalize"),
    ("repair", {"decision": {"target": ""}}, "decision.target", "generate, repair, finalize"),
    ("repair", {"decision": {"target": "finalize"}}, "decision.stop", "is required"),
    ("repair", {"base": 99}, "base", "an attempt that has code (1), not 99"),
    ("execute", {"base": 1}, "base", "an attempt that has code (none has), not 1"),
    ("repair", {"plan": {"base": 7}}, "plan.base", "an attempt that has code (1), not 7"),
    ("repair", attempt(base=44), "attempts.0.base", "not 44"),
    ("execute", {"draft": {"base": 44}}, "draft.base", "not 44"),
    ("execute", {"draft": {"code_hash": UNKNOWN}}, "draft.code_hash", "SHA-256"),
    ("execute", {"draft": {"code_hash": ""}}, "draft.code_hash", "SHA-256"),
    ("repair", attempt(code_hash="../../x"), "attempts.0.code_hash", "SHA-256"),
    ("repair", attempt(code_hash="", verdict="unusable"), "attempts.0.code_hash", "SHA-256"),
    ("repair", attempt(report_hash=UNKNOWN), "attempts.0.report_hash", "a test report that is kept"),
    ("repair", attempt(execution_hash="../../etc/passwd"), "attempts.0.execution_hash", "an execution that is kept"),
    ("finalize", {"stop": {"outcome": "FAILED", "reason": " "}}, "stop.reason", "is required"),
]
FORGED = [
    ("execute", {"stop": {"outcome": "PASSED", "reason": "r"}}, "stop.outcome", "the sandbox alone"),
    ("decide", {"stop": {"outcome": "UNVERIFIED", "reason": "r"}}, "stop.outcome", "the sandbox alone"),
    ("decide", {"stop": {"outcome": "CANCELLED", "reason": "r"}}, "stop.outcome", "CancelRun"),
    ("finalize", {"decision": {"stop": {"outcome": "PASSED"}}}, "decision.stop.outcome", "the sandbox alone"),
    ("decide", attempt(verdict="passed"), "attempts.0.verdict", "the sandbox alone"),
    ("decide", attempt(verdict="unverified"), "attempts.0.verdict", "the sandbox alone"),
    ("decide", attempt(report_outcome="PASSED"), "attempts.0.report_outcome", "the sandbox alone"),
    ("decide", attempt(execution_status="SUCCEEDED"), "attempts.0.execution_status", "the sandbox alone"),
    ("passed", attempt(tests_total=9), "attempts.0.tests_total", "the sandbox alone"),
    ("passed", attempt(verdict="failed"), "decision.stop.outcome", "attempt 1 is failed"),
]
TAKEN = [
    ("repair", {"plan": {"number": 1}}, "plan.number", "must be over 1"),
    ("finalize", {"decision": {"target": "repair"}}, "plan.number", "must be over 1"),
]


@pytest.mark.parametrize(
    ("at", "values", "field", "limit"), [*OUT_OF_RANGE, *OF_ANOTHER_TYPE, *NAMES_NOTHING, *FORGED, *TAKEN]
)
async def test_an_edit_that_does_not_fit_is_refused_with_field_and_limit(
    standing: tuple[Debugger, Any], at: str, values: Any, field: str, limit: str
) -> None:
    d, runs = standing
    found = await refused(d, runs[at], values)
    (name,) = found
    assert name == (f"{VALUES}.{field}" if field else VALUES)
    assert limit in found[name]


async def test_a_draft_in_the_place_of_an_attempt_is_refused(standing: tuple[Debugger, Any]) -> None:
    d, runs = standing
    state = json.loads((await d.call("GetCheckpoint", run_id=runs["decide"].run_id)).state_json)
    known = state["attempts"][0]["code_hash"]
    draft = {"number": 1, "strategy": "draft", "base": 0, "code_hash": known, "spent": "PT1S", "usage": {}}
    found = await refused(d, runs["decide"], {"draft": draft})
    assert found == {f"{VALUES}.draft.number": "must be over 1, the number of the newest attempt, not 1"}


@pytest.mark.parametrize(
    ("at", "values", "as_node", "field"),
    [
        ("repair", {"plan": {"note": "x"}}, "finalize", "edit.as_node"),
        ("execute", {"plan": {"note": "x"}}, "finalize", "edit.as_node"),
        ("decide", {"plan": {"note": "x"}}, "decide", "edit.as_node"),
        ("execute", {"draft": None}, "", f"{VALUES}.draft"),
        ("execute", {"plan": {"note": "x"}}, "execute", "edit.as_node"),
        ("repair", {"plan": {"note": "x"}}, "__end__", "edit.as_node"),
        ("repair", {"plan": {"note": "x"}}, "__copy__", "edit.as_node"),
        ("repair", {"plan": {"note": "x"}}, "nobody", "edit.as_node"),
        ("finalize", {"plan": {"note": "x"}}, "__start__", f"{VALUES}.plan.number"),
    ],
)
async def test_an_edit_after_which_the_graph_could_not_go_on_is_refused(
    standing: tuple[Debugger, Any], at: str, values: Any, as_node: str, field: str
) -> None:
    d, runs = standing
    assert list(await refused(d, runs[at], values, as_node=as_node)) == [field]


@pytest.mark.parametrize(
    "text",
    [
        '{"\\ud800": 1}',
        '{"a\\u0000": 1}',
        '{"plan": {"\\ud800": 1}}',
        '{"decision": {"target": "\\ud800"}}',
        '{"attempts": [{"number": "\\ud800"}]}',
        '{"draft": {"code_hash": "\\ud800"}}',
    ],
)
async def test_names_that_no_text_field_holds_are_refused_as_others_are(
    standing: tuple[Debugger, Any], text: str
) -> None:
    d, runs = standing
    assert await refused(d, runs["execute"], text)


async def test_a_fork_refuses_what_an_edit_refuses(standing: tuple[Debugger, Any]) -> None:
    d, runs = standing
    before = await d.runs()
    for values in ({"plan": {"number": 2**31}}, {"decision": {"target": "nowhere"}}, attempt(verdict="passed")):
        error = await d.refused("ForkRun", run_id=runs["repair"].run_id, edit=edit_of(values))
        assert list(fields(error))
    assert await d.runs() == before


async def test_nothing_can_be_changed_before_the_state_begins(standing: tuple[Debugger, Any]) -> None:
    d, runs = standing
    at = await d.at(runs["repair"].run_id, "__start__")
    error = await d.refused(
        "ForkRun", run_id=runs["repair"].run_id, checkpoint_id=at, edit=edit_of({"plan": {"number": 3}})
    )
    assert list(fields(error)) == ["edit"]


async def test_what_an_edit_may_say_is_taken(debug: Any) -> None:
    d = await debug(WRONG, RIGHT)
    run = await d.stopped(interrupt_before=["repair"])
    values = {
        "plan": {"number": 7, "strategy": "rewrite", "warm": True, "note": "Use the plus sign."},
        "base": 1,
        **attempt(summary="off by a sign", duration="PT2.5S", tests_total=3, verdict="failed"),
    }
    run = await edited(d, run, values)
    ended = await d.go_on(run.run_id)
    assert ended.result.outcome == PASSED
    assert [one.number for one in ended.result.attempts] == [1, 7]
    assert ended.result.attempts[0].summary == "off by a sign"
    assert ended.result.attempts[0].duration.ToTimedelta().total_seconds() == 2.5
    assert ended.result.delivered_attempt == 7


async def test_an_attempt_takes_the_code_of_another_that_is_kept(debug: Any) -> None:
    d = await debug(RIGHT, WRONG, WRONG)
    other = await d.client.generate(spec(tests=ADDS))
    run = await d.stopped(interrupt_before=["execute"])
    run = await edited(d, run, {"draft": {"code_hash": other.result.attempts[0].code_hash}})
    ended = await d.go_on(run.run_id)
    assert ended.result.outcome == PASSED
    assert ended.result.files == other.result.files


async def test_a_run_that_passed_can_be_taken_further_from_its_decision(debug: Any) -> None:
    d = await debug(RIGHT, RIGHT.replace("a + b", "b + a"))
    run = await d.stopped(interrupt_before=["finalize"])
    run = await edited(d, run, {"decision": {"target": "generate"}, "plan": {"number": 2, "strategy": "fresh"}})
    assert list(run.wait.next) == ["generate"]
    assert (await d.go_on(run.run_id)).wait.reason == "before finalize"
    ended = await d.go_on(run.run_id)
    assert [one.passed for one in ended.result.attempts] == [True, True]


async def test_files_that_clash_with_those_of_the_draft_are_refused(standing: tuple[Debugger, Any]) -> None:
    d, runs = standing
    found = await refused(d, runs["execute"], files={"solution.py/x": b"1"})
    assert "'solution.py' both a file and a folder" in found["edit.files"]


async def test_edits_together_keep_to_the_limits_of_one(debug: Any) -> None:
    d = await debug(WRONG)
    run = await d.stopped(interrupt_before=["execute"])
    run = await edited(d, run, files={f"a{number}.txt": b"" for number in range(63)})
    assert "65 files" in (await refused(d, run, files={"b.txt": b""}))["edit.files"]
    run = await edited(d, run, files={"a0.txt": b"x" * (512 * 1024)})
    assert "1048576 are allowed" in (await refused(d, run, files={"a1.txt": b"x" * (512 * 1024)}))["edit.files"]
    run = await edited(d, run, files={"a0.txt": b"x", "solution.py": b"def add(a, b):\n    return a + b\n"})
    assert (await d.go_on(run.run_id)).result.outcome == PASSED


async def test_numbers_that_no_field_holds_are_told_as_the_nearest(debug: Any) -> None:
    d = await debug(WRONG)
    run = await d.stopped(interrupt_before=["decide"], max_attempts=1)
    parts = d.client.parts.runs
    place = {"configurable": {"thread_id": run.run_id}}
    graph = parts.engine.graphs["codegen"]
    (made,) = (await graph.aget_state(place)).values["attempts"]
    wide = replace(made, number=2**31, tests_total=-(2**40), duration=timedelta.max)
    await graph.aupdate_state(place, {"attempts": [wide]}, as_node="execute")  # as no edit may any more
    ended = await d.go_on(run.run_id)
    assert ended.result.outcome == FAILED
    last = ended.result.attempts[-1]
    assert (last.number, last.tests_total, last.duration.seconds) == (2**31 - 1, -(2**31), 315_576_000_000)
    listed = await d.client.stub.ListRuns(pb.ListRunsRequest(), timeout=SECONDS)
    assert listed.runs[0].result.attempts[-1] == last
    assert (await d.client.cancel(run.run_id)).run_id == run.run_id
    assert await d.client.events(run.run_id)
    assert (await d.call("ListCheckpoints", run_id=run.run_id)).checkpoints[0].attempt == last


async def test_a_result_whose_artifacts_are_gone_is_told_without_them(debug: Any, tmp_path: Path) -> None:
    d = await debug(WRONG)
    whole = await d.client.generate(spec(tests=ADDS, max_attempts=1))
    for path in (tmp_path / "artifacts").glob("??/*"):
        path.unlink()
    for run in (await d.client.get(whole.run_id), await d.client.cancel(whole.run_id)):
        assert run.result.reason.startswith(whole.result.reason)
        assert "does not have it: files, report, execution, diff" in run.result.reason
        assert run.result.attempts == whole.result.attempts
        assert not run.result.HasField("report")
        assert not run.result.files
