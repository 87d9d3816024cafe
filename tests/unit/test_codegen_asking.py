"""What is taken from a reply, and how the model is called: paths, names, temperatures and room."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.models import CallOptions, ModelSpec, Reply, Usage
from orchestrator.workflows.asking import (
    MOST_BYTES,
    MOST_FILES,
    WARM_TEMPERATURE,
    call_options,
    is_safe_path,
    read_code,
    too_much,
)
from orchestrator.workflows.context import CodegenContext
from orchestrator.workflows.sandbox import Execution, ExecutionStatus, File, ReportOutcome, TestOutcome, TestReport
from orchestrator.workflows.spec import CodegenTask, RunOptions
from orchestrator.workflows.state import Outcome, Plan, Progress, Stop, Verdict
from orchestrator.workflows.verifying import believed, verdict_of

TASK = CodegenTask(task="t", tests=(File("test_a.py", b"from solution import add"),))


def reply(text, finish_reason="stop"):
    return Reply(text, "", finish_reason, Usage(), "m", timedelta())


def block(code, path=""):
    return f"```python\n{f'# file: {path}' if path else ''}\n{code}\n```\n"


class Models:
    def spec(self, _role):
        return ModelSpec(base_url="http://127.0.0.1/v1", model="m", temperature=0.2, max_output_tokens=1000)


def context(**options):
    return CodegenContext(
        task=TASK,
        options=RunOptions(**options),
        models=Models(),
        sandbox=None,
        artifacts=None,
        deadline=0.0,
        emit=lambda _: None,
        progress=Progress(),
    )


def test_a_block_of_code_is_the_solution():
    files, fault = read_code(reply(block("def add(a, b): return a + b")), TASK)
    assert not fault
    assert [file.path for file in files] == ["solution.py"]


def test_one_file_under_a_name_of_the_models_own_is_the_solution():
    files, fault = read_code(reply(block("def add(a, b): return 1", "main.py")), TASK)
    assert not fault
    assert [file.path for file in files] == ["solution.py"]


def test_a_given_file_keeps_its_name():
    task = CodegenTask(task="t", files=(File("helper.py", b"x = 1\n"), File("solution.py", b"import helper\n")))
    files, fault = read_code(reply(block("x = 2", "helper.py")), task)
    assert not fault
    assert [file.path for file in files] == ["helper.py"]


def test_code_without_the_name_that_is_asked_for_is_still_code():
    files, fault = read_code(reply(block("def total(a, b): return a + b")), TASK)
    assert not fault
    assert b"total" in files[0].content


@pytest.mark.parametrize(("text", "finish"), [("", "stop"), ("I cannot.", "stop"), (block("x = 1"), "length")])
def test_a_reply_that_cannot_be_used_says_why(text, finish):
    files, fault = read_code(reply(text, finish), TASK)
    assert files == ()
    assert fault


def test_a_file_outside_of_the_workspace_is_never_taken():
    text = block("def add(a, b): return 1", "solution.py") + block("x = 1", "../escape.py")
    files, _ = read_code(reply(text), TASK)
    assert all(is_safe_path(file.path) for file in files)
    assert not any("escape" in file.path for file in files)


@pytest.mark.parametrize("path", ["/etc/passwd", "../a.py", "a//b", "a/./b", "a/../b", "", "a\0", "x" * 256, "\ud800"])
def test_unsafe_paths(path):
    assert not is_safe_path(path)


@given(st.lists(st.from_regex(r"[a-z0-9_]{1,20}", fullmatch=True), min_size=1, max_size=5))
def test_safe_paths(parts):
    assert is_safe_path("/".join(parts))


def test_a_plain_plan_calls_the_model_as_configured():
    assert call_options(Plan(), context()) == CallOptions()


def test_another_sample_is_warmer_and_never_colder_than_asked_for():
    assert call_options(Plan(warm=True), context()).temperature == WARM_TEMPERATURE
    hot = {"coder": CallOptions(temperature=1.5)}
    assert call_options(Plan(warm=True), context(models=hot)).temperature == 1.5


def test_after_a_cut_the_room_is_doubled_as_far_as_the_context_allows():
    assert call_options(Plan(wide=True), context()).max_output_tokens == 2000
    large = {"coder": CallOptions(max_output_tokens=3000)}
    assert call_options(Plan(wide=True), context(models=large)).max_output_tokens == 4096
    larger = {"coder": CallOptions(max_output_tokens=7000)}
    assert call_options(Plan(wide=True), context(models=larger)).max_output_tokens == 7000


def test_a_solution_has_a_limit_of_files_and_bytes():
    small = [File(f"m{number}.py", b"x") for number in range(MOST_FILES)]
    assert not too_much(small, small)
    assert "65 files" in too_much([*small, File("n.py", b"x")], small)
    large = [File("base.py", b"x" * MOST_BYTES), File("m.py", b"x")]
    assert not too_much(small, large[:1])
    assert f"{MOST_BYTES + 1} bytes" in too_much(small, large)


@pytest.mark.parametrize("outcome", list(ReportOutcome))
def test_only_a_report_that_passed_with_tests_is_a_pass(outcome):
    counts = {TestOutcome.PASSED: 2}
    passed = verdict_of(TestReport(outcome, counts=counts), Execution(ExecutionStatus.SUCCEEDED), checked=False)
    assert (passed is Verdict.PASSED) == (outcome is ReportOutcome.PASSED)
    empty = verdict_of(TestReport(outcome), Execution(ExecutionStatus.SUCCEEDED), checked=False)
    assert empty is Verdict.FAILED


@pytest.mark.parametrize("status", list(ExecutionStatus))
def test_only_exit_code_zero_is_success_and_only_a_check_verifies(status):
    checked = verdict_of(None, Execution(status), checked=True)
    alone = verdict_of(None, Execution(status), checked=False)
    succeeded = status is ExecutionStatus.SUCCEEDED
    assert checked is (Verdict.PASSED if succeeded else Verdict.FAILED)
    assert alone is (Verdict.UNVERIFIED if succeeded else Verdict.FAILED)


@pytest.mark.parametrize("outcome", list(ReportOutcome))
def test_of_a_report_that_was_tampered_with_no_pass_is_believed(outcome):
    report = TestReport(outcome, counts={TestOutcome.PASSED: 2, TestOutcome.FAILED: 1})
    believable = believed(report, Execution(ExecutionStatus.SUCCEEDED))
    assert believable == ((0, 3) if outcome is ReportOutcome.TAMPERED else (2, 1))


async def test_limits_say_what_was_used_up():
    spent = context(token_budget=10, timeout=timedelta(seconds=5))
    stop = await spent.limit_met("now", spends_tokens=False)
    assert stop == Stop(Outcome.BUDGET_EXHAUSTED, "the run's time of 5 s was used up now")
