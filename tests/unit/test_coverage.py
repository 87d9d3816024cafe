"""Coverage on both sides of the contract: frames out of a cell, taken strictly, and the lines that a person reads."""

import pytest
from codemend.sandbox.v1 import sandbox_pb2, verdicts_pb2

from orchestrator.cli import coverage, inputs
from sandbox_service.cells.report import MAX_COVERED_FILES, MAX_MISSING, ReportBuilder
from sandbox_service.domain import FileCoverage, Status
from sandbox_service.guest.exchange import wire
from sandbox_service.replies import report_to

FRAME = {
    "kind": "coverage",
    "path": "a.py",
    "statements": 9,
    "missing": 3,
    "missing_lines": [5, 10, 11],
    "branches": 6,
    "missed_branches": 2,
    "missing_branches": [[4, 5], [10, -9]],
}
END = {"kind": "end", "exit_code": 0, "duration": 0.5}


def reported(*frames: dict):
    builder = ReportBuilder()
    for frame in (*frames, END):
        builder.feed(wire.frame(frame))
    return builder.report(Status.SUCCEEDED)


def test_a_frame_becomes_the_coverage_of_a_file():
    assert reported(FRAME).coverage == (FileCoverage("a.py", 9, (5, 10, 11), 3, 6, ((4, 5), (10, -9)), 2),)


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": 1},
        {"statements": -1},
        {"statements": "9"},
        {"missing": 2**40},
        {"missing_lines": "5"},
        {"missing_lines": [[5]]},
        {"missing_lines": [-5]},
        {"missing_branches": [5]},
        {"missing_branches": [[1, 2, 3]]},
        {"missing_branches": [["4", 5]]},
        {"missing_branches": [[4, -(2**40)]]},
    ],
)
def test_a_frame_of_another_form_breaks_the_report_off(wrong):
    report = reported({**FRAME, **wrong})
    assert report.coverage == ()
    assert "broke off" in report.reason


def test_a_report_tells_why_it_has_no_coverage_to_those_who_asked_for_it():
    measured, missing = reported(FRAME), reported()
    assert measured.coverage_missing_reason == ""
    assert report_to(missing, covers=True).coverage_missing_reason == "no test ran"
    assert report_to(missing).coverage_missing_reason == ""
    assert report_to(measured, covers=True).coverage_missing_reason == ""


def test_what_a_reply_could_not_hold_is_cut():
    many = {**FRAME, "missing_lines": list(range(2 * MAX_MISSING)), "missing": 2 * MAX_MISSING}
    report = reported(many, *[FRAME] * MAX_COVERED_FILES)
    assert len(report.coverage) == MAX_COVERED_FILES
    assert (len(report.coverage[0].missing_lines), report.coverage[0].missing) == (MAX_MISSING, 2 * MAX_MISSING)


def answer(*files: verdicts_pb2.FileCoverage, stderr: bytes = b"") -> sandbox_pb2.RunTestsResponse:
    reply = sandbox_pb2.RunTestsResponse(report=sandbox_pb2.TestReport(coverage=files))
    reply.execution.stderr.head = stderr
    return reply


FILE = verdicts_pb2.FileCoverage


@pytest.mark.parametrize(
    ("file", "line"),
    [
        (FILE(path="a.py", statements=3), "a.py  100% of 3 lines"),
        (FILE(path="a.py"), "a.py  100% of 0 lines"),
        (
            FILE(path="a.py", statements=1000, missing=1, missing_lines=[7]),
            "a.py   99% of 1000 lines; missed: 7",
        ),
        (
            FILE(path="a.py", statements=8, missing=4, missing_lines=[2, 3, 4, 9], branches=4, missed_branches=1),
            "a.py   50% of 8 lines, 75% of 4 branches; missed: 2-4, 9",
        ),
        (FILE(path="a.py", statements=8, missing=8), "a.py    0% of 8 lines; missed: 8"),
        (
            FILE(path="a.py", statements=99, missing=20, missing_lines=range(1, 40, 2)),
            "a.py   79% of 99 lines; missed: 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, …",
        ),
        (FILE(path="a\x1b[31m.py", statements=1), "a\\x1b[31m.py  100% of 1 lines"),
    ],
)
def test_a_file_is_one_line(file, line):
    assert list(coverage.lines(answer(file))) == [line]


def test_paths_are_as_wide_as_the_widest():
    lines = list(coverage.lines(answer(FILE(path="a.py", statements=1), FILE(path="lib/long.py", statements=1))))
    assert [line.index("100%") for line in lines] == [len("lib/long.py") + 2] * 2


def test_why_there_is_no_coverage_is_said():
    reply = answer()
    reply.report.coverage_missing_reason = "no test ran: \x1b[31m"
    assert list(coverage.lines(reply)) == ["no coverage: no test ran: \\x1b[31m"]


def test_what_was_not_measured_is_said():
    stderr = b"noise\ncodemend: coverage: b.py is left out: larger than 131072 bytes\n"
    assert list(coverage.lines(answer(stderr=stderr))) == ["not measured: b.py is left out: larger than 131072 bytes"]


@pytest.mark.parametrize(
    ("paths", "language"),
    [
        (["a.js"], "node"),
        (["a.test.mjs", "lib/b.cjs", "package.json"], "node"),
        (["a.py"], ""),
        (["a.py", "b.js"], ""),
        (["data.json"], ""),
        ([], ""),
    ],
)
def test_file_names_speak_for_a_language(paths, language):
    assert inputs.language_of(paths) == language
