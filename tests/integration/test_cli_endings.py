"""How `codemend exec` and `codemend test` tell endings that no honest program has; the sandbox answers by script."""

from dataclasses import replace

import pytest
from support.cells import succeeded
from support.cli import run_cli
from support.scripted_sandbox import scripted_sandbox

from sandbox_service.domain import (
    Integrity,
    IntegrityCheck,
    Output,
    ReportOutcome,
    Status,
    TestCase,
    TestIsolation,
    TestOutcome,
    TestReport,
)
from sandbox_service.errors import CellUnavailable

TEST = ("test", "--solution", "solution.py", "--tests", "test_solution.py")
CASE = TestCase("test_solution.py::test_it", TestOutcome.PASSED)


def reported(outcome, reason="", **fields):
    report = TestReport(outcome, reason=reason, tests=(CASE,), counts={TestOutcome.PASSED: 1}, **fields)
    return replace(succeeded(), report=report)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "solution.py").write_text("x = 1\n")
    (tmp_path / "test_solution.py").write_text("def test_it(): pass\n")
    return tmp_path


async def run(folder, answers, *arguments):
    async with scripted_sandbox(*answers) as sandbox:
        done = await run_cli(*arguments, "--sandbox-address", sandbox.address, cwd=folder)
    return done, sandbox


async def test_exec_ends_with_the_code_of_a_forbidden_call_and_names_it(folder):
    outcome = succeeded()
    result = replace(
        outcome.result, status=Status.VIOLATION, reason="made a forbidden system call: bpf", exit_code=None
    )
    done, _ = await run(folder, [replace(outcome, result=result)], "exec", "solution.py")
    assert done.code == 159
    assert done.err.splitlines()[-1] == "codemend: VIOLATION: made a forbidden system call: bpf"


async def test_a_report_that_was_tampered_with_is_no_pass_and_says_what_was_seen(folder):
    checks = (IntegrityCheck("handshake", held=True), IntegrityCheck("canaries", held=False, detail="test_c41d passed"))
    answer = reported(
        ReportOutcome.TAMPERED, "a test that must fail passed", integrity=Integrity(TestIsolation.SHARED, "", checks)
    )
    done, _ = await run(folder, [answer], *TEST)
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[-3].startswith("TAMPERED 1/1 tests")
    assert lines[-2:] == ["a test that must fail passed", "canaries did not hold: test_c41d passed"]


async def test_a_run_that_did_not_come_to_its_end_is_no_pass_and_shows_its_last_words(folder):
    answer = reported(ReportOutcome.INCOMPLETE, "the process ended before it had reported")
    result = replace(answer.result, stderr=Output(b"Segmentation fault\n"))
    done, _ = await run(folder, [replace(answer, result=result)], *TEST)
    assert done.code == 1
    assert done.out.splitlines()[-2:] == ["the process ended before it had reported", "  Segmentation fault"]


async def test_a_pass_in_the_tests_own_process_says_so(folder):
    integrity = Integrity(TestIsolation.SHARED, "the tests patch the solution", ())
    done, _ = await run(folder, [reported(ReportOutcome.PASSED, integrity=integrity)], *TEST)
    assert done.code == 0
    said = "The solution ran in the tests' own process: the tests patch the solution"
    assert done.out.splitlines()[-1] == said


async def test_tests_that_are_tried_again_are_one_job(folder):
    done, sandbox = await run(folder, [CellUnavailable("no cells"), reported(ReportOutcome.PASSED)], *TEST)
    assert done.code == 0
    assert len(sandbox.cells.started) == 2
    assert sandbox.keys.remembered == 1
