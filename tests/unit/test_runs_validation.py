"""Requests: every rule of the contract, all violations at once, and the defaults that are filled in."""

from dataclasses import replace
from datetime import timedelta

import pytest
from codemend.orchestrator.v1 import runs_pb2 as pb
from codemend.sandbox.v1 import sandbox_pb2
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import errors
from orchestrator.api.errors import RULES
from orchestrator.api.sandbox_messages import execution as execution_message
from orchestrator.api.sandbox_messages import report as report_message
from orchestrator.api.validation import Defaults, read_cancel, read_spec, read_watch
from orchestrator.errors import InvalidRun
from orchestrator.models import CallOptions
from orchestrator.sandbox_client import execution, idempotency_key, limits, limits_message, report
from orchestrator.settings import Settings
from orchestrator.workflows.plain import decode, encode
from orchestrator.workflows.sandbox import (
    NO_CALLER,
    Caller,
    CollectionError,
    Comparison,
    Execution,
    ExecutionStatus,
    Failure,
    Integrity,
    IntegrityCheck,
    Isolation,
    Limits,
    Output,
    ReportOutcome,
    TestCase,
    TestIsolation,
    TestOutcome,
    TestReport,
)

DEFAULTS = Defaults(max_attempts=5, timeout=timedelta(minutes=3))


def file(path, content=b""):
    return sandbox_pb2.File(path=path, content=content)


def request(labels=None, request_id="", workflow="", options=None, **task):
    codegen = pb.CodegenInput(**{"task": "t", **task})
    spec = pb.RunSpec(workflow=workflow, codegen=codegen, options=options or pb.RunOptions(), labels=labels or {})
    return pb.CreateRunRequest(request_id=request_id, spec=spec)


def violations(message):
    with pytest.raises(InvalidRun) as caught:
        read_spec(message, DEFAULTS)
    return dict(caught.value.violations)


@pytest.mark.parametrize("script", ["\n", "# TODO: check it\n", '"""Checks."""\n', "pass\n", "...\n"])
def test_a_check_that_does_nothing_is_refused(script):
    assert "at least one statement" in violations(request(check_script=script))["spec.codegen.check_script"]


@pytest.mark.parametrize("script", ["import solution", "x +"])
def test_a_check_that_does_something_or_does_not_parse_is_taken(script):
    assert read_spec(request(check_script=script), DEFAULTS).task.check_script == script


def test_defaults_are_filled_in():
    spec = read_spec(request(), DEFAULTS)
    assert spec.workflow == "codegen"
    assert (spec.options.max_attempts, spec.options.candidates) == (5, 1)
    assert spec.options.timeout == timedelta(minutes=3)
    assert spec.task.solution_path == "solution.py"
    assert spec.options.limits == Limits()


@pytest.mark.parametrize(
    ("files", "expected"),
    [([], "solution.py"), (["calc.py"], "calc.py"), (["data.csv"], "solution.py"), (["a.py", "b.py"], "solution.py")],
)
def test_the_solution_is_the_one_given_module(files, expected):
    assert read_spec(request(files=[file(path) for path in files]), DEFAULTS).task.solution_path == expected


def test_what_is_given_is_read():
    options = pb.RunOptions(
        max_attempts=7,
        candidates=2,
        token_budget=99,
        timeout=Duration(seconds=1, nanos=500_000_000),
        models={"coder": pb.ModelOptions(model="m", temperature=0.0, max_output_tokens=10)},
        limits=sandbox_pb2.Limits(wall_time=Duration(seconds=2), memory_bytes=5),
    )
    spec = read_spec(request(options=options, labels={"k": "v"}, tests=[file("test_a.py")]), DEFAULTS)
    assert spec.options.timeout == timedelta(seconds=1.5)
    assert spec.options.models == {"coder": CallOptions("m", 0.0, 10)}
    assert spec.options.limits == Limits(wall_time=timedelta(seconds=2), memory_bytes=5)
    assert spec.labels == {"k": "v"}
    assert limits_message(spec.options.limits) == options.limits


def test_more_candidates_than_default_attempts_raise_the_attempts():
    assert read_spec(request(options=pb.RunOptions(candidates=9)), DEFAULTS).options.max_attempts == 9


@pytest.mark.parametrize(
    ("message", "field", "words"),
    [
        (pb.CreateRunRequest(), "spec", "required"),
        (pb.CreateRunRequest(spec=pb.RunSpec()), "spec.codegen", "required"),
        (request(task=" \n"), "spec.codegen.task", "required"),
        (request(task="é" * 33_000), "spec.codegen.task", "at most 65536 bytes, not 66000"),
        (request(workflow="team"), "spec.workflow", "'codegen'"),
        (request(request_id="x" * 129), "request_id", "at most 128 characters"),
        (request(entry_point="a b"), "spec.codegen.entry_point", "name of a function"),
        (request(entry_point="class"), "spec.codegen.entry_point", "name of a function"),
        (request(check_script="x" * 65537), "spec.codegen.check_script", "at most 65536"),
        (request(check_script="x", tests=[file("test_a.py")]), "spec.codegen.check_script", "together with tests"),
        (request(tests=[file("helper.py")]), "spec.codegen.tests", "test_*.py"),
        (request(files=[file("../a")]), "spec.codegen.files[0].path", "relative path"),
        (request(files=[file("a"), file("a\0")]), "spec.codegen.files[1].path", "relative path"),
        (request(files=[file("a" * 256)]), "spec.codegen.files[0].path", "255 bytes a part"),
        (request(files=[file("")]), "spec.codegen.files[0].path", "required"),
        (request(files=[file("a"), file("a")]), "spec.codegen.files[1].path", "twice"),
        (request(files=[file("a"), file("a/b")]), "spec.codegen.files", "both a file and a folder"),
        (request(files=[file(str(n)) for n in range(65)]), "spec.codegen.files", "at most 64 files, not 65"),
        (request(files=[file("a", b"x" * 1048577)]), "spec.codegen.files", "at most 1048576 bytes"),
        (request(solution_path="a.txt"), "spec.codegen.solution_path", "end in .py"),
        (request(solution_path="/a.py"), "spec.codegen.solution_path", "relative path"),
        (request(solution_path="a.py", files=[file("a.py/b")]), "spec.codegen.solution_path", "folder"),
        (request(options=pb.RunOptions(max_attempts=101)), "spec.options.max_attempts", "0 to 100"),
        (request(options=pb.RunOptions(max_attempts=-1)), "spec.options.max_attempts", "0 to 100"),
        (request(options=pb.RunOptions(candidates=17)), "spec.options.candidates", "0 to 16"),
        (request(options=pb.RunOptions(candidates=3, max_attempts=2)), "spec.options.candidates", "max_attempts (2)"),
        (request(options=pb.RunOptions(token_budget=-1)), "spec.options.token_budget", "not -1"),
        (request(options=pb.RunOptions(timeout=Duration())), "spec.options.timeout", "more than 0 s"),
        (request(options=pb.RunOptions(timeout=Duration(seconds=-5))), "spec.options.timeout", "more than 0 s"),
        (request(options=pb.RunOptions(timeout=Duration(seconds=2**62))), "spec.options.timeout", "at most 86400 s"),
        (
            request(options=pb.RunOptions(models={"judge": pb.ModelOptions()})),
            "spec.options.models[judge]",
            "no such role",
        ),
        (
            request(options=pb.RunOptions(models={"coder": pb.ModelOptions(temperature=float("nan"))})),
            "spec.options.models[coder].temperature",
            "0 to 2",
        ),
        (
            request(options=pb.RunOptions(models={"coder": pb.ModelOptions(max_output_tokens=40_000)})),
            "spec.options.models[coder].max_output_tokens",
            "0 to 32768",
        ),
        (
            request(options=pb.RunOptions(limits=sandbox_pb2.Limits(processes=0))),
            "spec.options.limits.processes",
            "more than zero",
        ),
        (request(labels={"": "v"}), "spec.labels", "must have a name"),
        (request(labels={"k": "v" * 257}), "spec.labels[k]", "at most 256"),
        (request(labels={str(n): "" for n in range(33)}), "spec.labels", "at most 32"),
    ],
)
def test_a_wrong_field_is_named_with_its_limit(message, field, words):
    found = violations(message)
    assert words in found[field]


def test_all_violations_are_told_at_once():
    message = request(task="", entry_point="1", solution_path="x", options=pb.RunOptions(max_attempts=-1))
    assert set(violations(message)) == {
        "spec.codegen.task",
        "spec.codegen.entry_point",
        "spec.codegen.solution_path",
        "spec.options.max_attempts",
    }


@given(st.text(max_size=40))
def test_a_path_is_either_taken_or_named(path):
    try:
        message = request(files=[file(path)])
    except UnicodeEncodeError:  # lone surrogates do not get into a proto string
        return
    try:
        spec = read_spec(message, DEFAULTS)
    except InvalidRun as error:
        assert error.violations[0][0] == "spec.codegen.files[0].path"  # noqa: PT017 - either way is right
    else:
        parts = spec.task.files[0].path.split("/")
        assert all(part not in {"", ".", ".."} for part in parts)


def test_watching_and_cancelling_need_an_id():
    with pytest.raises(InvalidRun, match="run_id: is required; after_sequence: must not be negative"):
        read_watch(pb.WatchRunRequest(after_sequence=-1))
    with pytest.raises(InvalidRun, match="reason: must have at most 1024"):
        read_cancel(pb.CancelRunRequest(run_id="r", reason="x" * 1025))
    assert read_cancel(pb.CancelRunRequest(run_id="r")) == ("r", "cancelled by CancelRun")


def tree(kind):
    return [kind, *(below for child in kind.__subclasses__() for below in tree(child))]


def test_every_error_of_the_tree_has_a_status():
    for kind in tree(errors.OrchestratorError):
        if kind is not errors.OrchestratorError:
            assert any(base in RULES for base in kind.__mro__), kind


EXECUTION = Execution(
    ExecutionStatus.SIGNALED,
    reason="killed",
    signal=9,
    stdout=Output(b"\xff", b"tail", 5),
    wall_time=timedelta(seconds=1.5),
    cpu_time=timedelta(seconds=1),
    peak_memory_bytes=7,
    isolation=Isolation("process", ("rlimits",)),
    queue_time=timedelta(milliseconds=3),
)
REPORT = TestReport(
    ReportOutcome.FAILED,
    reason="1 failed",
    tests=(
        TestCase("t::a", TestOutcome.PASSED, timedelta(seconds=1), stdout=b"\xff"),
        TestCase(
            "t::b",
            TestOutcome.FAILED,
            failure=Failure("AssertionError", "assert 1 == 2", "a.py:1", "frames", Comparison("==", "1", "2")),
        ),
    ),
    counts={TestOutcome.PASSED: 1, TestOutcome.FAILED: 1},
    tests_left_out=3,
    collection_errors=(CollectionError("t.py", Failure("ImportError", "no")),),
    framework="pytest 9",
    duration=timedelta(seconds=2),
    integrity=Integrity(TestIsolation.SHARED, "objects", (IntegrityCheck("canaries", held=False, detail="passed"),)),
    coverage_missing_reason="no test ran",
)


def test_executions_and_reports_are_the_same_on_both_sides_of_the_wire():
    assert execution(execution_message(EXECUTION)) == EXECUTION
    assert report(report_message(REPORT)) == REPORT
    assert decode(TestReport, encode(TestReport, REPORT)) == REPORT


def test_a_report_that_says_nothing_of_coverage_keeps_the_name_that_it_was_kept_under():
    assert b"coverage" not in encode(TestReport, replace(REPORT, coverage_missing_reason=""))


def test_limits_are_the_same_on_both_sides_of_the_wire():
    for value in (Limits(), Limits(wall_time=timedelta(seconds=1.5), memory_bytes=7, processes=0)):
        assert limits(limits_message(value)) == value


def test_the_same_request_of_the_same_step_has_one_key_and_no_other_has_it():
    one = sandbox_pb2.ExecuteRequest(program=sandbox_pb2.Program(entry="a.py", env={"A": "1", "B": "2"}))
    same = sandbox_pb2.ExecuteRequest(program=sandbox_pb2.Program(entry="a.py", env={"B": "2", "A": "1"}))
    other = sandbox_pb2.ExecuteRequest(program=sandbox_pb2.Program(entry="b.py"))
    key = idempotency_key(Caller("t", "run_1/2"), one)
    assert key.startswith("run_1/2.")
    assert key == idempotency_key(Caller("t", "run_1/2"), same)
    assert key not in {idempotency_key(Caller("t", "run_1/3"), one), idempotency_key(Caller("t", "run_1/2"), other)}
    assert len(idempotency_key(Caller("t", "x" * 500), one)) <= 128
    assert idempotency_key(NO_CALLER, one) == ""


@pytest.mark.parametrize("name", ["a b", "é", "x" * 129, "a/b"])
def test_a_tenant_has_a_short_and_plain_name(name):
    with pytest.raises(InvalidRun) as caught:
        read_spec(request(), DEFAULTS, name)
    assert caught.value.violations[0][0] == "x-codemend-tenant"
    assert read_spec(request(), DEFAULTS, "acme-1.eu").tenant == "acme-1.eu"


def test_a_status_that_this_version_does_not_know_is_refused():
    for status in (0, 99):
        with pytest.raises(errors.SandboxRejected, match="does not know"):
            execution(sandbox_pb2.ExecutionResult(status=status))
        with pytest.raises(errors.SandboxRejected, match="does not know"):
            report(sandbox_pb2.TestReport(outcome=status))


def test_settings_are_read_from_the_environment_and_keep_the_key_secret(monkeypatch):
    monkeypatch.delenv("CODEMEND_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-fallback")
    monkeypatch.setenv("CODEMEND_TIMEOUT", "2m")
    settings = Settings()
    assert settings.timeout == timedelta(minutes=2)
    assert settings.api_key.get_secret_value() == "sk-fallback"
    monkeypatch.setenv("CODEMEND_API_KEY", "sk-own")
    assert Settings().api_key.get_secret_value() == "sk-own"
    assert "sk-own" not in repr(Settings())


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TIMEOUT", "soon", "write it as 10"),
        ("ADDRESS", "nowhere", "host:port"),
        ("MAX_ATTEMPTS", "0", "greater than or equal to 1"),
        ("MODEL_URL", "ftp://x", "http://host:port"),
        ("MODEL_URL", "http://user:pw@host/v1", "without a user"),
        ("MAX_OUTPUT_TOKENS", "9000", "must be less than CODEMEND_CONTEXT_TOKENS"),
    ],
)
def test_a_wrong_setting_is_refused(monkeypatch, name, value, words):
    monkeypatch.setenv(f"CODEMEND_{name}", value)
    with pytest.raises(ValueError, match=words):
        Settings()


def test_every_setting_is_described():
    assert all(field.description for field in Settings.model_fields.values())
