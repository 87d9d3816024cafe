"""Turns a reporter's frames into a TestReport.

Frames come from inside a cell: every field is checked, cut and made valid text here.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sandbox_service.cells.report_verdict import (
    Canaries,
    Candidate,
    Plan,
    ReportEvidence,
    coverage_missing,
    integrity,
    outcome,
)
from sandbox_service.domain import (
    CollectionError,
    Comparison,
    Failure,
    FileCoverage,
    Status,
    TestCase,
    TestIsolation,
    TestOutcome,
    TestReport,
)
from sandbox_service.guest.exchange.wire import ForgedError, FrameReader, Seal

MAX_LISTED_BYTES = 1024 * 1024
MAX_COLLECTION_ERRORS = 64
MAX_COVERED_FILES, MAX_MISSING = 256, 4096
MAX_EXPECTED, MAX_SKIPPED_FILES = 100_000, 4096
_ID, _MESSAGE, _TRACEBACK, _SIDE, _CAPTURED = 1024, 4096, 16384, 1024, 8192
_ENTRY_BYTES = 64
"""Estimated size of an entry's fixed fields in a reply."""


class ReportBuilder:
    """Takes the bytes of a report as they come, keeps memory bounded, and gives the report at the end.

    Args:
        key: of the report's seal; empty: it has none.
        asked: the isolation that the caller asked for.
        on_plan: called once, when it is settled where the code under test runs.
    """

    def __init__(
        self,
        key: bytes = b"",
        *,
        asked: TestIsolation = TestIsolation.SHARED,
        on_plan: Callable[[], None] = lambda: None,
    ) -> None:
        self._reader = FrameReader(Seal(key) if key else None)
        self._asked, self._on_plan = asked, on_plan
        self._tests: list[TestCase] = []
        self._errors: list[CollectionError] = []
        self._error_count = 0
        self._running: str | None = None
        self._collected = 0
        self._framework = ""
        self._exit_code: int | None = None
        self._duration = timedelta()
        self._broken = ""
        self._coverage: list[FileCoverage] = []
        self._expected: list[str] = []
        self._skipped_files: list[str] = []
        self._canaries = Canaries()
        self._tampering = ""
        self._gone = ""
        self.plan: Plan | None = None
        self.unplain = ""
        """What the tests cannot hand to code that runs elsewhere."""
        self.needs_sharing = False
        """Whether that was found before anything was learned from the code under test."""
        self.candidate: Candidate | None = None
        """How the cell of the code under test ended; set by whoever ran it."""

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes; after nonsense it takes no more, and the report says so."""
        if self._broken:
            return
        try:
            for message in self._reader.feed(chunk):
                self._take(message)
        except ForgedError as error:
            self._broken = self._tampering = str(error)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self._broken = f"{type(error).__name__}: {error}"[:256]

    def _take(self, message: Mapping[str, Any]) -> None:
        if self._exit_code is not None:
            raise ValueError("a frame after the end")
        match message["kind"]:
            case "session":
                self._framework = _text(message["framework"], _ID)
            case "collected":
                self._collected = _count(message["count"])
            case "collect_error":
                self._take_error(CollectionError(_text(message["path"], _ID), _failure(message["failure"])))
            case "begin":
                self._running = _text(message["id"], _ID)
            case "test":
                self._running = None
                self._tests.append(_test(message))
            case "coverage":
                self._coverage = [*self._coverage, _file_coverage(message)][:MAX_COVERED_FILES]
            case "end":
                self._exit_code = _count(message["exit_code"])
                self._duration = _seconds(message["duration"])
            case "expected" | "plan" | "guard" | "collect_skip" | "canary" | "tampered" | "unplain" | "gone" as kind:
                self._take_integrity(kind, message)
            case other:
                raise ValueError(f"unknown frame {_text(other, 32)!r}")

    def _take_error(self, error: CollectionError) -> None:
        self._error_count += 1
        if len(self._errors) < MAX_COLLECTION_ERRORS:
            self._errors.append(error)

    def _take_integrity(self, kind: str, message: Mapping[str, Any]) -> None:
        match kind:
            case "expected":
                self._expected += [_text(node_id, _ID) for node_id in message["ids"]]
                if len(self._expected) > MAX_EXPECTED:
                    raise ValueError(f"more than {MAX_EXPECTED} expected tests")
            case "plan":
                self.plan = _plan(message)
                self._on_plan()
            case "guard":
                self._canaries = Canaries(planned=_count(message["canaries"]))
            case "collect_skip":
                if len(self._skipped_files) < MAX_SKIPPED_FILES:
                    self._skipped_files.append(_text(message["path"], _ID))
            case "canary":
                self._take_canary(_text(message["saw"], _ID), failed=message["failed"] is True)
            case "tampered":
                self._tampering = self._tampering or _text(message["what"], _ID) or "something was changed"
            case _:
                self._take_conversation(kind, message)

    def _take_conversation(self, kind: str, message: Mapping[str, Any]) -> None:
        """What became of the talk with code that runs in another cell."""
        if kind == "unplain":
            self.unplain = _text(message["reason"], _ID)
            self.needs_sharing = message["first"] is True
        else:
            self._gone = _text(message["why"], _ID)

    def _take_canary(self, saw: str, *, failed: bool) -> None:
        if failed:
            self._canaries = replace(self._canaries, failed=self._canaries.failed + 1)
        else:
            self._canaries = replace(self._canaries, alive=saw or "nothing was seen of it")

    def report(self, status: Status) -> TestReport:
        """The report of a run whose process ended with `status`."""
        tests = list(self._tests)
        if self._running is not None:
            tests.append(TestCase(self._running, TestOutcome.UNFINISHED))
        evidence = ReportEvidence(
            status, self._exit_code, self._collected, tests, self._error_count, self._broken, self.plan,
            self._expected, self._skipped_files, self._canaries, self._tampering, self.unplain, self._gone,
            self.candidate, self._framework,
        )  # fmt: skip
        verdict, reason = outcome(evidence)
        counts: dict[TestOutcome, int] = {}
        for test in tests:
            counts[test.outcome] = counts.get(test.outcome, 0) + 1
        listed = fit(tests, MAX_LISTED_BYTES)
        return TestReport(
            outcome=verdict,
            reason=reason,
            tests=tuple(listed),
            counts=counts,
            tests_left_out=len(tests) - len(listed),
            collection_errors=tuple(self._errors),
            framework=self._framework,
            duration=self._duration,
            integrity=integrity(evidence, self._asked),
            coverage=tuple(self._coverage),
            coverage_missing_reason="" if self._coverage else coverage_missing(evidence),
        )


def fit(tests: list[TestCase], limit: int) -> list[TestCase]:
    """Cuts a list to `limit` bytes and keeps its order.

    Entries of failed tests are kept first, then their details, then entries of passed tests; where all entries fit, the
    passed ones come before the details.
    """
    if sum(map(_size, tests)) <= limit:
        return tests
    bare = [replace(test, failure=None, stdout=b"", stderr=b"") for test in tests]
    failed = [index for index, test in enumerate(tests) if test.outcome is not TestOutcome.PASSED]
    passed = [index for index, test in enumerate(tests) if test.outcome is TestOutcome.PASSED]
    all_entries_fit = sum(map(_size, bare)) <= limit
    kept: dict[int, TestCase] = {}
    for index in [*failed, *passed] if all_entries_fit else failed:
        if _size(bare[index]) <= limit:
            kept[index] = bare[index]
            limit -= _size(bare[index])
    for index in failed:
        gain = _size(tests[index]) - _size(bare[index])
        if index in kept and gain <= limit:
            kept[index] = tests[index]
            limit -= gain
    for index in passed:
        if index not in kept and _size(bare[index]) <= limit:
            kept[index] = bare[index]
            limit -= _size(bare[index])
    return [kept[index] for index in sorted(kept)]


def _size(test: TestCase) -> int:
    size = _ENTRY_BYTES + len(test.node_id.encode()) + len(test.stdout) + len(test.stderr)
    if test.failure:
        sides = test.failure.comparison
        texts = [test.failure.type, test.failure.message, test.failure.location, test.failure.traceback]
        texts += [sides.operator, sides.left, sides.right] if sides else []
        size += sum(len(text.encode()) for text in texts) + _ENTRY_BYTES
    return size


def _plan(message: Mapping[str, Any]) -> Plan:
    isolation = TestIsolation(message["isolation"])
    if isolation is TestIsolation.AUTO:
        raise ValueError("a plan that settles nothing")
    return Plan(
        isolation=isolation,
        reason=_text(message["reason"], _ID),
        refused=_text(message["refused"], _ID),
        is_open=_text(message["open"], _ID),
        read_only=message["read_only"] is True,
    )


def _test(message: Mapping[str, Any]) -> TestCase:
    failure = message.get("failure")
    return TestCase(
        node_id=_text(message["id"], _ID),
        outcome=TestOutcome(message["outcome"]),
        duration=_seconds(message["duration"]),
        failure=_failure(failure) if failure is not None else None,
        stdout=_bytes(message.get("stdout", "")),
        stderr=_bytes(message.get("stderr", "")),
        by_tests=message.get("by_tests") is True,
    )


def _failure(value: Mapping[str, Any]) -> Failure:
    sides = value["comparison"]
    return Failure(
        type=_text(value["type"], _ID),
        message=_text(value["message"], _MESSAGE),
        location=_text(value["location"], _ID),
        traceback=_text(value["traceback"], _TRACEBACK),
        comparison=Comparison(_text(sides["operator"], 16), _text(sides["left"], _SIDE), _text(sides["right"], _SIDE))
        if sides
        else None,
    )


def _file_coverage(message: Mapping[str, Any]) -> FileCoverage:
    lines, branches = message["missing_lines"], message["missing_branches"]
    if not isinstance(lines, list) or not isinstance(branches, list):
        raise TypeError("missing lines and branches are no lists")
    return FileCoverage(
        path=_text(message["path"], _ID),
        statements=_count(message["statements"]),
        missing_lines=tuple(_count(line) for line in lines[:MAX_MISSING]),
        missing=_count(message["missing"]),
        branches=_count(message["branches"]),
        missing_branches=tuple((_count(start), _line(end)) for start, end in branches[:MAX_MISSING]),
        missed_branches=_count(message["missed_branches"]),
    )


def _line(value: object) -> int:
    """A line's number; negative for the exit of the block that begins there."""
    if not isinstance(value, int):
        raise TypeError(f"a {type(value).__name__} where a line's number belongs")
    return value if value >= 0 and _count(value) >= 0 else -_count(-value)


def _text(value: object, limit: int) -> str:
    """Valid text of at most `limit` bytes in UTF-8: lone surrogates become "?", a cut is marked with "…"."""
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} where text belongs")
    data = value.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    return data[: limit - 3].decode("utf-8", "ignore") + "…"


def _bytes(value: object) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} where text belongs")
    return value.encode("utf-8", "replace")[-_CAPTURED:]


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError("a count out of range")
    return value


def _seconds(value: object) -> timedelta:
    if not isinstance(value, (int, float)) or not 0 <= value < 1e6:  # noqa: PLR2004 - longer than any job may run
        raise ValueError("a duration out of range")
    return timedelta(seconds=value)
