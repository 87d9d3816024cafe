"""The `codegen` workflow end to end: a scripted model, a real sandbox, real gRPC. A test is one way for a run to go."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import runs_pb2 as pb
from codemend.sandbox.v1 import sandbox_pb2
from google.protobuf.duration_pb2 import Duration
from support.openai_server import Scripted, ScriptedServer, scripted_openai
from support.orchestrator import Client, fence, running_orchestrator, spec
from support.sandbox import running_sandbox

TESTS = {
    "test_solution.py": "from solution import add\n\ndef test_one():\n    assert add(1, 2) == 3\n\n"
    "def test_two():\n    assert add(-1, 1) == 0\n\ndef test_three():\n    assert add(5, 5) == 10\n"
}
RIGHT = fence("def add(a, b):\n    return a + b")
MINUS = fence("def add(a, b):\n    return a - b")
TIMES = fence("def add(a, b):\n    return a * b")
ZERO = fence("def add(a, b):\n    return 0")
TEN = fence("def add(a, b):\n    return 10")

Service = Callable[..., AbstractAsyncContextManager[tuple[Client, ScriptedServer]]]


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[str]:
    async with running_sandbox(SANDBOX_CONCURRENCY="2") as address:
        yield address


@pytest.fixture
def service(sandbox: str, tmp_path: Path) -> Service:
    @asynccontextmanager
    async def start(replies, **settings):
        settings = {"model_retries": 0, **settings}
        async with (
            scripted_openai(replies) as model,
            running_orchestrator(
                **{"sandbox": sandbox, "model_url": model.base_url, "data_dir": tmp_path, **settings}
            ) as client,
        ):
            yield client, model

    return start


def outcome(run: pb.Run) -> str:
    return pb.RunOutcome.Name(run.result.outcome).removeprefix("RUN_OUTCOME_")


def strategies(run: pb.Run) -> list[str]:
    return [attempt.strategy for attempt in run.result.attempts]


def delivered(run: pb.Run, path: str = "solution.py") -> str:
    return {file.path: file.content.decode() for file in run.result.files}[path]


async def test_a_failing_draft_is_repaired_until_its_tests_pass(service: Service) -> None:
    async with service([MINUS, RIGHT]) as (client, model):
        run = await client.generate(spec(tests=TESTS))
    assert outcome(run) == "PASSED"
    assert run.state == pb.RUN_STATE_SUCCEEDED
    assert strategies(run) == ["draft", "repair"]
    assert [attempt.passed for attempt in run.result.attempts] == [False, True]
    assert "a + b" in delivered(run)
    assert run.result.delivered_attempt == 2
    assert run.result.report.outcome == sandbox_pb2.REPORT_OUTCOME_PASSED
    assert run.result.report.counts.passed == 3
    assert run.result.usage.model_calls == 2
    assert "+    return a + b" in run.result.diff
    repair = model.requests[1].prompt
    assert "return a - b" in repair
    assert "assert add(1, 2) == 3" in repair
    assert "add(1, 2) returns -1\nbut must return 3" in repair


async def test_the_files_delivered_are_the_files_that_were_verified(service: Service) -> None:
    async with service([MINUS, RIGHT]) as (client, _):
        run = await client.generate(spec(tests=TESTS))
        verified = await client.parts.runs.artifacts.get(run.result.attempts[1].code_hash)
        record = await client.parts.runs.manager.get(run.run_id)
    assert b"solution.py" in verified
    assert run.result.attempts[1].code_hash != run.result.attempts[0].code_hash
    assert record.result.files_hash == run.result.attempts[1].code_hash


async def test_code_that_runs_with_nothing_to_verify_it_is_unverified(service: Service) -> None:
    async with service([RIGHT]) as (client, _):
        run = await client.generate(spec())
    assert outcome(run) == "UNVERIFIED"
    assert run.state == pb.RUN_STATE_SUCCEEDED
    assert not run.result.attempts[0].passed
    assert run.result.attempts[0].execution_status == sandbox_pb2.EXECUTION_STATUS_SUCCEEDED
    assert "no tests" in run.result.reason


async def test_a_crash_without_tests_is_repaired(service: Service) -> None:
    async with service([fence("raise SystemError('boom')"), RIGHT]) as (client, model):
        run = await client.generate(spec())
    assert strategies(run) == ["draft", "repair"]
    assert "SystemError: boom" in run.result.attempts[0].summary
    assert "SystemError: boom" in model.requests[1].prompt


async def test_a_check_script_that_exits_with_zero_is_a_pass(service: Service) -> None:
    check = "from solution import add\nassert add(2, 2) == 4, add(2, 2)\n"
    async with service([MINUS, RIGHT]) as (client, model):
        run = await client.generate(spec(check_script=check))
    assert outcome(run) == "PASSED"
    assert strategies(run) == ["draft", "repair"]
    assert "AssertionError: 0" in model.requests[1].prompt
    assert [file.path for file in run.result.files] == ["solution.py"]


async def test_a_check_script_cannot_be_replaced_by_the_candidate(service: Service) -> None:
    check = "from solution import add\nassert add(2, 2) == 4\n"
    fake = "# file: codemend_check.py\nprint('fine')"
    async with service([f"{MINUS}\n\n{fence(fake)}"]) as (client, _):
        run = await client.generate(spec(check_script=check, max_attempts=1))
    assert outcome(run) == "FAILED"


@pytest.mark.parametrize(
    "ending",
    ["import sys; sys.exit(0)", "exit()", "raise SystemExit", "import os; os._exit(0)", "exec('raise SystemExit(0)')"],
)
async def test_code_that_ends_the_program_before_the_check_is_done_is_no_pass(service: Service, ending: str) -> None:
    check = "from solution import add\nassert add(2, 2) == 4\n"
    async with service([fence(f"def add(a, b):\n    return a - b\n\n{ending}")]) as (client, _):
        run = await client.generate(spec(check_script=check, max_attempts=1))
    assert outcome(run) == "FAILED"
    assert "before the check came to its end" in run.result.attempts[0].summary


@pytest.mark.parametrize(
    "check",
    [
        "import sys\nfrom solution import add\nsys.exit(0 if add(2, 2) == 4 else 1)\n",
        "from solution import add\nassert add(2, 2) == 4\nexit()\n",
        (
            "import unittest\nfrom solution import add\nclass Adds(unittest.TestCase):\n"
            "    def test_it(self): self.assertEqual(add(2, 2), 4)\nif __name__ == '__main__': unittest.main()\n"
        ),
        "import atexit, solution\natexit.register(print, 'late', end='')\nassert solution.add(2, 2) == 4\n",
        "import sys, solution\nassert solution.add(2, 2) == 4\nsys.stdout.close()\n",
    ],
)
async def test_a_check_may_end_itself_in_any_usual_way(service: Service, check: str) -> None:
    async with service([MINUS, RIGHT]) as (client, _):
        run = await client.generate(spec(check_script=check))
    assert outcome(run) == "PASSED"
    assert strategies(run) == ["draft", "repair"]


async def test_what_a_check_prints_comes_back_without_anything_of_ours(service: Service) -> None:
    check = "import sys\nimport solution\nprint(sys.argv, __name__, __file__, end='')\n"
    async with service([RIGHT]) as (client, _):
        run = await client.generate(spec(check_script=check))
    printed = run.result.execution.stdout.head.decode()
    assert printed.startswith("['")
    assert printed.endswith("codemend_check.py")
    assert "__main__" in printed


async def test_a_reply_of_too_many_files_is_unusable(service: Service) -> None:
    many = "".join(fence(f"# file: m{number}.py\nx = {number}") + "\n" for number in range(70))
    async with service([many + fence("# file: solution.py\ndef add(a, b):\n    return a + b"), RIGHT]) as (client, _):
        run = await client.generate(spec(tests=TESTS))
    assert outcome(run) == "PASSED"
    assert "71 files, and at most 64" in run.result.attempts[0].summary


async def test_a_reply_without_end_is_cut_off_and_told_in_events_that_fit(service: Service) -> None:
    endless = Scripted(text=fence("x = '" + "é" * 5_000_000 + "'"), chunk_chars=2_000_000)
    async with service([endless]) as (client, _):
        run = await client.generate(spec(tests=TESTS, max_attempts=1))
        events = await client.events(run.run_id)
    assert outcome(run) == "FAILED"
    assert "cut off" in run.result.attempts[0].summary
    texts = [event.model_tokens.text for event in events if event.HasField("model_tokens")]
    assert max(len(text.encode()) for text in texts) <= 64 * 1024
    assert len("".join(texts)) == 1024 * 1024


async def test_trusted_tests_of_any_depth_are_read(service: Service) -> None:
    deep = {"test_solution.py": TESTS["test_solution.py"] + "s = 'x'" + ".replace('a', 'b')" * 300 + "\n"}
    async with service([RIGHT]) as (client, _):
        run = await client.generate(spec(tests=deep))
    assert outcome(run) == "PASSED"


async def test_when_attempts_are_used_up_the_best_one_is_delivered_and_named(service: Service) -> None:
    async with service([TIMES, TEN, ZERO, MINUS]) as (client, _):
        run = await client.generate(spec(tests=TESTS, max_attempts=4))
    assert outcome(run) == "FAILED"
    assert run.state == pb.RUN_STATE_FAILED
    passed = [attempt.tests_passed for attempt in run.result.attempts]
    assert passed == [0, 1, 1, 0]
    assert run.result.delivered_attempt == 3  # of equals the later
    assert "return 0" in delivered(run)
    assert "the best is attempt 3 (1 of 3 tests passed)" in run.result.reason
    assert run.result.report.counts.passed == 1


async def test_a_repair_that_breaks_a_passing_test_is_not_the_next_base(service: Service) -> None:
    async with service([TEN, ZERO, RIGHT]) as (client, model):
        run = await client.generate(spec(tests=TESTS))
        events = await client.events(run.run_id)
    assert outcome(run) == "PASSED"
    assert "return 10" in model.requests[2].prompt
    assert "    return 0" not in model.requests[2].prompt
    assert "broke test_solution.py::test_three" in model.requests[2].prompt
    reasons = [event.route.reason for event in events if event.route.source == "decide"]
    assert any("so the next starts from attempt 1 again" in reason for reason in reasons)


async def test_the_same_failure_twice_changes_the_strategy_and_a_circle_ends_as_stuck(service: Service) -> None:
    variants = [fence(f"def add(a, b):\n    return a - b  # {number}") for number in range(5)]
    async with service(variants) as (client, model):
        run = await client.generate(spec(tests=TESTS, max_attempts=10))
    assert outcome(run) == "STUCK"
    assert strategies(run) == ["draft", "repair", "diagnose", "rewrite", "fresh"]
    assert run.state == pb.RUN_STATE_FAILED
    assert "two sentences" in model.requests[2].prompt
    assert "return a - b" not in model.requests[3].prompt
    assert "from the beginning" in model.requests[3].prompt
    assert model.requests[4].prompt == model.requests[0].prompt
    assert model.requests[4].body["temperature"] > model.requests[0].body["temperature"]


async def test_code_that_was_tried_before_is_not_executed_again(service: Service) -> None:
    async with service([MINUS, TIMES, MINUS, RIGHT]) as (client, model):
        run = await client.generate(spec(tests=TESTS))
        events = await client.events(run.run_id)
    assert outcome(run) == "PASSED"
    assert run.result.attempts[2].summary == "the same code as attempt 1, not executed again"
    assert run.result.attempts[2].code_hash == run.result.attempts[0].code_hash
    executed = [event.execution_finished.attempt for event in events if event.HasField("execution_finished")]
    assert executed == [1, 2, 4]
    assert strategies(run)[3] == "diagnose"
    assert "repeated code that has failed already" in model.requests[3].prompt


async def test_two_repairs_of_different_failures_are_followed_by_a_fresh_sample(service: Service) -> None:
    async with service([TIMES, TEN, ZERO, RIGHT]) as (client, _):
        run = await client.generate(spec(tests=TESTS, max_attempts=5))
    assert strategies(run) == ["draft", "repair", "repair", "fresh"]


async def test_a_truncated_reply_is_never_executed_and_a_shorter_one_is_asked_for(service: Service) -> None:
    cut = Scripted(text="```python\ndef add(a, b):\n    return a - b\n", finish_reason="length")
    async with service([cut, RIGHT]) as (client, model):
        run = await client.generate(spec(tests=TESTS))
        events = await client.events(run.run_id)
    assert outcome(run) == "PASSED"
    assert run.result.attempts[0].code_hash == ""
    assert run.result.attempts[0].report_outcome == 0
    assert [event.execution_finished.attempt for event in events if event.HasField("execution_finished")] == [2]
    assert "Be shorter" in model.requests[1].prompt
    limits = [request.body.get("max_tokens") or request.body["max_completion_tokens"] for request in model.requests]
    assert limits[1] > limits[0]


async def test_an_empty_reply_counts_as_an_attempt_and_its_fault_is_told(service: Service) -> None:
    async with service(["", "", "I cannot help with that.", RIGHT]) as (client, model):
        run = await client.generate(spec(tests=TESTS))
        events = await client.events(run.run_id)
    assert outcome(run) == "PASSED"
    assert [attempt.code_hash != "" for attempt in run.result.attempts] == [False, False, True]
    faults = [event.model_replied.fault for event in events if event.HasField("model_replied")]
    assert faults[0]
    assert faults[1]
    assert not faults[2]
    assert "could not be used" in model.requests[-1].prompt or "Write the complete file" in model.requests[-1].prompt


async def test_code_that_does_not_define_what_the_tests_import_is_repaired(service: Service) -> None:
    async with service([fence("def sum_up(a, b):\n    return a + b"), RIGHT]) as (client, model):
        run = await client.generate(spec(tests=TESTS))
    assert outcome(run) == "PASSED"
    assert run.result.attempts[0].report_outcome == sandbox_pb2.REPORT_OUTCOME_ERROR
    assert "cannot import name 'add'" in run.result.attempts[0].summary
    assert "cannot import name 'add'" in model.requests[1].prompt


async def test_tests_that_are_all_skipped_are_no_pass(service: Service) -> None:
    skipped = {"test_solution.py": "import pytest\n\n@pytest.mark.skip\ndef test_it():\n    pass\n"}
    async with service([RIGHT]) as (client, _):
        run = await client.generate(spec(tests=skipped, max_attempts=1))
    assert outcome(run) == "FAILED"
    assert run.result.attempts[0].report_outcome == sandbox_pb2.REPORT_OUTCOME_NO_TESTS


async def test_hidden_tests_show_their_failures_and_never_their_text(service: Service) -> None:
    tests = {"test_solution.py": TESTS["test_solution.py"] + "\nSECRET = 'the-hidden-word'\n"}
    async with service([MINUS, RIGHT]) as (client, model):
        run = await client.generate(spec(tests=tests, hide_tests=True))
    assert outcome(run) == "PASSED"
    prompts = "\n".join(request.prompt for request in model.requests)
    assert "the-hidden-word" not in prompts
    assert "def test_one" not in prompts
    assert "add(1, 2) returns -1\nbut must return 3" in model.requests[1].prompt


async def test_a_given_file_is_shown_corrected_and_diffed(service: Service) -> None:
    given = sandbox_pb2.File(path="solution.py", content=b"def add(a, b):\n    return a - b\n")
    async with service([RIGHT]) as (client, model):
        run = await client.generate(spec("Correct add.", tests=TESTS, files=[given]))
    assert outcome(run) == "PASSED"
    assert "return a - b" in model.requests[0].prompt
    assert "-    return a - b\n+    return a + b\n" in run.result.diff


async def test_the_token_budget_ends_the_run_with_its_best_attempt(service: Service) -> None:
    async with service([MINUS, TIMES, RIGHT]) as (client, model):
        run = await client.generate(spec(tests=TESTS, token_budget=20))  # a scripted call uses 18
    assert outcome(run) == "BUDGET_EXHAUSTED"
    assert len(model.requests) == 2
    assert "token budget of 20" in run.result.reason
    assert run.result.delivered_attempt in {1, 2}


@pytest.mark.parametrize("at", ["model", "sandbox"])
async def test_the_timeout_ends_the_run_with_its_best_attempt(service: Service, at: str) -> None:
    slow = Scripted(text=RIGHT, stall_after=1) if at == "model" else fence("while True: pass")
    async with service([TEN, slow]) as (client, _):
        run = await client.generate(spec(tests=TESTS, timeout=Duration(seconds=2)))
    assert outcome(run) == "BUDGET_EXHAUSTED"
    assert "time of 2 s" in run.result.reason
    assert run.result.delivered_attempt == 1
    took = run.end_time.ToDatetime() - run.create_time.ToDatetime()
    assert 1.9 <= took.total_seconds() < 4


async def test_candidates_run_side_by_side_and_stop_at_the_first_that_passes(service: Service) -> None:
    def reply(body):
        number = len(model_requests)
        model_requests.append(body)
        return [Scripted(text=MINUS, stall_after=1), RIGHT, Scripted(text=TIMES, stall_after=1)][number]

    model_requests: list[object] = []
    async with service(reply) as (client, model):
        run = await client.generate(spec(tests=TESTS, candidates=3))
        await model.wait_for_disconnects(2, timeout=2)
    assert outcome(run) == "PASSED"
    assert len(run.result.attempts) == 3
    assert [attempt.passed for attempt in run.result.attempts].count(True) == 1
    assert strategies(run) == ["draft"] * 3
    winner = run.result.delivered_attempt
    stopped = [attempt.summary for attempt in run.result.attempts if not attempt.passed]
    assert stopped == [f"stopped: attempt {winner} passed first"] * 2


async def test_the_best_of_several_candidates_is_the_base_of_the_repair(service: Service) -> None:
    replies = [MINUS, TEN, TIMES, RIGHT]
    async with service(replies) as (client, model):
        run = await client.generate(spec(tests=TESTS, candidates=3))
    assert outcome(run) == "PASSED"
    assert strategies(run) == ["draft", "draft", "draft", "repair"]
    assert "return 10" in model.requests[3].prompt


async def test_one_candidate_whose_model_call_fails_does_not_end_the_others(service: Service) -> None:
    async with service([Scripted(status=400, error="bad"), MINUS, TIMES, RIGHT]) as (client, _):
        run = await client.generate(spec(tests=TESTS, candidates=3, max_attempts=4))
    assert outcome(run) == "PASSED"
    assert sum("the model could not be used" in attempt.summary for attempt in run.result.attempts) == 1


async def test_when_every_candidate_fails_at_the_model_the_run_is_an_error(service: Service) -> None:
    async with service([Scripted(status=401)] * 2) as (client, _):
        run = await client.generate(spec(tests=TESTS, candidates=2))
    assert outcome(run) == "ERROR"


async def test_a_model_that_refuses_the_key_ends_the_run_at_once(service: Service) -> None:
    async with service([Scripted(status=401, error="Incorrect API key provided")], model_retries=4) as (client, model):
        run = await client.generate(spec(tests=TESTS))
    assert outcome(run) == "ERROR"
    assert run.state == pb.RUN_STATE_FAILED
    assert len(model.requests) == 1
    assert "401" in run.result.reason
    assert run.result.delivered_attempt == 0


async def test_a_sandbox_that_is_down_is_tried_again_and_then_the_run_is_an_error(service: Service) -> None:
    async with service([RIGHT], sandbox="127.0.0.1:1", sandbox_patience=1.5) as (client, _):
        run = await client.generate(spec(tests=TESTS))
    assert outcome(run) == "ERROR"
    assert "the sandbox could not be used" in run.result.reason
    assert run.result.attempts[0].duration.ToTimedelta().total_seconds() > 0.5
    assert run.result.delivered_attempt == 1  # code without a verdict is better than none


async def test_what_the_sandbox_refuses_ends_the_run_with_its_words(service: Service) -> None:
    async with service([RIGHT]) as (client, _):
        run = await client.generate(spec(tests=TESTS, limits=sandbox_pb2.Limits(memory_bytes=1)))
    assert outcome(run) == "ERROR"
    assert "limits.memory_bytes: is 1" in run.result.reason


async def test_a_task_over_the_models_context_is_an_error_that_says_so(service: Service) -> None:
    async with service([RIGHT], context_tokens=1024, max_output_tokens=512) as (client, model):
        run = await client.generate(spec("word " * 2000, tests=TESTS))
    assert outcome(run) == "ERROR"
    assert "does not fit" in run.result.reason
    assert not model.requests
