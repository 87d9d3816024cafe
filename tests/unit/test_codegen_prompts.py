"""Prompts: templates that tolerate no mistake, budgets that keep whole parts, what each strategy tells the model."""

from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import TemplateError
from orchestrator.models import ContextTooLong, estimate_tokens
from orchestrator.workflows.conversation import Base, compose, interface_text
from orchestrator.workflows.interface import required_names, test_source
from orchestrator.workflows.sandbox import (
    Comparison,
    Execution,
    ExecutionStatus,
    Failure,
    File,
    Output,
    ReportOutcome,
    TestCase,
    TestOutcome,
    TestReport,
)
from orchestrator.workflows.spec import CodegenTask
from orchestrator.workflows.state import Plan, Strategy
from orchestrator.workflows.templates import Part, Template, fenced, fit, template

test_source.__test__ = False

TESTS = b"""import pytest
from solution import add, Sum

class TestSum:
    @pytest.mark.parametrize("n", [1, 2])
    def test_total(self, n):
        assert Sum(n).total == n

def test_add():
    assert add(1, 2) == 3

def test_other():
    assert add(0, 0) == 0
"""
TASK = CodegenTask(task="Write add and Sum.", tests=(File("test_solution.py", TESTS),))
CODE = (File("solution.py", b"def add(a, b):\n    return a - b\n"),)
FAILED = TestReport(
    ReportOutcome.FAILED,
    tests=(
        TestCase(
            "test_solution.py::test_add",
            TestOutcome.FAILED,
            failure=Failure("AssertionError", "assert -1 == 3", comparison=Comparison("==", "-1", "3")),
        ),
    ),
)
BASE = Base(CODE, FAILED, Execution(ExecutionStatus.FAILED))


def prompt(strategy=Strategy.DRAFT, base=None, task=TASK, budget=6000, note=""):
    system, user = compose(Plan(strategy=strategy, note=note), task, base, budget)
    assert (system.role, user.role) == ("system", "user")
    return user.text


def test_a_slot_without_a_value_and_a_value_without_a_slot_are_errors():
    made = Template("t", "{{a}} and {{b}}")
    with pytest.raises(TemplateError, match="no value for b"):
        made.render(a="1")
    with pytest.raises(TemplateError, match="no place for c"):
        made.render(a="1", b="2", c="3")


def test_a_prompt_that_is_not_there_is_an_error():
    with pytest.raises(TemplateError, match="no prompt nonsense"):
        template("nonsense")


def test_every_prompt_file_has_proper_slots():
    names = [path.name.removesuffix(".md") for path in (files("orchestrator.workflows") / "prompts").iterdir()]
    assert set(names) == {"system", "draft", "repair", "diagnose", "rewrite"}
    for name in names:
        found = template(name)
        assert "{{" not in found.render(**dict.fromkeys(found.slots, "x"))


def test_what_a_value_holds_is_no_slot_and_empty_paragraphs_go():
    assert Template("t", "{{a}}\n\n{{b}}\n\nend").render(a="{{b}} \\1", b="") == "{{b}} \\1\n\nend\n"


@given(st.lists(st.tuples(st.text(max_size=60), st.integers(1, 5)), max_size=12), st.integers(0, 60))
def test_parts_are_kept_whole_in_order_within_the_budget(values, budget):
    parts = [Part("s", text, rank) for text, rank in values]
    kept = fit(parts, budget)
    assert sum(estimate_tokens(part.text) for part in kept) <= budget
    positions = iter(parts)
    assert all(any(part is other for other in positions) for part in kept)


def test_the_most_needed_parts_are_kept():
    parts = [Part("a", "x" * 30, 3), Part("b", "y" * 30, 1), Part("c", "z" * 30, 0)]
    assert [part.slot for part in fit(parts, 20)] == ["b", "c"]


def test_what_must_be_told_and_does_not_fit_is_an_error():
    with pytest.raises(ContextTooLong, match="room for 5"):
        fit([Part("task", "x" * 300)], 5)


@given(st.text(alphabet="`a\n", max_size=40))
def test_a_fence_is_longer_than_any_inside_it(text):
    block = fenced(text)
    fence = block[: len(block) - len(block.lstrip("`"))]
    assert fence not in text
    assert block.endswith("\n" + fence)


def test_a_draft_has_task_tests_and_interface():
    text = prompt()
    assert text.index("Write add and Sum.") < text.index("def test_add") < text.index("`add`, `Sum`")
    assert "`solution.py`" in text


def test_a_repair_has_the_code_the_failing_tests_source_and_the_values():
    text = prompt(Strategy.REPAIR, BASE)
    assert "return a - b" in text
    assert "def test_add():\n    assert add(1, 2) == 3" in text
    assert "The left side of `==` was -1\nThe right side of `==` was 3" in text
    assert "def test_other" not in text


def test_a_rewrite_has_the_failure_and_not_the_code():
    text = prompt(Strategy.REWRITE, BASE)
    assert "return a - b" not in text
    assert "assert -1 == 3" in text


def test_a_diagnosis_comes_before_the_code():
    assert "two sentences" in prompt(Strategy.DIAGNOSE, BASE)


def test_a_repair_of_nothing_is_a_draft_with_its_note():
    text = prompt(Strategy.REPAIR, None, note="Your last reply could not be used: it was empty.")
    assert "it was empty" in text
    assert "is wrong" not in text


@pytest.mark.parametrize("strategy", list(Strategy))
def test_hidden_tests_are_never_shown(strategy):
    hidden = CodegenTask(task="Write add.", tests=TASK.tests, hide_tests=True)
    text = prompt(strategy, BASE, hidden)
    assert "def test_" not in text
    assert "add(1, 2)" not in text


def test_given_files_are_left_out_before_tests_and_tests_before_the_task():
    task = CodegenTask(
        task="Write add.", tests=TASK.tests, files=(File("data.csv", b"1,2\n" * 300), File("more.txt", b"\xff\xfe"))
    )
    wide, narrow = prompt(task=task), prompt(task=task, budget=400)
    assert "1,2" in wide
    assert "(binary, 2 bytes)" in wide
    assert "1,2" not in narrow
    assert "def test_add" in narrow
    assert "def test_add" not in prompt(task=task, budget=170)


def test_a_repair_shows_other_files_that_the_model_changed_by_name():
    helper = File("helper.py", b"X = 2\n")
    task = CodegenTask(task="Fix it.", tests=TASK.tests, files=(File("helper.py", b"X = 1\n"), CODE[0]))
    text = prompt(Strategy.REPAIR, Base((*CODE, helper), FAILED, None), task)
    assert "# file: helper.py\nX = 2" in text
    assert "# file: PATH" in text


def test_a_crash_is_told_by_the_end_of_its_traceback():
    crashed = Execution(ExecutionStatus.FAILED, exit_code=1, stderr=Output(b"noise\n" * 50 + b"KeyError: 'x'\n"))
    text = prompt(Strategy.REPAIR, Base(CODE, None, crashed), CodegenTask(task="Run."))
    assert "KeyError: 'x'" in text
    assert text.count("noise") < 20


def test_a_hidden_check_shows_its_error_and_never_its_source():
    trace = b"Traceback:\n  File 'codemend_check.py', line 1\n    assert secret(1) == 2\nAssertionError: 5\n"
    failed = Execution(ExecutionStatus.FAILED, exit_code=1, stderr=Output(trace))
    hidden = CodegenTask(task="Run.", check_script="assert secret(1) == 2", hide_tests=True)
    text = prompt(Strategy.REPAIR, Base(CODE, None, failed), hidden)
    assert "AssertionError: 5" in text
    assert "secret" not in text


def test_a_limit_is_told_by_its_reason():
    endless = TestReport(ReportOutcome.TIMED_OUT, reason="the wall time limit of 10 s was met")
    assert "the wall time limit of 10 s was met" in prompt(Strategy.REPAIR, Base(CODE, endless, None))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from solution import a, b as c", ("a", "b")),
        ("import solution\nsolution.f(1)\nsolution.g", ("f", "g")),
        ("import solution as s\ns.f()", ("f",)),
        ("from solution import *", ()),
        ("from other import a", ()),
        ("def broken(", ()),
    ],
)
def test_names_that_the_tests_take_are_found(source, expected):
    assert required_names([File("test_a.py", source.encode())], "solution.py") == expected


def test_names_are_found_for_a_module_in_a_package():
    assert required_names([File("t.py", b"from pkg.mod import f")], "pkg/mod.py") == ("f",)
    assert required_names([File("t.py", b"import pkg.mod\npkg.mod.g(1)\nother.pkg.mod.h(1)")], "pkg/mod.py") == ("g",)


@pytest.mark.parametrize(
    "deep", ["'x'" + ".replace('a', 'b')" * 300, f"({'+'.join(['1'] * 1500)}).real", "a" + ".b" * 300]
)
def test_expressions_of_any_depth_hide_no_name(deep):
    source = f"import solution\nsolution.add(1, 2)\ns = {deep}\n"
    assert required_names([File("t.py", source.encode())], "solution.py") == ("add",)


def test_tests_that_are_too_deep_to_parse_name_nothing():
    source = "from solution import add\n" + "(" * 100_000
    assert required_names([File("t.py", source.encode())], "solution.py") == ()


def test_the_entry_point_comes_first():
    assert interface_text(CodegenTask(task="", entry_point="main", tests=TASK.tests)).startswith(
        "The file must define: `main`, `add`"
    )


@pytest.mark.parametrize(
    ("node_id", "starts"),
    [
        ("test_solution.py::test_add", "def test_add"),
        ("test_solution.py::TestSum::test_total[1]", "@pytest.mark.parametrize"),
        ("test_solution.py::nothing", ""),
        ("elsewhere.py::test_add", ""),
        ("test_solution.py", ""),
    ],
)
def test_the_source_of_a_test_is_found_by_its_node_id(node_id, starts):
    found = test_source(TASK.tests, node_id)
    assert found.startswith(starts)
    assert bool(found) == bool(starts)


@pytest.mark.parametrize(
    ("message", "left", "right", "expected"),
    [
        ("assert -1 == 3\n +  where -1 = add(1, 2)", "-1", "3", "add(1, 2) returns -1\nbut must return 3"),
        ("assert 3 == -1\n +  where -1 = add(1, 2)", "3", "-1", "add(1, 2) returns -1\nbut must return 3"),
        (
            "assert 1 == 2\n +  where 1 = f()\n +  and   2 = g()",
            "1",
            "2",
            "f() returns 1\nbut must return 2",
        ),
        ("assert 1 == 2", "1", "2", "The left side of `==` was 1\nThe right side of `==` was 2"),
    ],
)
def test_what_a_call_gave_and_must_give_is_said_where_it_is_known(message, left, right, expected):
    failure = Failure("AssertionError", message, comparison=Comparison("==", left, right))
    report = TestReport(
        ReportOutcome.FAILED, tests=(TestCase("test_solution.py::x", TestOutcome.FAILED, failure=failure),)
    )
    assert expected in prompt(Strategy.REPAIR, Base(CODE, report, None))
