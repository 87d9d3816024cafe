"""What is shown of a run: words, progress, plain lines, JSON lines, and text made safe for a terminal."""

import json
from datetime import timedelta

import pytest
from codemend.orchestrator.v1 import runs_pb2
from codemend.sandbox.v1 import sandbox_pb2
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli import wording
from orchestrator.cli.progress import Progress
from orchestrator.cli.terminal import in_bytes, in_seconds, printable
from orchestrator.cli.views import JsonView, PlainView, summary_lines


def failing_report(**comparison: str) -> sandbox_pb2.TestReport:
    failure = sandbox_pb2.Failure(
        type="AssertionError", message="AssertionError: wrong\n +  where", location="test_a.py:3",
        comparison=sandbox_pb2.Comparison(**comparison) if comparison else None,
    )  # fmt: skip
    tests = [
        sandbox_pb2.TestCase(node_id="test_a.py::test_ok", outcome=sandbox_pb2.TEST_OUTCOME_PASSED),
        sandbox_pb2.TestCase(node_id="test_a.py::test_it", outcome=sandbox_pb2.TEST_OUTCOME_FAILED, failure=failure),
    ]
    return sandbox_pb2.TestReport(outcome=sandbox_pb2.REPORT_OUTCOME_FAILED, tests=tests)


def attempt(number: int = 1, **fields) -> runs_pb2.RunEvent:
    return runs_pb2.RunEvent(attempt=runs_pb2.Attempt(number=number, strategy="draft", **fields))


def route(reason: str) -> runs_pb2.RunEvent:
    return runs_pb2.RunEvent(route=runs_pb2.RouteDecision(source="decide", target="repair", reason=reason))


FAILED = {"report_outcome": sandbox_pb2.REPORT_OUTCOME_FAILED, "tests_passed": 1, "tests_total": 2}


@pytest.mark.parametrize(
    ("fields", "headline"),
    [
        (FAILED, "attempt 1 draft: FAILED 1/2 tests"),
        ({"execution_status": sandbox_pb2.EXECUTION_STATUS_TIMED_OUT}, "attempt 1 draft: TIMED_OUT"),
        ({}, "attempt 1 draft: NOT EXECUTED"),
    ],
)
def test_headlines(fields, headline):
    assert wording.attempt_headline(attempt(**fields).attempt) == headline


def test_failures_show_only_what_failed_with_the_values_compared():
    assert list(wording.failures(failing_report(operator="==", left="7", right="6"))) == [
        "test_a.py::test_it FAILED",
        "    AssertionError at test_a.py:3: wrong",
        "       +  where",
        "      left  = 7",
        "      right = 6",
    ]


def test_failures_show_collection_errors_first_and_count_what_is_left_out():
    report = failing_report()
    for _ in range(6):
        report.tests.append(report.tests[1])
    report.collection_errors.add(path="test_b.py", failure=sandbox_pb2.Failure(type="ImportError", message="no x"))
    lines = list(wording.failures(report))
    assert lines[:2] == ["test_b.py could not be collected", "    ImportError: no x"]
    assert lines[-1] == "and 2 more"


def test_plain_view_tells_attempts_their_failures_and_the_decisions_upon_them(capsys):
    view = PlainView()
    view.event(route("at the start"))
    finished = runs_pb2.ExecutionFinished(attempt=1, report=failing_report(operator="==", left="7", right="6"))
    view.event(runs_pb2.RunEvent(execution_finished=finished))
    view.event(attempt(**FAILED))
    view.event(route("it failed"))
    view.event(route("and so on"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "attempt 1 draft: FAILED 1/2 tests"
    assert "        right = 6" in lines
    assert lines[-1] == "  decide -> repair: it failed"
    assert "start" not in " ".join(lines)


def test_plain_view_shows_why_nothing_was_executed(capsys):
    view = PlainView()
    view.event(attempt(summary="the reply holds no code"))
    assert capsys.readouterr().out.splitlines() == ["attempt 1 draft: NOT EXECUTED", "  the reply holds no code"]


def test_plain_view_shows_a_crash_by_its_last_lines(capsys):
    execution = sandbox_pb2.ExecutionResult(
        status=sandbox_pb2.EXECUTION_STATUS_FAILED, exit_code=1, reason="exit code 1",
        stderr=sandbox_pb2.Output(head=b"Traceback\nKeyError: \x1b[31m'x'\n"),
    )  # fmt: skip
    view = PlainView()
    view.event(runs_pb2.RunEvent(execution_finished=runs_pb2.ExecutionFinished(attempt=1, execution=execution)))
    view.event(attempt(execution_status=sandbox_pb2.EXECUTION_STATUS_FAILED))
    assert capsys.readouterr().out.splitlines()[1:] == ["  exit code 1", "  Traceback", "  KeyError: \\x1b[31m'x'"]


def test_summary_names_the_best_attempt_and_shows_files_that_are_no_text():
    result = runs_pb2.RunResult(outcome=runs_pb2.RUN_OUTCOME_FAILED, delivered_attempt=2, reason="out of attempts")
    result.files.add(path="a.bin", content=b"\xff\x07\n")
    result.attempts.add()
    run = runs_pb2.Run(result=result)
    assert wording.ending(run) == "FAILED after 1 attempt: out of attempts"
    assert summary_lines(run)[1:] == [
        "delivered: the best attempt, number 2",
        "",
        "--- a.bin",
        "\N{REPLACEMENT CHARACTER}\\x07",
    ]


def test_json_view_writes_one_object_a_line_with_the_contracts_names(capsys):
    view = JsonView()
    view.event(runs_pb2.RunEvent(sequence=3, run_id="run_1", model_tokens=runs_pb2.ModelTokens(attempt=1, text="a\nb")))
    view.end(runs_pb2.Run(run_id="run_1", last_sequence=3))
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["event"].items() >= {
        "sequence": "3", "run_id": "run_1", "model_tokens": {"attempt": 1, "text": "a\nb"},
    }.items()  # fmt: skip
    assert last["run"].items() >= {"run_id": "run_1", "last_sequence": "3", "recoveries": 0}.items()


def test_progress_keeps_the_end_of_a_stream_until_its_verdict():
    progress = Progress()
    progress.apply(runs_pb2.RunEvent(node_started=runs_pb2.NodeStarted(node="generate", attempt=2)))
    for text in ("x" * 20_000, "end"):
        progress.apply(runs_pb2.RunEvent(model_tokens=runs_pb2.ModelTokens(attempt=2, text=text)))
    assert (progress.node, progress.attempt) == ("generate", 2)
    assert progress.stream[2].endswith("end")
    assert len(progress.stream[2]) == 16 * 1024
    progress.apply(attempt(2))
    assert progress.stream == {}


@given(st.text(st.characters(codec=None), max_size=200))
def test_printable_text_holds_no_control_character(text):
    shown = printable(text)
    assert all(char in "\n\t" or char.isprintable() for char in shown)


def test_printable_leaves_ordinary_text_alone():
    assert printable("é\t漢\n\r\n") == "é\t漢\n\n"
    assert printable("\x1b[31m\x9b\u202e") == "\\x1b[31m\\x9b\\u202e"


def test_quantities_read_well():
    assert [in_seconds(timedelta(seconds=seconds)) for seconds in (0.0123, 1.26, 83, 1200, 3720)] == [
        "12 ms", "1.3 s", "83 s", "20 min", "1 h 02 min",
    ]  # fmt: skip
    assert [in_bytes(count) for count in (0, 512, 1536, 2**30, 3 * 2**40)] == [
        "0 B",
        "512 B",
        "1.5 KiB",
        "1 GiB",
        "3072 GiB",
    ]
