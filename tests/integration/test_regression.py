"""RegressionService over gRPC: real runs of a scripted model in a real sandbox, kept as cases and run again."""

import asyncio
import json
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import debug_pb2, debug_pb2_grpc, regression_pb2_grpc, runs_pb2
from codemend.orchestrator.v1 import regression_pb2 as pb
from codemend.rpc import open_channel
from codemend.sandbox.v1 import sandbox_pb2
from support.openai_server import Scripted, scripted_openai
from support.orchestrator import CALL_SECONDS, fence, running_orchestrator, spec
from support.sandbox import running_sandbox

from orchestrator.models import CallOptions
from orchestrator.runs.cases import case_row, limits, load_body
from orchestrator.workflows import asking

TESTS = {"test_solution.py": "from solution import add\n\ndef test_one():\n    assert add(1, 2) == 3\n"}
RIGHT = fence("def add(a, b):\n    return a + b")
WRONG = fence("def add(a, b):\n    return a - b")
PASSED, FAILED = runs_pb2.RUN_OUTCOME_PASSED, runs_pb2.RUN_OUTCOME_FAILED
KEY = "sk-a-key-of-the-service"


class Keeper:
    """A client of all three services."""

    def __init__(self, client, channel, model) -> None:
        self.runs, self.model = client, model
        self.cases = regression_pb2_grpc.RegressionServiceStub(channel)
        self.debug = debug_pb2_grpc.DebugServiceStub(channel)

    async def create(self, run_id, name="", tenant="", **fields) -> pb.Case:
        request = pb.CreateCaseRequest(run_id=run_id, name=name, **fields)
        return (await self.cases.CreateCase(request, metadata=of(tenant), timeout=CALL_SECONDS)).case

    async def names(self, tenant="", **fields) -> list[str]:
        answer = await self.cases.ListCases(pb.ListCasesRequest(**fields), metadata=of(tenant), timeout=CALL_SECONDS)
        return [case.name for case in answer.cases]

    async def export(self, *case_ids) -> bytes:
        call = self.cases.ExportCases(pb.ExportCasesRequest(case_ids=case_ids), timeout=CALL_SECONDS)
        return b"".join([answer.json_lines async for answer in call])

    async def add(self, *pieces, tenant="") -> list[pb.Case]:
        requests = (pb.ImportCasesRequest(json_lines=piece) for piece in pieces)
        return (await self.cases.ImportCases(requests, metadata=of(tenant), timeout=CALL_SECONDS)).cases

    async def suite(self, *case_ids, tenant="", **fields) -> tuple[dict[str, pb.CaseResult], pb.SuiteReport]:
        request = pb.RunSuiteRequest(case_ids=case_ids, **fields)
        call = self.cases.RunSuite(request, metadata=of(tenant), timeout=CALL_SECONDS)
        *results, last = [answer async for answer in call]
        return {answer.case_result.case.name: answer.case_result for answer in results}, last.report


def of(tenant):
    return (("x-codemend-tenant", tenant),) if tenant else ()


@pytest_asyncio.fixture(scope="module")
async def sandbox():
    async with running_sandbox(SANDBOX_CONCURRENCY="2") as address:
        yield address


@pytest.fixture
def keeper(sandbox, tmp_path):
    @asynccontextmanager
    async def start(replies, **settings):
        async with (
            scripted_openai(replies, api_key=KEY) as model,
            running_orchestrator(
                sandbox=sandbox,
                model_url=model.base_url,
                data_dir=tmp_path,
                **{"model_retries": 0, "api_key": KEY, **settings},
            ) as client,
            open_channel(client.address) as channel,
        ):
            yield Keeper(client, channel, model)

    return start


def code_of(error) -> grpc.StatusCode:
    return error.value.code()


async def test_a_passed_run_is_a_case_that_plays_without_a_model(keeper):
    async with keeper([WRONG, RIGHT]) as service:
        run = await service.runs.generate(spec(tests=TESTS))
        case = await service.create(run.run_id, "add")
        results, report = await service.suite()
        assert (case.run_id, case.expectation.outcome, case.tape_entries) == (run.run_id, PASSED, 4)
        assert list(case.expectation.path) == [
            *("generate", "execute", "decide", "repair", "execute", "decide", "finalize")
        ]
        assert (results["add"].passed, results["add"].outcome, results["add"].reason) == (True, PASSED, "")
        assert not results["add"].HasField("divergence")
        assert (report.total, report.passed, report.flipped) == (1, 1, 0)
        assert len(service.model.requests) == 2


async def test_a_run_with_candidates_and_one_with_a_check_are_cases(keeper):
    async with keeper(lambda _: RIGHT) as service:
        many = await service.runs.generate(spec(tests=TESTS, candidates=3))
        checked = await service.runs.generate(spec(check_script="from solution import add\nassert add(1, 2) == 3\n"))
        for run in (many, checked):
            assert run.result.outcome == PASSED
            await service.create(run.run_id)
        results, report = await service.suite()
        assert report.passed == 2, results


async def test_a_failed_run_is_a_case_of_what_ought_to_come_out(keeper):
    async with keeper([WRONG, RIGHT]) as service:
        run = await service.runs.generate(spec(tests=TESTS, max_attempts=1))
        assert run.result.outcome == FAILED
        case = await service.create(run.run_id, "ought", expected_outcome=PASSED)
        assert (case.expectation.outcome, list(case.expectation.path)) == (PASSED, [])
        played, report = await service.suite()
        assert (played["ought"].passed, played["ought"].outcome, report.flipped) == (False, FAILED, 1)
        live, report = await service.suite(mode=pb.SUITE_MODE_LIVE)
        assert (live["ought"].passed, live["ought"].outcome, report.passed) == (True, PASSED, 1)
        made = await service.runs.get(live["ought"].run_id)
        assert (made.labels["case"], made.labels["suite"][:6]) == ("ought", "suite_")


@pytest.mark.parametrize(
    ("recorded", "now"),
    [
        pytest.param(
            {"temperature": 0.9, "max_output_tokens": 700, "context_tokens": 6000},
            {"temperature": 0.3, "max_output_tokens": 3000, "context_tokens": 64_000},
            id="warmer and shorter",
        ),
        pytest.param(
            {"temperature": 0.1, "max_output_tokens": 900, "context_tokens": 2200},
            {"temperature": 1.5, "max_output_tokens": 200, "context_tokens": 4000},
            id="a reply as long as half of the window",
        ),
        pytest.param(
            {"temperature": 0.2, "max_output_tokens": 4000, "context_tokens": 5000},
            {"temperature": 0.2, "max_output_tokens": 500, "context_tokens": 900},
            id="a reply longer than half of the window",
        ),
    ],
)
async def test_a_case_is_of_the_model_that_the_run_was_made_with_whatever_the_service_has_by_now(keeper, recorded, now):
    cut_off = Scripted(text="```python\ndef add(a, b):", finish_reason="length")
    async with keeper([cut_off, WRONG, WRONG, RIGHT], **recorded) as service:
        run = await service.runs.generate(spec(tests=TESTS, max_attempts=5))
        assert run.result.outcome == PASSED
        asked = {(one.body["temperature"], one.body["max_tokens"]) for one in service.model.requests}
        assert len(asked) > 1  # as usual, with room for a longer reply, warmer: what a case must know
    async with keeper([], **now) as service:
        await service.create(run.run_id, "add")
        results, report = await service.suite(mode=pb.SUITE_MODE_REPLAY)
        assert (report.flipped, results["add"].reason) == (0, ""), results


@pytest.mark.parametrize("window", [1024, 1111, 1530, 8192])
@pytest.mark.parametrize("output", [400, 700])
async def test_a_case_knows_the_window_that_cut_its_prompts(keeper, window, output):
    bodies = {f"test_{name}.py": f"# {name * 700}\n{TESTS['test_solution.py']}" for name in "abcde"}
    async with keeper([WRONG, RIGHT], context_tokens=window, max_output_tokens=output) as service:
        run = await service.runs.generate(spec(tests=bodies))
        assert run.result.outcome == PASSED
        shown = [name for name in "abcde" if name * 700 in service.model.requests[0].prompt]
        assert (len(shown) < len(bodies)) == (window < 2000)
    async with keeper([], context_tokens=1250 if window > 2000 else 20_000, max_output_tokens=output) as service:
        await service.create(run.run_id, "add")
        results, report = await service.suite()
        assert (report.flipped, results["add"].reason) == (0, ""), results


async def test_other_prompts_flip_a_case_at_the_step_that_uses_them(keeper):
    async with keeper([WRONG, RIGHT]) as service:
        await service.create((await service.runs.generate(spec(tests=TESTS))).run_id, "add")
        results, report = await service.suite(options=runs_pb2.RunOptions(prompts={"system": "Answer in verse."}))
        found = results["add"]
        assert (found.passed, report.flipped) == (False, 1)
        assert (found.divergence.step, found.divergence.node, found.divergence.kind) == (1, "generate", "prompt")
        assert "+Answer in verse." in found.divergence.detail


async def test_a_run_that_was_edited_while_it_waited_is_a_case(keeper):
    async with keeper([WRONG]) as service:
        run = await service.runs.create(spec(tests=TESTS, interrupt_before=["execute"]))
        waiting = (await service.runs.wait_for(run.run_id, lambda event: event.HasField("wait"))).wait
        edit = debug_pb2.StateEdit(files=[sandbox_pb2.File(path="solution.py", content=b"add = lambda a, b: a + b\n")])
        request = debug_pb2.UpdateStateRequest(run_id=run.run_id, checkpoint_id=waiting.checkpoint_id, edit=edit)
        await service.debug.UpdateState(request, timeout=CALL_SECONDS)
        await service.debug.ResumeRun(
            debug_pb2.ResumeRunRequest(run_id=run.run_id, breakpoints=debug_pb2.Breakpoints()), timeout=CALL_SECONDS
        )
        await service.runs.events(run.run_id)
        assert (await service.runs.get(run.run_id)).result.outcome == PASSED
        await service.create(run.run_id, "edited")
        results, _ = await service.suite()
        assert (results["edited"].passed, results["edited"].reason) == (True, "")


async def test_a_fork_with_other_prompts_is_a_case_that_begins_where_it_branched_off(keeper):
    async with keeper([WRONG, WRONG, RIGHT]) as service:
        run = await service.runs.generate(spec(tests=TESTS, max_attempts=2))
        listed = await service.debug.ListCheckpoints(
            debug_pb2.ListCheckpointsRequest(run_id=run.run_id), timeout=CALL_SECONDS
        )
        at = next(point for point in listed.checkpoints if list(point.next) == ["repair"])
        request = debug_pb2.ForkRunRequest(
            run_id=run.run_id,
            checkpoint_id=at.checkpoint_id,
            options=runs_pb2.RunOptions(prompts={"system": "You are careful."}),
        )
        fork = (await service.debug.ForkRun(request, timeout=CALL_SECONDS)).run
        await service.runs.events(fork.run_id)
        assert (await service.runs.get(fork.run_id)).result.outcome == PASSED
        case = await service.create(fork.run_id, "fork")
        assert list(case.expectation.path) == ["repair", "execute", "decide", "finalize"]
        results, _ = await service.suite()
        assert (results["fork"].passed, results["fork"].reason) == (True, "")


async def test_only_a_run_that_came_to_its_own_end_is_a_case(keeper):
    gate = asyncio.Event()
    async with keeper([Scripted(text=RIGHT, gate=gate)]) as service:
        run = await service.runs.create(spec(tests=TESTS))
        with pytest.raises(grpc.aio.AioRpcError) as at_work:
            await service.create(run.run_id)
        await service.runs.cancel(run.run_id)
        with pytest.raises(grpc.aio.AioRpcError) as cancelled:
            await service.create(run.run_id)
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await service.create("run_none")
        assert code_of(at_work) == code_of(cancelled) == grpc.StatusCode.FAILED_PRECONDITION
        assert code_of(unknown) == grpc.StatusCode.NOT_FOUND


async def test_a_name_is_one_case_of_a_tenant(keeper):
    async with keeper([RIGHT, RIGHT]) as service:
        one, two = [(await service.runs.generate(spec(f"Add {n}.", tests=TESTS))).run_id for n in "ab"]
        first = await service.create(one, "add")
        assert (await service.create(one, "add")).case_id == first.case_id
        with pytest.raises(grpc.aio.AioRpcError) as taken:
            await service.create(two, "add")
        assert code_of(taken) == grpc.StatusCode.ALREADY_EXISTS
        await service.create(two, "add", tenant="other")
        await service.create(two, "zz")
        assert await service.names() == ["add", "zz"]
        assert await service.names(page_size=1, page_token="add") == ["zz"]
        await service.cases.DeleteCase(pb.DeleteCaseRequest(case_id="add"), timeout=CALL_SECONDS)
        assert (await service.names(), await service.names("other")) == (["zz"], ["add"])
        with pytest.raises(grpc.aio.AioRpcError) as gone:
            await service.suite("add")
        assert code_of(gone) == grpc.StatusCode.NOT_FOUND


async def test_cases_travel_to_another_tenant_without_secrets(keeper):
    async with keeper([fence(f"KEY = '{KEY}'\ndef add(a, b):\n    return a - b"), RIGHT]) as service:
        run = await service.runs.generate(spec(tests=TESTS))
        await service.create(run.run_id, "add")
        lines = await service.export()
        assert KEY.encode() not in lines
        assert b"[secret]" in lines
        half = len(lines) // 2
        added = await service.add(lines[:half], lines[half:], tenant="other")
        assert [(case.name, case.run_id) for case in added] == [("add", "")]
        assert await service.add(lines, tenant="other") == []
        results, _ = await service.suite(tenant="other")
        assert (results["add"].passed, results["add"].reason) == (True, "")
        assert json.loads(lines)["case"]["spec"]["tenant"] == ""


async def test_an_import_is_all_or_none_and_names_the_line(keeper):
    async with keeper([RIGHT]) as service:
        await service.create((await service.runs.generate(spec(tests=TESTS))).run_id, "add")
        line = await service.export("add")
        good = line.replace(b'"name":"add"', b'"name":"other"')
        for wrong in (
            b'{"name": "x"}\n',
            b"[" * 100_000 + b"\n",
            b"\xff\n",
            line.replace(b'"format":1', b'"format":7'),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await service.add(good, b"\n", wrong)
            assert code_of(refused) == grpc.StatusCode.INVALID_ARGUMENT
            assert "line 3" in refused.value.details()
        with pytest.raises(grpc.aio.AioRpcError) as twice:
            await service.add(good, good.replace(b'"format":1', b'"format":1 ').replace(b"PASSED", b"FAILED"))
        assert code_of(twice) == grpc.StatusCode.ALREADY_EXISTS
        with pytest.raises(grpc.aio.AioRpcError) as large:
            await service.add(b" " * (1024 * 1024 + 1))
        assert code_of(large) == grpc.StatusCode.INVALID_ARGUMENT
        assert await service.names() == ["add"]


def edited(line: bytes, change) -> bytes:
    """A case of another name that `change` has changed, as a line."""
    case = json.loads(line)
    case["name"] = "made up"
    change(case["case"])
    return json.dumps(case).encode() + b"\n"


def step(case, **fields):
    return {**case["path"][3], **fields}


def answer(case, number, **fields):
    case["tape"][number].update(fields)


REFUSED = {
    "steps": (lambda c: c["path"].extend([step(c)] * 2000), "path", "at most 2000 steps"),
    "updates": (lambda c: c["path"].extend([step(c, source="update")] * 201), "path", "at most 200 steps whose source"),
    "next": (lambda c: c["path"][3].update(next=["decide"] * 65), "path.3.next", "at most 64 nodes, not 65"),
    "node": (lambda c: c["path"][3].update(next=["x" * 129]), "path.3.next.0", "at most 128 characters"),
    "way": (lambda c: c["expectation"].update(path=["a"] * 2001), "expectation.path", "at most 2000 nodes, not 2001"),
    "entries": (lambda c: c["tape"].extend(c["tape"] * 1000), "tape", "at most 4000 entries"),
    "artifacts": (
        lambda c: c.update(artifacts={f"{n:064x}": "" for n in range(1001)}),
        "artifacts",
        "at most 1000 artifacts, not 1001",
    ),
    "bytes": (
        lambda c: c.update(artifacts={f"{n:064x}": "A" * 2**22 for n in range(6)}),
        "artifacts",
        "at most 16777216 bytes in all, not 18874368",
    ),
    "text": (lambda c: answer(c, 0, response={"answer": "x" * (6 * 2**20 + 1)}), "tape.0", "no text of more than"),
    "values": (lambda c: c["path"][3]["state"].update(x=[[]] * 300_001), "", "at most 600000 commas and brackets"),
    "names": (
        lambda c: c["path"][3]["state"].update({str(n): 1 for n in range(10_000)}),
        "",
        "at most 10000 different",
    ),
    "files": (lambda c: c["spec"]["task"].update(files=[1] * 4001), "spec", "at most 4000 values"),
    "fields": (lambda c: c["path"][3].update({str(n): 1 for n in range(40)}), "path.3", "at most 32 fields"),
    "cancelled": (
        lambda c: c["expectation"].update(outcome="CANCELLED"),
        "expectation.outcome",
        "no outcome that a run",
    ),
    "no version": (lambda c: c.update(graph_version=0), "graph_version", "must be from 1 to"),
    "no version yet": (lambda c: c.update(graph_version=99), "graph_version", "must be from 1 to"),
    "no answer": (lambda c: answer(c, 0, response={}), "tape.0.response", 'must have "answer" or "error"'),
    "both": (lambda c: c["tape"][0]["response"].update(error=1), "tape.0.response", 'must have "answer" or "error"'),
    "junk": (
        lambda c: answer(c, 0, response={"answer": 5}),
        "tape.0.response.answer",
        "none that is given for a model",
    ),
    "other": (
        lambda c: answer(c, 1, response=c["tape"][0]["response"]),
        "tape.1.response.answer",
        "none that is given for a sandbox",
    ),
    "error": (
        lambda c: answer(c, 0, response={"error": {"type": "SystemExit", "message": "x"}}),
        "tape.0.response.error",
        "none that is given for a model",
    ),
    "no request": (lambda c: answer(c, 0, request=None), "tape.0.request", "must be an object"),
    "no role": (lambda c: c["tape"][0]["request"].pop("role"), "tape.0.request.role", "is required"),
    "no messages": (lambda c: c["tape"][0]["request"].pop("messages"), "tape.0.request.messages", "is required"),
    "messages": (lambda c: c["tape"][0]["request"].update(messages=[1]), "tape.0.request.messages.0", "is no case"),
    "parameters": (
        lambda c: c["tape"][0]["request"].update(made_with={"temperature": "hot"}),
        "tape.0.request.made_with.temperature",
        "is no case",
    ),
    "race": (lambda c: answer(c, 0, kind="race", response={"answer": 1}), "tape.0.request", "must be null"),
}


async def test_a_case_that_no_run_can_have_left_is_refused_with_its_line_field_and_limit(keeper):
    async with keeper([WRONG, RIGHT]) as service:
        await service.create((await service.runs.generate(spec(tests=TESTS))).run_id, "add")
        line = await service.export("add")
        for name, (change, field, words) in REFUSED.items():
            wrong = b"\n" + edited(line, change)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await service.add(*(wrong[at : at + 2**20] for at in range(0, len(wrong), 2**20)))
            assert code_of(refused) == grpc.StatusCode.INVALID_ARGUMENT, name
            at = f"json_lines: line 2.case.{field}" if field else "json_lines: line 2"
            assert refused.value.details().startswith(f"{at}: "), (name, refused.value.details())
            assert words in refused.value.details(), (name, refused.value.details())
        assert await service.names() == ["add"]
        much = edited(line, lambda case: case["path"].extend([step(case)] * (2000 - len(case["path"]))))
        assert [case.name for case in await service.add(much[: 2**20], much[2**20 :])] == ["made up"]


async def test_empty_lines_are_left_out_as_long_as_they_are_not_countless(keeper):
    async with keeper([RIGHT]) as service:
        await service.create((await service.runs.generate(spec(tests=TESTS))).run_id, "add")
        line = await service.export("add")
        for empty in (b"\n", b" \n"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await service.add(line, empty * 50_000, empty * 50_000)
            assert code_of(refused) == grpc.StatusCode.INVALID_ARGUMENT
            assert "json_lines: must have at most 100000 lines" in refused.value.details()
        assert [case.name for case in await service.add(b"\n" * 90_000, line, tenant="other")] == ["add"]


async def test_the_service_answers_while_a_case_is_played(keeper, monkeypatch):
    entered, answered = threading.Event(), threading.Event()
    read = asking.read_code

    def waits(*arguments):
        entered.set()
        assert answered.wait(CALL_SECONDS)
        return read(*arguments)

    async with keeper([RIGHT]) as service:
        run = await service.runs.generate(spec(tests=TESTS))
        await service.create(run.run_id, "add")
        monkeypatch.setattr(asking, "read_code", waits)
        suite = asyncio.create_task(service.suite("add"))
        assert await asyncio.to_thread(entered.wait, CALL_SECONDS)
        assert (await service.runs.get(run.run_id)).result.outcome == PASSED
        answered.set()
        results, _ = await suite
        assert results["add"].passed, results


async def test_a_run_takes_the_place_of_a_case_and_nothing_is_lost_where_it_cannot(keeper):
    gate = asyncio.Event()
    async with keeper([WRONG, RIGHT, RIGHT, Scripted(text=RIGHT, gate=gate)]) as service:
        first = await service.create((await service.runs.generate(spec(tests=TESTS))).run_id, "add")
        run = await service.runs.generate(spec(tests=TESTS))
        second = await service.create(run.run_id, "add", replace=True)
        assert (second.case_id, second.run_id, second.tape_entries) == (first.case_id, run.run_id, 2)
        assert (await service.create(run.run_id, "add", replace=True)).case_id == first.case_id
        kept = await service.export()
        assert json.loads(kept)["case"]["expectation"]["path"] == ["generate", "execute", "decide", "finalize"]
        waiting = await service.runs.create(spec(tests=TESTS))
        await service.model.wait_for_requests(4)
        await service.runs.cancel(waiting.run_id)
        with pytest.raises(grpc.aio.AioRpcError) as cancelled:
            await service.create(waiting.run_id, "add", replace=True)
        assert code_of(cancelled) == grpc.StatusCode.FAILED_PRECONDITION
        assert await service.export() == kept
        await service.create(run.run_id, "new", replace=True)
        assert await service.names() == ["add", "new"]


@pytest.mark.parametrize("mode", [pb.SUITE_MODE_REPLAY, pb.SUITE_MODE_LIVE])
async def test_options_that_do_not_fit_those_of_a_case_flip_it_and_the_others_are_run(keeper, mode):
    async with keeper(lambda _: RIGHT) as service:
        for name, attempts in (("few", 2), ("many", 5)):
            run = await service.runs.generate(spec(tests=TESTS, max_attempts=attempts))
            await service.create(run.run_id, name)
        results, report = await service.suite(mode=mode, options=runs_pb2.RunOptions(candidates=3))
        assert report.total == 2
        assert (results["few"].passed, results["few"].outcome) == (False, runs_pb2.RUN_OUTCOME_ERROR)
        assert "candidates: must be at most max_attempts (2), not 3" in results["few"].reason
        assert "no run can be made" not in results["many"].reason


async def test_a_run_over_the_limits_of_cases_is_none_and_a_kept_case_over_them_flips(keeper, monkeypatch):
    async with keeper([RIGHT]) as service:
        run = await service.runs.generate(spec(tests=TESTS))
        await service.create(run.run_id, "kept")
        monkeypatch.setattr(limits, "MAXIMUM_STEPS", 3)
        with pytest.raises(grpc.aio.AioRpcError) as large:
            await service.create(run.run_id, "new")
        assert code_of(large) == grpc.StatusCode.FAILED_PRECONDITION
        assert "is too large for a case: path: must have at most 3 steps" in large.value.details()
        for mode in (pb.SUITE_MODE_REPLAY, pb.SUITE_MODE_LIVE):
            results, report = await service.suite(mode=mode)
            assert (report.flipped, results["kept"].outcome) == (1, runs_pb2.RUN_OUTCOME_ERROR)
            assert "path: must have at most 3 steps" in results["kept"].reason


async def test_whoever_leaves_a_live_suite_takes_its_runs_with_them(keeper):
    gate = asyncio.Event()
    async with keeper([RIGHT, Scripted(text=RIGHT, gate=gate)]) as service:
        await service.create((await service.runs.generate(spec(tests=TESTS))).run_id, "add")
        call = service.cases.RunSuite(pb.RunSuiteRequest(mode=pb.SUITE_MODE_LIVE), timeout=CALL_SECONDS)
        await service.model.wait_for_requests(2)
        call.cancel()
        await service.model.wait_for_disconnects(1)
        listed = await service.runs.stub.ListRuns(runs_pb2.ListRunsRequest(page_size=1), timeout=CALL_SECONDS)
        events = await service.runs.events(listed.runs[0].run_id)
        assert events[-1].state_changed.state == runs_pb2.RUN_STATE_CANCELLED


def changed(line: bytes, name: str, **options) -> bytes:
    """A case of another name and with other options, as a line."""
    case = json.loads(line)
    case["name"] = name
    case["case"]["spec"]["options"].update(options)
    return json.dumps(case).encode() + b"\n"


async def test_a_live_case_that_asks_for_what_there_is_not_is_an_error_that_says_so(keeper):
    async with keeper([RIGHT, RIGHT]) as service:
        await service.create((await service.runs.generate(spec(tests=TESTS))).run_id, "good")
        line = await service.export("good")
        limits = json.loads(line)["case"]["spec"]["options"]["limits"]
        await service.add(
            changed(line, "place", environment="a-place-that-is-gone"),
            changed(line, "large", limits={**limits, "memory_bytes": 2**50}),
        )
        results, report = await service.suite(mode=pb.SUITE_MODE_LIVE)
        assert (report.total, report.passed, report.flipped) == (3, 1, 2)
        assert results["good"].passed
        for name, words in (
            ("place", "spec.options.environment: the sandbox has no 'a-place-that-is-gone'; it has: base"),
            ("large", "spec.options.limits.memory_bytes: must be at most"),
        ):
            found = results[name]
            assert (found.passed, found.outcome, found.run_id) == (False, runs_pb2.RUN_OUTCOME_ERROR, "")
            assert found.reason.startswith("no run can be made of it: ")
            assert words in found.reason
        played, _ = await service.suite("large")
        assert played["large"].divergence.kind == "sandbox job"  # a replay asks no sandbox, and tells what differs
        assert len(service.model.requests) == 2


async def test_a_suite_that_asks_for_what_there_is_not_is_an_error_in_each_live_case(keeper):
    async with keeper([RIGHT]) as service:
        run = await service.runs.generate(spec(tests=TESTS))
        for name in ("one", "two"):
            await service.create(run.run_id, name, expected_outcome=runs_pb2.RUN_OUTCOME_ERROR)
        options = runs_pb2.RunOptions(environment="nowhere")
        results, report = await service.suite(mode=pb.SUITE_MODE_LIVE, options=options)
        assert (report.total, report.flipped) == (2, 2)  # although an error is expected: nothing was run
        assert all("the sandbox has no 'nowhere'" in result.reason for result in results.values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda kept: replace(kept, workflow="retired"), "spec.workflow: must be empty or 'codegen', not 'retired'"),
        (lambda kept: with_options(kept, models={"painter": CallOptions(model="m")}), "spec.options.models"),
        (lambda kept: with_options(kept, max_attempts=10**12), "spec: holds a value that no request can have"),
    ],
    ids=["workflow", "role", "number"],
)
async def test_a_kept_case_of_an_older_service_that_none_can_run_any_more_is_an_error(keeper, change, words):
    async with keeper([RIGHT]) as service:
        run = await service.runs.generate(spec(tests=TESTS))
        await service.create(run.run_id, "good")
        rows = service.runs.parts.runs.cases
        body = load_body((await rows.get("", "good")).body)
        await rows.add([case_row(body.model_copy(update={"spec": change(body.spec)}), tenant="", name="old")])
        results, _ = await service.suite("old", mode=pb.SUITE_MODE_LIVE)
        assert (results["old"].passed, results["old"].outcome) == (False, runs_pb2.RUN_OUTCOME_ERROR)
        assert words in results["old"].reason


def with_options(kept, **options):
    return replace(kept, options=replace(kept.options, **options))


async def test_a_live_case_does_not_wait_at_the_breakpoints_that_it_was_imported_with(keeper):
    async with keeper([RIGHT, RIGHT]) as service:
        await service.create((await service.runs.generate(spec(tests=TESTS))).run_id, "add")
        await service.add(changed(await service.export("add"), "stops", interrupt_before=["execute"]))
        results, _ = await service.suite("stops", mode=pb.SUITE_MODE_LIVE)
        assert (results["stops"].passed, results["stops"].outcome) == (True, PASSED)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"concurrency": 65}, "concurrency"),
        ({"mode": 9}, "mode"),
        ({"options": runs_pb2.RunOptions(interrupt_after=["*"])}, "options"),
        ({"options": runs_pb2.RunOptions(prompts={"nothing": "x"})}, "options.prompts[nothing]"),
    ],
)
async def test_a_wrong_request_names_its_field(keeper, fields, field):
    async with keeper([]) as service:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await service.suite(**fields)
        assert code_of(refused) == grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details().startswith(f"{field}: ")
