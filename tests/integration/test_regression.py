"""RegressionService over gRPC: real runs of a scripted model in a real sandbox, kept as cases and run again."""

import asyncio
import json
from contextlib import asynccontextmanager

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
