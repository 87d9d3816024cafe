"""Replies from the domain to protobuf, cut by the contract's rules so that every one of them fits into a message.

Nothing that a program printed, named or raised can make a reply fail: text is cleaned of what a proto string refuses,
and sizes are measured on the messages themselves. Worst case, all parts at their caps: 3.9 MiB.
"""

from collections.abc import Iterable
from datetime import timedelta

from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sessions_pb2, verdicts_pb2
from google.protobuf.duration_pb2 import Duration

from sandbox_service import domain
from sandbox_service.domain import LIMIT_NAMES, MIB, TestOutcome
from sandbox_service.session_jobs import WorkspaceUpdate
from sandbox_service.workspace import show

KIB = 1024
OUTPUT_HALF_BYTES = 256 * KIB
MAXIMUM_FILES = 256
FILES_BYTES = MIB
TESTS_BYTES = MIB
MAXIMUM_COLLECTION_ERRORS = 64
COLLECTION_ERRORS_BYTES = 256 * KIB
TEST_OUTPUT_BYTES = 8 * KIB
MAXIMUM_COVERED_FILES = 256
MAXIMUM_MISSING = 4096
MAXIMUM_LEFT_OUT = 256
LEFT_OUT_BYTES = 32 * KIB
COVERAGE_BYTES = 128 * KIB
ENTRY_OVERHEAD = 8  # bytes of tag and length around a message in a list

_COUNT_FIELDS = {
    TestOutcome.PASSED: "passed",
    TestOutcome.FAILED: "failed",
    TestOutcome.ERROR: "errors",
    TestOutcome.SKIPPED: "skipped",
    TestOutcome.XFAILED: "xfailed",
    TestOutcome.XPASSED: "xpassed",
    TestOutcome.UNFINISHED: "unfinished",
}
_WITH_DETAILS_FIRST = frozenset({TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.UNFINISHED})


def result_to(result: domain.Result) -> pb.ExecutionResult:
    """An execution as its message."""
    files, left_out = _fitting_files(result)
    return pb.ExecutionResult(
        status=pb.ExecutionStatus.Value(f"EXECUTION_STATUS_{result.status}"),
        reason=_text(result.reason, KIB),
        exit_code=result.exit_code,
        signal=result.signal,
        stdout=_output_to(result.stdout),
        stderr=_output_to(result.stderr),
        wall_time=duration_to(result.wall_time),
        cpu_time=duration_to(result.cpu_time),
        peak_memory_bytes=result.peak_memory_bytes,
        files=files,
        files_left_out=left_out,
        isolation=pb.Isolation(cell=result.isolation.cell, protections=result.isolation.protections),
        queue_time=duration_to(result.queue_time),
    )


def report_to(report: domain.TestReport, *, covers: bool = False) -> pb.TestReport:
    """A test report as its message. `covers`: coverage was asked for, so that it is told why there is none."""
    tests = _fitting_tests(report.tests)
    counts = {field: report.counts.get(outcome, 0) for outcome, field in _COUNT_FIELDS.items()}
    return pb.TestReport(
        outcome=pb.ReportOutcome.Value(f"REPORT_OUTCOME_{report.outcome}"),
        reason=_text(report.reason, KIB),
        tests=tests,
        counts=pb.TestCounts(total=sum(counts.values()), **counts),
        tests_left_out=report.tests_left_out + len(report.tests) - len(tests),
        collection_errors=_fitting_collection_errors(report.collection_errors),
        framework=_text(report.framework, 128),
        duration=duration_to(report.duration),
        integrity=_integrity_to(report.integrity) if report.integrity else None,
        coverage=_fitting_coverage(report.coverage),
        coverage_missing_reason=_text(report.coverage_missing_reason, KIB) if covers else "",
    )


def update_to(update: WorkspaceUpdate) -> sessions_pb2.WorkspaceUpdate:
    """What a job did to its session as its message."""
    message = sessions_pb2.WorkspaceUpdate(
        kept=update.kept, reason=_text(update.reason, KIB), written=update.written, removed=update.removed
    )
    message.left_out.extend(shown_paths(update.left_out))
    return message


def shown_paths(paths: Iterable[bytes]) -> list[str]:
    """Paths for people, as many as a reply may have."""
    listed: list[str] = []
    room = LEFT_OUT_BYTES
    for path in paths:
        text = _text(show(path), KIB)
        room -= len(text.encode()) + ENTRY_OVERHEAD
        if room < 0 or len(listed) == MAXIMUM_LEFT_OUT:
            break
        listed.append(text)
    return listed


def limits_to(limits: domain.Limits) -> pb.Limits:
    """Limits as their message, every field set."""
    values = {name: getattr(limits, name) for name in LIMIT_NAMES}
    message = pb.Limits()
    for name, value in values.items():
        if isinstance(value, timedelta):
            getattr(message, name).FromTimedelta(value)
        else:
            setattr(message, name, value)
    return message


def protection_to(protection: domain.Protection) -> pb.Protection:
    """A protection as its message."""
    return pb.Protection(name=protection.name, in_force=protection.in_force, detail=_text(protection.detail, KIB))


def _output_to(output: domain.Output) -> pb.Output:
    """Head and tail, cut to a half each where the two are over the cap together."""
    head, tail, dropped = output.head, output.tail, output.dropped_bytes
    if len(head) + len(tail) > 2 * OUTPUT_HALF_BYTES:
        whole = len(head) + len(tail)
        ending = (head + tail if not dropped else tail)[-OUTPUT_HALF_BYTES:]
        head, tail = head[:OUTPUT_HALF_BYTES], ending
        dropped += whole - len(head) - len(tail)
    return pb.Output(head=head, tail=tail, dropped_bytes=dropped)


def _fitting_files(result: domain.Result) -> tuple[list[pb.File], list[str]]:
    files: list[pb.File] = []
    left_out = [_text(path, KIB) for path in result.files_left_out]
    room = FILES_BYTES
    for file in sorted(result.files, key=lambda file: file.path):
        path = _text(file.path, KIB)
        room_needed = len(file.content) + len(path.encode())
        if len(files) == MAXIMUM_FILES or room_needed > room:
            left_out.append(path)
            continue
        room -= room_needed
        files.append(pb.File(path=path, content=file.content, executable=file.executable))
    return files, left_out[:MAXIMUM_FILES]


def _fitting_tests(cases: Iterable[domain.TestCase]) -> list[pb.TestCase]:
    """Entries in order of running; failed tests keep their entries and details before all others."""
    cases = tuple(cases)
    by_need = sorted(range(len(cases)), key=lambda index: cases[index].outcome not in _WITH_DETAILS_FIRST)
    room = TESTS_BYTES
    kept: dict[int, pb.TestCase] = {}
    for index in by_need:
        entry = _case_to(cases[index], with_details=False)
        if (size := entry.ByteSize() + ENTRY_OVERHEAD) <= room:
            kept[index] = entry
            room -= size
    for index in by_need:
        if index in kept and _has_details(cases[index]):
            entry = _case_to(cases[index], with_details=True)
            if (growth := entry.ByteSize() - kept[index].ByteSize()) <= room:
                kept[index] = entry
                room -= growth
    return [kept[index] for index in sorted(kept)]


def _fitting_collection_errors(errors: Iterable[domain.CollectionError]) -> list[pb.CollectionError]:
    messages: list[pb.CollectionError] = []
    room = COLLECTION_ERRORS_BYTES
    for error in tuple(errors)[:MAXIMUM_COLLECTION_ERRORS]:
        message = pb.CollectionError(path=_text(error.path, KIB), failure=_failure_to(error.failure))
        for detail in ("traceback", "message"):
            if message.ByteSize() + ENTRY_OVERHEAD > room:
                message.failure.ClearField(detail)
        if (size := message.ByteSize() + ENTRY_OVERHEAD) > room:
            break
        room -= size
        messages.append(message)
    return messages


def _has_details(case: domain.TestCase) -> bool:
    return bool(case.stdout or case.stderr or case.failure)


def _case_to(case: domain.TestCase, *, with_details: bool) -> pb.TestCase:
    message = pb.TestCase(
        node_id=_text(case.node_id, KIB),
        outcome=pb.TestOutcome.Value(f"TEST_OUTCOME_{case.outcome}"),
        duration=duration_to(case.duration),
    )
    if with_details:
        message.stdout = case.stdout[-TEST_OUTPUT_BYTES:]
        message.stderr = case.stderr[-TEST_OUTPUT_BYTES:]
        if case.failure is not None:
            message.failure.CopyFrom(_failure_to(case.failure))
    return message


def _integrity_to(integrity: domain.Integrity) -> verdicts_pb2.Integrity:
    return verdicts_pb2.Integrity(
        isolation=verdicts_pb2.TestIsolation.Value(f"TEST_ISOLATION_{integrity.isolation}"),
        reason=_text(integrity.reason, KIB),
        checks=[
            verdicts_pb2.IntegrityCheck(name=check.name, held=check.held, detail=_text(check.detail, KIB))
            for check in integrity.checks
        ],
    )


def _fitting_coverage(files: Iterable[domain.FileCoverage]) -> list[verdicts_pb2.FileCoverage]:
    """Files in order; one whose lists no longer fit keeps its numbers alone."""
    messages: list[verdicts_pb2.FileCoverage] = []
    room = COVERAGE_BYTES
    for file in tuple(files)[:MAXIMUM_COVERED_FILES]:
        message = verdicts_pb2.FileCoverage(
            path=_text(file.path, KIB), statements=file.statements, missing=file.missing,
            branches=file.branches, missed_branches=file.missed_branches,
            missing_lines=file.missing_lines[:MAXIMUM_MISSING],
            missing_branches=[
                verdicts_pb2.BranchArc(from_line=start, to_line=end)
                for start, end in file.missing_branches[:MAXIMUM_MISSING]
            ],
        )  # fmt: skip
        if message.ByteSize() + ENTRY_OVERHEAD > room:
            message.ClearField("missing_lines")
            message.ClearField("missing_branches")
        room = max(room - message.ByteSize() - ENTRY_OVERHEAD, 0)
        messages.append(message)
    return messages


def _failure_to(failure: domain.Failure) -> pb.Failure:
    message = pb.Failure(
        type=_text(failure.type, KIB),
        message=_text(failure.message, 4 * KIB),
        location=_text(failure.location, KIB),
        traceback=_text(failure.traceback, 16 * KIB),
    )
    if failure.comparison is not None:
        message.comparison.operator = _text(failure.comparison.operator, 64)
        message.comparison.left = _text(failure.comparison.left, KIB)
        message.comparison.right = _text(failure.comparison.right, KIB)
    return message


def _text(text: str, limit_bytes: int) -> str:
    """The text without lone surrogates, at most so many bytes long; a cut is marked with "…"."""
    raw = text[: limit_bytes + 1].encode("utf-8", "backslashreplace")  # no more than that can matter
    if len(raw) <= limit_bytes:
        return raw.decode()
    return raw[: limit_bytes - len("…".encode())].decode("utf-8", "ignore") + "…"


def duration_to(time: timedelta) -> Duration:
    """A time as its message."""
    message = Duration()
    message.FromTimedelta(time)
    return message
