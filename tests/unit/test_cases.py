"""Cases: played again to the byte, told apart where something changed, and read from lines that anybody may make."""

import asyncio
import json
import threading
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from support.workflow import RIGHT, TASK, WORKFLOW, bench, fenced, wrong

from orchestrator.api import case_lines
from orchestrator.api.case_lines import LineCutter, read_case
from orchestrator.errors import InvalidRun
from orchestrator.models import CallOptions, ModelSpec, Reply, Usage
from orchestrator.runs.cases import (
    CaseBody,
    Expectation,
    ReplayPlayer,
    case_row,
    in_turn,
    line_of,
    load_body,
    read_line,
)
from orchestrator.runs.cases.body import RecordedAnswer, RecordedModel, RecordedStep
from orchestrator.runs.cases.playing import way
from orchestrator.runs.traces import path_to, read_points
from orchestrator.workflows import Outcome, RunOptions, asking
from orchestrator.workflows.sandbox import File


async def recorded(made, *, delivers=True) -> CaseBody:
    """Drives the run to its end and keeps it as a case."""
    end = await made.stint()
    points = await read_points(made.graph(), WORKFLOW, made.run_id)
    path = path_to(points, points[-1].checkpoint_id)
    files_hash = made.context.progress.find(end.conclusion.delivered).code_hash if delivers else ""
    return CaseBody(
        graph_version=WORKFLOW.version,
        spec=made.spec,
        model=RecordedModel(name="m", temperature=0.2, max_output_tokens=1000, context_tokens=8192),
        expectation=Expectation(outcome=end.conclusion.outcome, path=way(path), files_hash=files_hash),
        tape=tuple(RecordedAnswer.of(entry) for entry in await made.entries()),
        path=tuple(
            RecordedStep(step=p.step, source=p.source, next=p.next, state=json.loads(p.state_json)) for p in path
        ),
    )


CUT_OFF = Reply("```python\ndef add(", "", "length", Usage(1, 20, 10), "m", timedelta(seconds=0.25))


SMALL, LARGE = (0.2, 400, 700), (1.2, 5000, 40_000)  # temperature, tokens of a reply, window


@pytest.mark.parametrize(
    ("window", "output", "now"),
    [
        *((window, 1000, LARGE) for window in (1500, 2127, 2600)),
        *((window, output, SMALL) for window in (1500, 9000) for output in (300, 3000)),
    ],
)
async def test_a_case_is_played_with_the_parameters_of_its_run_not_with_those_of_today(tmp_path, window, output, now):
    replies = [fenced(wrong(1)), CUT_OFF, fenced(wrong(1)), fenced(wrong(2)), fenced(RIGHT)]
    notes = tuple(File(f"note_{n}.py", f"# {'x' * 190}\n".encode()) for n in range(12))
    task = replace(TASK, tests=(*TASK.tests, *notes))
    async with bench(tmp_path, lambda n: replies[n - 1], task=task, max_attempts=6) as made:
        model = ModelSpec("http://127.0.0.1/v1", "m", "", 0.9, output, window)
        made.models.spec = lambda _: model
        body = await recorded(made)
    temperature, max_output_tokens, context_tokens = now
    today = {"temperature": temperature, "max_output_tokens": max_output_tokens, "context_tokens": context_tokens}
    body = body.model_copy(update={"model": body.model.model_copy(update=today)})
    assert (await played(body)).divergence is None
    untold = [one.model_copy(update={"request": {**(one.request or {}), "made_with": {}}}) for one in body.tape]
    assert (await played(body.model_copy(update={"tape": tuple(untold)}))).divergence is not None


async def test_a_task_that_did_not_fit_the_window_of_its_run_does_not_fit_in_its_case(tmp_path):
    async with bench(tmp_path, lambda _: fenced(RIGHT), task=replace(TASK, task="Add. " * 500)) as made:
        made.models.spec = lambda _: ModelSpec("http://127.0.0.1/v1", "m", "", 0.2, 300, 900)
        body = await recorded(made, delivers=False)
    assert body.expectation.outcome is Outcome.ERROR
    small = body.model.model_copy(update={"max_output_tokens": 300, "context_tokens": 900})
    result = await played(body.model_copy(update={"model": small}))
    assert (result.passed, result.outcome) == (True, Outcome.ERROR)


@pytest_asyncio.fixture(scope="module")
async def body(tmp_path_factory) -> CaseBody:
    """A run that failed, had no code, failed again, and passed."""
    replies = [fenced(wrong(1)), "I cannot.", fenced(wrong(2)), fenced(RIGHT)]
    async with bench(tmp_path_factory.mktemp("run"), lambda n: replies[n - 1], max_attempts=6) as made:
        return await recorded(made)


def same(options: RunOptions) -> RunOptions:
    return options


async def played(body: CaseBody, change=same):
    return await ReplayPlayer()(case_row(body, tenant="", name="a case"), change)


async def test_a_case_read_back_is_played_again_to_the_byte(body):
    result = await played(load_body(body.dump()))
    assert (result.passed, result.outcome, result.reason, result.divergence) == (True, Outcome.PASSED, "", None)
    assert body.expectation.path[:4] == ("generate", "execute", "decide", "repair")
    assert load_body(body.dump()).dump() == body.dump()


async def test_candidates_side_by_side_are_played_again(tmp_path):
    async with bench(tmp_path, lambda n: fenced(RIGHT if n == 2 else wrong(n)), candidates=3) as made:
        body = await recorded(made)
    result = await played(body)
    assert (result.passed, result.divergence) == (True, None)
    assert body.expectation.path == ("candidate", "decide", "finalize")


async def test_whoever_leaves_a_play_ends_it_and_those_after_it_are_played(body, monkeypatch):
    entered, left = threading.Event(), threading.Event()
    read, calls = asking.read_code, []

    def waits(*arguments):
        calls.append(arguments)
        entered.set()
        assert left.wait(10)
        return read(*arguments)

    monkeypatch.setattr(asking, "read_code", waits)
    play, row = ReplayPlayer(), case_row(body, tenant="", name="a case")
    at_work, waiting, last = (asyncio.ensure_future(play(row, same)) for _ in range(3))
    assert await asyncio.to_thread(entered.wait, 10)
    at_work.cancel()
    waiting.cancel()
    left.set()
    assert (await last).passed
    assert at_work.cancelled()
    assert waiting.cancelled()
    assert len(calls) == 1 + 4  # the one at work was told before its next reply; the last has four


async def test_a_changed_prompt_flips_a_case_at_the_step_that_asks_for_it(body):
    result = await played(body, lambda options: replace(options, prompts={"system": "Answer in verse."}))
    assert (result.passed, result.outcome) == (False, None)
    assert (result.divergence.step, result.divergence.node, result.divergence.kind) == (1, "generate", "prompt")
    assert "+Answer in verse." in result.divergence.detail
    assert result.reason == "the replay left its recording at step 1 (generate): the prompt differs"


async def test_changed_parameters_flip_a_case_and_are_told_in_the_plural(body):
    result = await played(body, lambda options: replace(options, models={"coder": CallOptions(temperature=1.5)}))
    assert (result.passed, result.divergence.kind) == (False, "parameters")
    assert result.reason == "the replay left its recording at step 1 (generate): the parameters differ"


async def test_a_changed_limit_flips_the_outcome(body):
    result = await played(body, lambda options: replace(options, max_attempts=2))
    assert (result.passed, result.outcome, result.divergence.kind) == (False, Outcome.FAILED, "state")
    assert result.reason == "the outcome is FAILED, not PASSED"


async def test_a_prompt_of_countless_lines_is_compared_from_where_it_differs(body):
    first = body.tape[0]
    messages = [{**one, "text": one["text"] + "\nmore" * 500_000} for one in first.request["messages"]]
    other = first.model_copy(update={"request": {**first.request, "messages": messages}, "digest": "0" * 64})
    result = await played(body.model_copy(update={"tape": (other, *body.tape[1:])}))
    assert (result.passed, result.divergence.kind) == (False, "prompt")
    head, *lines = result.divergence.detail.splitlines()
    assert head.startswith("--- recorded prompt, from line ")
    assert "-more" in lines
    assert len(result.divergence.detail) <= 16 * 1024


async def test_a_tape_that_ends_early_flips_a_case_where_it_ends(body):
    result = await played(body.model_copy(update={"tape": body.tape[:2]}))
    assert (result.passed, result.divergence.kind, result.divergence.node) == (False, "tape", "repair")


async def test_a_node_that_breaks_flips_a_case_and_does_not_end_the_suite(body, monkeypatch):
    def broken(*_):
        raise TypeError("no such thing")

    monkeypatch.setattr(asking, "read_code", broken)
    result = await played(body)
    assert (result.passed, result.divergence.kind, result.divergence.node) == (False, "graph", "generate")
    assert "TypeError: no such thing" in result.divergence.detail


async def test_another_way_to_the_same_end_flips_a_case(body):
    expectation = body.expectation.model_copy(update={"path": ("generate", "execute", "finalize")})
    result = await played(body.model_copy(update={"expectation": expectation}))
    assert not result.passed
    assert result.reason.startswith("the way is generate > execute > decide")


async def test_other_files_at_the_same_end_flip_a_case(body):
    expectation = body.expectation.model_copy(update={"files_hash": "0" * 64})
    assert (await played(body.model_copy(update={"expectation": expectation}))).reason.startswith("other files")


async def test_another_version_of_the_graph_that_does_the_same_is_no_flip_but_is_told(body):
    result = await played(body.model_copy(update={"graph_version": 99}))
    assert (result.passed, result.divergence) == (True, None)
    assert "recorded with version 99 of the graph" in result.reason


async def test_a_state_that_differs_is_told_though_the_end_is_the_same(body):
    step = body.path[3]
    other = step.model_copy(update={"state": {**step.state, "base": 77}})
    result = await played(body.model_copy(update={"path": (*body.path[:3], other, *body.path[4:])}))
    assert (result.passed, result.divergence.kind, result.divergence.step) == (True, "state", step.step)
    assert "base: 77" in result.divergence.detail


async def test_a_line_is_read_back_as_it_was(body):
    line = line_of("näme", body.dump())
    read = read_case("line 1", line)
    assert (read.name, read.case.dump()) == ("näme", body.dump())
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda line: line.update(name=""), "name"),
        (lambda line: line.update(name="case_" + "0" * 24), "name"),
        (lambda line: line.update(name="a\nb"), "name"),
        (lambda line: line.update(more=1), "more"),
        (lambda line: line["case"].update(format=2), "case.format"),
        (lambda line: line["case"].update(path=[]), "case.path"),
        (lambda line: line["case"].update(tape="no"), "case.tape"),
        (lambda line: line["case"]["tape"][0].update(digest="zz"), "case.tape.0.digest"),
        (lambda line: line["case"]["tape"][0].update(elapsed_us=10**30), "case.tape.0.elapsed_us"),
        (lambda line: line["case"]["path"][0].update(source="elsewhere"), "case.path.0.source"),
        (lambda line: line["case"]["expectation"].update(outcome="GOOD"), "case.expectation.outcome"),
        (lambda line: line["case"]["artifacts"].update(name="AAAA"), "case.artifacts.name"),
        (lambda line: line["case"]["spec"]["options"].update(max_attempts=10**6), "case.spec.options.max_attempts"),
        (lambda line: line["case"]["spec"]["options"].update(max_attempts=10**12), "case.spec"),
        (lambda line: line["case"]["spec"]["options"].update(timeout="P9999D"), "case.spec.options.timeout"),
        (lambda line: line["case"]["spec"]["task"].update(task=""), "case.spec.codegen.task"),
        (lambda line: line["case"]["spec"]["task"].update(solution_path="../up.py"), "case.spec.codegen.solution_path"),
        (lambda line: line["case"]["spec"].update(workflow="other"), "case.spec.workflow"),
        (lambda line: line["case"]["spec"].update(labels={"a\x00": "b"}), "line 7"),
    ],
)
async def test_a_line_that_is_no_case_is_refused_by_its_field(body, change, field):
    line = json.loads(line_of("a", body.dump()))
    change(line)
    with pytest.raises(InvalidRun) as caught:
        read_case("line 7", json.dumps(line).encode())
    assert caught.value.violations[0][0].startswith("line 7")
    assert field in caught.value.violations[0][0]


@pytest.mark.parametrize("depth", [300, 100_000])
async def test_deep_nesting_is_refused(body, depth):
    deep = b"[" * depth + b"]" * depth
    line = line_of("a", body.dump()).replace(b'"request":{', b'"request":' + deep + b',"response":{', 1)
    with pytest.raises(InvalidRun, match="line 1"):
        read_line(line, "line 1")


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=300)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(
        lambda value: json.dumps({"name": "a", "case": value}).encode()
    )
)
def test_whatever_a_line_holds_it_is_a_case_or_refused(raw):
    with pytest.raises(InvalidRun):
        read_case("line 1", raw)


@given(st.lists(st.binary(max_size=20)), st.data())
def test_lines_are_the_same_however_they_are_cut(pieces, data):
    whole = b"\n".join(pieces)
    at = data.draw(st.integers(0, len(whole)))
    expected = [(f"f: line {n}", line) for n, line in enumerate(whole.split(b"\n"), 1) if line.strip()]
    cutter = LineCutter("f")
    assert [*cutter.feed(whole[:at]), *cutter.feed(whole[at:]), *cutter.end()] == expected


def test_a_line_over_its_limit_is_refused_before_it_ends():
    cutter, piece = LineCutter("f"), b"x" * 1024 * 1024
    list(cutter.feed(b"\n\n"))
    for _ in range(32):
        list(cutter.feed(piece))
    with pytest.raises(InvalidRun, match="f: line 3: must have at most 33554432 bytes"):
        list(cutter.feed(b"x"))


def test_more_cases_or_bytes_than_the_limit_are_refused(monkeypatch):
    monkeypatch.setattr(case_lines, "MAXIMUM_CASES", 2)
    with pytest.raises(InvalidRun, match="line 3: is one case too many; at most 2"):
        list(LineCutter("f").feed(b"a\nb\nc\n"))
    monkeypatch.setattr(case_lines, "MAXIMUM_BYTES", 9)
    with pytest.raises(InvalidRun, match="at most 9 bytes in all"):
        list(LineCutter("f").feed(b"0123456789"))


async def test_so_many_cases_run_at_one_time_as_are_allowed_and_all_of_them_do():
    at_work = most = 0

    async def work(number):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0)
        at_work -= 1
        return number

    async with aclosing(in_turn(range(50), work, 3)) as results:
        assert sorted([result async for result in results]) == list(range(50))
    assert most == 3


async def test_whoever_leaves_a_suite_ends_the_cases_at_work():
    ended = []

    async def work(number):
        if number:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.append(number)
        return number

    async with aclosing(in_turn(range(9), work, 3)) as results:
        async for result in results:
            assert result == 0
            break
    assert sorted(ended) == [1, 2, 3]


async def test_an_error_ends_a_suite_as_itself():
    async def work(number):
        if number == 1:
            raise InvalidRun(("a", "b"))
        return number

    async def all_of_them():
        async with aclosing(in_turn(range(5), work, 1)) as results:
            return [result async for result in results]

    with pytest.raises(InvalidRun):
        await all_of_them()
