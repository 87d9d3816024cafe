"""Requests from protobuf to the domain: every field read, defaults filled in, the contract's rules applied.

Replies go the other way in `replies.py`.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta

from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import verdicts_pb2
from google.protobuf.duration_pb2 import Duration

from sandbox_service.domain import Entry, File, Limits, Program, TestIsolation, TestRun
from sandbox_service.validation import Rules, Violations, check_program, check_test_run, resolve_limits

DEFAULT_LANGUAGE = "python"
DEFAULT_ENVIRONMENT = "base"

_ISOLATIONS: dict[int, TestIsolation] = {
    verdicts_pb2.TEST_ISOLATION_UNSPECIFIED: TestIsolation.AUTO,
    verdicts_pb2.TEST_ISOLATION_SEPARATE: TestIsolation.SEPARATE,
    verdicts_pb2.TEST_ISOLATION_SHARED: TestIsolation.SHARED,
}
_LONGEST_SECONDS = 315_576_000_000  # ten thousand years: what a Duration may hold by its own definition


def program_from(
    request: pb.ExecuteRequest | pb.ExecuteStreamRequest, rules: Rules, workspace: Sequence[Entry] | None = None
) -> Program:
    """Reads a request to run a program, in a session where there is a workspace.

    Raises:
        InvalidJob: the request breaks a rule; all that is wrong is named.
    """
    found = Violations()
    if not request.HasField("program"):
        found.add("program", "required")
        found.raise_any()
    message = request.program
    program = Program(
        limits=_limits_from(message.limits, "program.limits", rules, found),
        files=_files_from(message.files),
        entry=message.entry,
        argv=tuple(message.command.argv),
        args=tuple(message.args),
        stdin=message.stdin,
        env=dict(message.env),
        collect=tuple(message.collect),
        language=message.language or DEFAULT_LANGUAGE,
        environment=message.environment or DEFAULT_ENVIRONMENT,
        workspace=workspace,
    )
    check_program(program, "program", rules, found)
    found.raise_any()
    return program


def test_run_from(request: pb.RunTestsRequest, rules: Rules, workspace: Sequence[Entry] | None) -> TestRun:
    """Reads a request to run tests, in a session where there is a workspace.

    Raises:
        InvalidJob: the request breaks a rule; all that is wrong is named.
    """
    found = Violations()
    run = TestRun(
        limits=_limits_from(request.limits, "limits", rules, found),
        files=_files_from(request.files),
        tests=_files_from(request.tests),
        select=tuple(request.select),
        env=dict(request.env),
        collect=tuple(request.collect),
        language=request.language or DEFAULT_LANGUAGE,
        environment=request.environment or DEFAULT_ENVIRONMENT,
        workspace=workspace,
        isolation=_isolation_from(request.isolation, found),
        coverage=request.coverage,
    )
    check_test_run(run, rules, found)
    found.raise_any()
    return run


def _isolation_from(value: int, found: Violations) -> TestIsolation:
    if value not in _ISOLATIONS:
        found.add("isolation", f"{value} is no TestIsolation that this server knows")
    return _ISOLATIONS.get(value, TestIsolation.AUTO)


def _files_from(messages: Iterable[pb.File]) -> tuple[File, ...]:
    return tuple(File(path=file.path, content=file.content, executable=file.executable) for file in messages)


def _limits_from(message: pb.Limits, field: str, rules: Rules, found: Violations) -> Limits:
    requested = {
        descriptor.name: time_from(value) if isinstance(value, Duration) else value
        for descriptor, value in message.ListFields()
    }
    return resolve_limits(requested, field, rules, found)


def time_from(duration: Duration) -> timedelta:
    """Any Duration as a timedelta, those out of its own range included, so that the limits' rules judge them."""
    seconds = max(-_LONGEST_SECONDS, min(duration.seconds, _LONGEST_SECONDS))
    microseconds = -(-duration.nanos // 1000)  # rounded up: a nanosecond is a positive time
    return timedelta(seconds=seconds, microseconds=microseconds)
