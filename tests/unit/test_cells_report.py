"""Frames out of a cell become a report; whatever they are, they never become a pass unearned, or more than fits."""

import json
import struct
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_service.cells import report as module
from sandbox_service.cells.report import ReportBuilder, fit
from sandbox_service.domain import Comparison, Failure, ReportOutcome, Status, TestCase, TestIsolation, TestOutcome
from sandbox_service.guest.exchange import wire

FAILURE = {
    "type": "AssertionError", "message": "1 == 2", "location": "test_a.py:3", "traceback": "…",
    "comparison": {"operator": "==", "left": "1", "right": "2"},
}  # fmt: skip


def frame_of(number=0, **fields):
    """The frame of one test."""
    return {
        "kind": "test",
        "id": f"test_a.py::test_{number}",
        "outcome": "PASSED",
        "duration": 0.25,
        "by_tests": True,
        **fields,
    }


SESSION = {"kind": "session", "framework": "pytest 9.0.0"}
END = {"kind": "end", "exit_code": 0, "duration": 1.5}


def frames(*tests, end=END, collected=None):
    """A whole session around the frames of tests."""
    count = len(tests) if collected is None else collected
    begun = [frame for test in tests for frame in ({"kind": "begin", "id": test["id"]}, test)]
    return [SESSION, {"kind": "collected", "count": count}, *begun, *([end] if end else [])]


def report(messages, status=Status.SUCCEEDED):
    builder = ReportBuilder()
    for message in messages:
        builder.feed(message if isinstance(message, bytes) else wire.frame(message))
    return builder.report(status)


def test_a_whole_session_is_a_report_in_full():
    found = report(frames(frame_of(0), frame_of(1, outcome="FAILED", failure=FAILURE, stdout="out", stderr="err"),
                          end={**END, "exit_code": 1}))  # fmt: skip
    assert found.outcome is ReportOutcome.FAILED
    assert found.framework == "pytest 9.0.0"
    assert found.duration == timedelta(seconds=1.5)
    assert found.counts == {TestOutcome.PASSED: 1, TestOutcome.FAILED: 1}
    comparison = Comparison("==", "1", "2")
    failure = Failure("AssertionError", "1 == 2", "test_a.py:3", "…", comparison)
    assert found.tests == (
        TestCase("test_a.py::test_0", TestOutcome.PASSED, timedelta(seconds=0.25), by_tests=True),
        TestCase(
            "test_a.py::test_1", TestOutcome.FAILED, timedelta(seconds=0.25), failure, b"out", b"err", by_tests=True
        ),
    )


def test_a_test_that_had_begun_is_unfinished():
    messages = [*frames(frame_of(0), end=None, collected=2), {"kind": "begin", "id": "test_a.py::test_1"}]
    found = report(messages, Status.TIMED_OUT)
    assert found.outcome is ReportOutcome.TIMED_OUT
    assert [test.outcome for test in found.tests] == [TestOutcome.PASSED, TestOutcome.UNFINISHED]
    assert found.tests[1].node_id == "test_a.py::test_1"


MALFORMED = {
    "no kind": {"id": "x"},
    "unknown kind": {"kind": "verdict", "outcome": "PASSED"},
    "kind of another type": {"kind": ["test"]},
    "missing outcome": {"kind": "test", "id": "x", "duration": 0},
    "unknown outcome": frame_of(outcome="GREAT"),
    "outcome of another type": frame_of(outcome=None),
    "id of another type": frame_of(id=7),
    "negative duration": frame_of(duration=-1),
    "endless duration": frame_of(duration=float("inf")),
    "no number": frame_of(duration=float("nan")),
    "duration as text": frame_of(duration="1"),
    "failure of another type": frame_of(failure="x"),
    "failure without a message": frame_of(failure={"type": "x"}),
    "comparison of another type": frame_of(failure={**FAILURE, "comparison": "=="}),
    "output of another type": frame_of(stdout=["x"]),
    "negative count": {"kind": "collected", "count": -1},
    "huge count": {"kind": "collected", "count": 2**31},
    "fraction as count": {"kind": "collected", "count": 1.5},
    "exit code as text": {"kind": "end", "exit_code": "0", "duration": 1},
    "no JSON": struct.pack("!I", 3) + b"{x}",
    "no object": struct.pack("!I", 2) + b"[]",
    "no UTF-8": struct.pack("!I", 2) + b"\xff\xff",
    "empty body": struct.pack("!I", 0),
    "plan without isolation": {"kind": "plan", "reason": "", "refused": "", "open": "", "read_only": True},
    "plan that settles nothing": {
        "kind": "plan",
        "isolation": "AUTO",
        "reason": "",
        "refused": "",
        "open": "",
        "read_only": True,
    },
    "expected tests of another type": {"kind": "expected", "ids": [1]},
    "expected tests without number": {"kind": "expected", "ids": 1},
    "canaries without number": {"kind": "guard", "canaries": "4"},
    "canary without what was seen": {"kind": "canary", "failed": True},
    "tampering without what was seen": {"kind": "tampered"},
    "refusal without reason": {"kind": "unplain", "first": True},
    "huge length": struct.pack("!I", wire.MAX_FRAME_BYTES + 1),
    "deep nesting": struct.pack("!I", 200_000) + b"[" * 200_000,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_frame_ends_the_report_and_is_never_a_pass(name):
    whole = frames(frame_of(0))
    for place in range(len(whole)):
        found = report([*whole[:place], MALFORMED[name], *whole[place:]])
        assert found.outcome is ReportOutcome.ERROR
        assert "broke off" in found.reason
        assert len(found.reason) < 512


@pytest.mark.parametrize("later", [END, SESSION, frame_of(1)])
def test_a_frame_after_the_end_breaks_the_report(later):
    assert report([*frames(frame_of(0)), later]).outcome is ReportOutcome.ERROR


def test_a_report_that_is_cut_anywhere_is_no_pass():
    data = b"".join(map(wire.frame, frames(frame_of(0), frame_of(1))))
    assert report([data]).outcome is ReportOutcome.PASSED
    for cut in range(len(data)):
        assert report([data[:cut]]).outcome is not ReportOutcome.PASSED


def test_a_report_fed_byte_by_byte_is_the_same():
    data = b"".join(map(wire.frame, frames(frame_of(0), frame_of(1, failure=FAILURE, outcome="FAILED"))))
    assert report([data[place : place + 1] for place in range(len(data))]) == report([data])


def test_a_report_longer_than_its_limit_breaks_off_and_stays_small():
    builder = ReportBuilder()
    frame = wire.frame(frame_of(stdout="x" * 400_000))
    for _ in range(wire.MAX_REPORT_BYTES // len(frame) + 2):
        builder.feed(frame)
    found = builder.report(Status.SUCCEEDED)
    assert found.outcome is ReportOutcome.ERROR
    assert "longer than" in found.reason
    assert sum(len(test.stdout) for test in found.tests) <= len(found.tests) * 8192


def test_texts_are_valid_and_within_their_sizes():
    short, long = "é\ud800" * 1600, "é\ud800" * 6000
    failure = {"type": short, "message": short, "location": short, "traceback": long,
               "comparison": {"operator": short, "left": short, "right": short}}  # fmt: skip
    frame = {**frame_of(outcome="FAILED", failure=failure, stdout=long, stderr=long), "id": short}
    found = report(frames(frame, end={**END, "exit_code": 1}))
    (test,) = found.tests
    sides = test.failure.comparison
    for text, limit in [
        (test.node_id, 1024), (test.failure.type, 1024), (test.failure.message, 4096), (test.failure.location, 1024),
        (test.failure.traceback, 16384), (sides.operator, 16), (sides.left, 1024), (sides.right, 1024),
    ]:  # fmt: skip
        assert limit - 8 <= len(text.encode()) <= limit
        assert text.endswith("…")
    assert len(test.stdout) == len(test.stderr) == 8192


def test_collection_errors_are_kept_up_to_their_number_and_all_counted():
    number = module.MAX_COLLECTION_ERRORS + 10
    errors = [{"kind": "collect_error", "path": f"test_{n}.py", "failure": FAILURE} for n in range(number)]
    found = report([SESSION, *errors, {"kind": "collected", "count": 0}, {**END, "exit_code": 2}])
    assert len(found.collection_errors) == module.MAX_COLLECTION_ERRORS
    assert found.outcome is ReportOutcome.ERROR
    assert str(number) in found.reason


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
kinds = st.sampled_from(["session", "collected", "collect_error", "begin", "test", "end", "other"])
names = st.sampled_from(
    ["id", "outcome", "duration", "failure", "stdout", "stderr", "count", "exit_code", "framework", "path"]
)
anything = st.builds(lambda kind, rest: {"kind": kind, **rest}, kinds, st.dictionaries(names, values, max_size=6))


@given(st.lists(anything, max_size=6))
def test_frames_of_any_content_never_raise_and_never_pass_without_a_passed_test(messages):
    found = report(
        [struct.pack("!I", len(body)) + body for body in (json.dumps(message).encode() for message in messages)]
    )
    assert (
        found.outcome is not ReportOutcome.PASSED
        or found.counts.get(TestOutcome.PASSED)
        or found.counts.get(TestOutcome.XFAILED)
    )


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_bytes_of_any_content_never_raise(pieces):
    assert report(pieces).outcome is not ReportOutcome.PASSED


cases = st.builds(
    TestCase,
    node_id=st.text("aé", min_size=1, max_size=20),
    outcome=st.sampled_from(TestOutcome),
    failure=st.none() | st.builds(Failure, message=st.text("xß", max_size=300), traceback=st.text("y", max_size=300)),
    stdout=st.binary(max_size=200),
)


@given(st.lists(cases, max_size=30), st.integers(0, 6000))
def test_a_fitted_list_keeps_its_order_and_its_size_and_failures_before_passes(tests, limit):
    found = fit(tests, limit)
    assert sum(map(module._size, found)) <= max(limit, 0)
    places = iter(tests)
    assert all(any((case.node_id, case.outcome) == (test.node_id, test.outcome) for test in places) for case in found)
    if len(found) < len(tests):
        kept_passes = sum(case.outcome is TestOutcome.PASSED for case in found)
        lost_failures = sum(test.outcome is not TestOutcome.PASSED for test in tests) - (len(found) - kept_passes)
        assert not (kept_passes and lost_failures)
    if sum(map(module._size, tests)) <= limit:
        assert found == tests


def test_details_of_failures_are_kept_before_those_of_passes():
    failed = TestCase("f", TestOutcome.FAILED, failure=Failure(message="m" * 100))
    passed = TestCase("p", TestOutcome.PASSED, stdout=b"o" * 1000)
    found = fit([passed, failed, passed], 800)
    assert [len(case.stdout) for case in found] == [0, 0, 0]
    assert found[1] == failed


KEY = b"k" * 32
PLAN = {"kind": "plan", "isolation": "SEPARATE", "reason": "", "refused": "", "open": "", "read_only": True}


def sealed(messages, key=KEY):
    """A report as the reporter with this key writes it."""
    seal = wire.Seal(key)
    return [wire.frame(message, seal) for message in messages]


def told(chunks, status=Status.SUCCEEDED, **more):
    builder = ReportBuilder(KEY, **more)
    for chunk in chunks:
        builder.feed(chunk)
    return builder.report(status)


def test_a_sealed_report_with_its_seal_is_a_report():
    assert told(sealed(frames(frame_of(0)))).outcome is ReportOutcome.PASSED


FORGERIES = {
    "another key": lambda _whole: sealed(frames(frame_of(0)), b"x" * 32),
    "no seal": lambda _whole: [wire.frame(message) for message in frames(frame_of(0))],
    "a frame added": lambda whole: [*whole[:2], wire.frame(frame_of(5)) + bytes(wire.SEAL_BYTES), *whole[2:]],
    "a frame left out": lambda whole: [*whole[:3], *whole[4:]],
    "a frame twice": lambda whole: [*whole[:3], *whole[2:]],
    "two frames in another order": lambda whole: [whole[1], whole[0], *whole[2:]],
    "one letter changed": lambda whole: [b"".join(whole).replace(b"PASSED", b"FAILED", 1)],
    "garbage": lambda whole: [*whole[:2], b"\xff" * 8, *whole[2:]],
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_frame_that_the_reporter_did_not_write_is_tampering(name):
    found = told(FORGERIES[name](sealed(frames(frame_of(0), frame_of(1)))))
    assert found.outcome is ReportOutcome.TAMPERED
    assert found.reason


def test_a_sealed_report_that_is_cut_anywhere_is_no_pass():
    data = b"".join(sealed(frames(frame_of(0))))
    for cut in range(len(data)):
        assert told([data[:cut]]).outcome is ReportOutcome.INCOMPLETE


def test_a_plan_is_told_at_once_and_becomes_the_report_s_integrity():
    planned = []
    builder = ReportBuilder(on_plan=lambda: planned.append(True))
    for message in [{"kind": "expected", "ids": ["test_a.py::test_0"]}, PLAN]:
        builder.feed(wire.frame(message))
    assert planned == [True]
    for message in frames(frame_of(0)):
        builder.feed(wire.frame(message))
    found = builder.report(Status.SUCCEEDED).integrity
    assert found.isolation is TestIsolation.SEPARATE
    assert [(check.name, check.held) for check in found.checks] == [
        ("read_only_tests", True), ("expected_tests", True), ("handshake", True),
    ]  # fmt: skip


def test_an_expected_test_that_did_not_report_is_named():
    found = report([{"kind": "expected", "ids": ["test_a.py::test_0", "test_a.py::test_gone"]}, *frames(frame_of(0))])
    assert found.outcome is ReportOutcome.INCOMPLETE
    assert "test_a.py::test_gone" in found.reason


def test_a_file_that_its_tests_skip_expects_nothing():
    skipped = {"kind": "collect_skip", "path": "test_b.py"}
    ids = ["test_a.py::test_0", "test_b.py::test_1"]
    assert report([{"kind": "expected", "ids": ids}, skipped, *frames(frame_of(0))]).outcome is ReportOutcome.PASSED


def canary(*, failed):
    return {"kind": "canary", "failed": failed, "saw": "PASSED"}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([canary(failed=True), canary(failed=True)], ReportOutcome.PASSED),
        ([canary(failed=True)], ReportOutcome.INCOMPLETE),
        ([canary(failed=True), canary(failed=False)], ReportOutcome.TAMPERED),
        ([canary(failed=True), canary(failed=True), {"kind": "tampered", "what": "x"}], ReportOutcome.TAMPERED),
    ],
)
def test_every_canary_must_have_failed(seen, expected):
    assert report([{"kind": "guard", "canaries": 2}, *seen, *frames(frame_of(0))]).outcome is expected


def test_a_report_of_more_expected_tests_than_fit_breaks_off():
    many = {"kind": "expected", "ids": ["x"] * 50_000}
    assert report([many, many, many, *frames(frame_of(0))]).outcome is ReportOutcome.ERROR
