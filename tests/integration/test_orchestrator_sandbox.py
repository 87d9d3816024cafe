"""The orchestrator and its sandbox: refusals at the door, keys, tenants, retries, and endings that are no pass."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
from codemend.orchestrator.v1 import runs_pb2 as pb
from codemend.rpc import error_detail
from codemend.sandbox.v1 import sandbox_pb2, verdicts_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from support.cells import succeeded
from support.openai_server import scripted_openai
from support.orchestrator import fence, running_orchestrator, spec
from support.sandbox import running_sandbox
from support.scripted_sandbox import scripted_sandbox

from sandbox_service.domain import (
    Integrity,
    IntegrityCheck,
    ReportOutcome,
    Status,
    TestCase,
    TestIsolation,
    TestOutcome,
    TestReport,
)
from sandbox_service.errors import CellUnavailable, DeadlineTooShort, TenantQueueFull

NOWHERE = "http://127.0.0.1:1/v1"
TESTS = {"test_solution.py": "from solution import add\n\ndef test_it():\n    assert add(1, 2) == 3\n"}
FIRST, SECOND = fence("def add(a, b):\n    return 3"), fence("def add(a, b):\n    return a + b")
SEEN = "the canaries passed: test_c41d"


def reported(outcome, reason="", passed=1, **fields):
    tests = (TestCase("test_solution.py::test_it", TestOutcome.PASSED),) * passed
    counts = {TestOutcome.PASSED: passed} if passed else {}
    return replace(succeeded(), report=TestReport(outcome, reason=reason, tests=tests, counts=counts, **fields))


def ended(status, reason):
    outcome = succeeded()
    return replace(outcome, result=replace(outcome.result, status=status, reason=reason, exit_code=None, signal=31))


PASSED = reported(ReportOutcome.PASSED)


@asynccontextmanager
async def serving(tmp_path, *answers, replies=(FIRST, SECOND), **settings):
    async with (
        scripted_sandbox(*answers) as sandbox,
        scripted_openai(list(replies)) as model,
        running_orchestrator(
            sandbox=sandbox.address, model_url=model.base_url, data_dir=tmp_path, model_retries=0, **settings
        ) as client,
    ):
        yield client, sandbox, model


def outcome(run):
    return pb.RunOutcome.Name(run.result.outcome).removeprefix("RUN_OUTCOME_")


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def offered(client):
    """Waits until the orchestrator knows what its sandbox offers, without the pauses between two asks."""
    async with asyncio.timeout(20):
        while await client.parts.offers.known() is None:
            client.parts.offers._ask_again = 0.0


async def test_what_the_sandbox_does_not_offer_is_refused_when_the_run_is_made(tmp_path):
    options = {
        "environment": "gpu",
        "limits": sandbox_pb2.Limits(wall_time=Duration(seconds=700), processes=100_000, disk_bytes=1),
    }
    async with (
        running_sandbox() as sandbox,
        running_orchestrator(sandbox=sandbox, model_url=NOWHERE, data_dir=tmp_path) as client,
    ):
        for call in (client.create(spec(**options)), client.generate(spec(**options))):
            error = await refused(call)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            found = error_detail(error, error_details_pb2.BadRequest).field_violations
            texts = {violation.field: violation.description for violation in found}
            assert set(texts) == {
                "spec.options.environment",
                "spec.options.limits.wall_time",
                "spec.options.limits.processes",
            }
            assert "base" in texts["spec.options.environment"]
            assert "at most 600 s" in texts["spec.options.limits.wall_time"]


async def test_a_run_is_taken_while_the_sandbox_does_not_answer(tmp_path):
    address = f"unix:{tmp_path}/none"
    async with running_orchestrator(sandbox=address, model_url=NOWHERE, data_dir=tmp_path) as client:
        run = await client.create(spec(environment="gpu"))
        assert run.run_id.startswith("run_")
        await client.cancel(run.run_id)


async def test_a_run_that_was_made_is_found_again_whatever_the_sandbox_offers_by_now(tmp_path):
    address = f"unix:{tmp_path}/sandbox.sock"
    async with running_orchestrator(sandbox=address, model_url=NOWHERE, data_dir=tmp_path) as client:
        made = await client.create(spec(environment="gpu"), "again")
        async with scripted_sandbox(PASSED, address=address):
            await offered(client)
            assert (await client.create(spec(environment="gpu"), "again")).run_id == made.run_id
            error = await refused(client.create(spec(environment="gpu"), "new"))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_run_s_tenant_reaches_the_sandbox_and_a_wrong_one_is_refused(tmp_path):
    async with serving(tmp_path, PASSED) as (client, sandbox, _):
        request = pb.GenerateRequest(spec=spec(tests=TESTS))
        run = (await client.stub.Generate(request, timeout=60, metadata=[("x-codemend-tenant", "acme")])).run
        assert outcome(run) == "PASSED"
        assert [lease.tenant for lease in sandbox.cells.leases] == ["acme"]
        error = await refused(client.stub.Generate(request, timeout=60, metadata=[("x-codemend-tenant", "a b")]))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error_detail(error, error_details_pb2.BadRequest).field_violations[0].field == "x-codemend-tenant"


@pytest.mark.parametrize("check", [None, "from solution import add\nassert add(1, 2) == 3\n"])
@pytest.mark.parametrize(
    "refusal",
    [
        CellUnavailable("no memory for a cell"),
        TenantQueueFull("acme", "2 waiting", CellUnavailable.retry_after / 10),
        DeadlineTooShort("late"),
    ],
)
async def test_a_refused_execution_is_tried_again_under_the_same_key(tmp_path, refusal, check):
    task = {"check_script": check} if check else {"tests": TESTS}
    async with serving(tmp_path, refusal, refusal, PASSED) as (client, sandbox, model):
        run = await client.generate(spec(max_attempts=1, **task))
        assert len(sandbox.cells.started) == 3
        if check:  # the token of the check is made once, so that a second try asks for the same
            assert len({job.args for job in sandbox.cells.started}) == 1
        else:
            assert outcome(run) == "PASSED"
        keys = {key for _, key in sandbox.keys._remembered}
        assert len(keys) == 1
        assert keys.pop().startswith(f"{run.run_id}/1.")
        assert len(model.requests) == 1


async def test_each_attempt_has_a_key_of_its_own(tmp_path):
    failed = reported(ReportOutcome.FAILED, "1 failed", passed=0)
    async with serving(tmp_path, failed, PASSED) as (client, sandbox, _):
        run = await client.generate(spec(tests=TESTS))
        prefixes = {key.partition(".")[0] for _, key in sandbox.keys._remembered}
        assert prefixes == {f"{run.run_id}/1", f"{run.run_id}/2"}


@pytest.mark.parametrize(
    ("ending", "advice"),
    [
        (ReportOutcome.TAMPERED, "reached into the test framework"),
        (ReportOutcome.INCOMPLETE, "ended the program before its tests were done"),
    ],
)
async def test_a_report_that_cannot_be_believed_is_no_pass_and_the_model_is_told_what_was_seen(
    tmp_path, ending, advice
):
    async with serving(tmp_path, reported(ending, SEEN), PASSED) as (client, _, model):
        run = await client.generate(spec(tests=TESTS))
    assert outcome(run) == "PASSED"
    first, second = run.result.attempts
    assert not first.passed
    assert second.passed
    assert sandbox_pb2.ReportOutcome.Name(first.report_outcome) == f"REPORT_OUTCOME_{ending.value}"
    assert SEEN in first.summary
    assert advice in model.requests[1].prompt
    assert SEEN in model.requests[1].prompt


async def test_a_run_that_only_ever_tampers_fails_and_none_of_its_passes_counts(tmp_path):
    tampered = reported(ReportOutcome.TAMPERED, SEEN, passed=3)
    honest = reported(ReportOutcome.FAILED, "1 failed", passed=1)
    async with serving(tmp_path, tampered, honest) as (client, _, _):
        run = await client.generate(spec(tests=TESTS, max_attempts=2))
    assert outcome(run) == "FAILED"
    assert [attempt.tests_passed for attempt in run.result.attempts] == [0, 1]
    assert run.result.delivered_attempt == 2


async def test_a_forbidden_system_call_is_no_end_to_be_content_with(tmp_path):
    violation = ended(Status.VIOLATION, "made a forbidden system call: ptrace")
    async with serving(tmp_path, violation, succeeded()) as (client, _, model):
        run = await client.generate(spec())
    assert outcome(run) == "UNVERIFIED"
    assert run.result.attempts[0].execution_status == sandbox_pb2.EXECUTION_STATUS_VIOLATION
    assert "ptrace" in run.result.attempts[0].summary
    assert "system call that is not allowed" in model.requests[1].prompt
    assert "ptrace" in model.requests[1].prompt


async def test_how_far_a_verdict_can_be_believed_comes_with_the_run(tmp_path):
    integrity = Integrity(TestIsolation.SHARED, "the tests use objects", (IntegrityCheck("canaries", held=True),))
    async with serving(tmp_path, reported(ReportOutcome.PASSED, integrity=integrity)) as (client, _, _):
        run = await client.generate(spec(tests=TESTS))
    told = run.result.report.integrity
    assert told.isolation == verdicts_pb2.TEST_ISOLATION_SHARED
    assert told.reason == "the tests use objects"
    assert [(check.name, check.held) for check in told.checks] == [("canaries", True)]
