"""Errors of the services waited out or told, files delivered, output passed on, the options of a model."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from codemend.sandbox.v1 import sandbox_pb2
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from orchestrator.cli import client
from orchestrator.cli.delivery import prepare, write_files
from orchestrator.cli.errors import ExitCode, ServiceFault, UsageFault
from orchestrator.cli.execute import exit_code
from orchestrator.cli.model import orchestrator_environment
from orchestrator.cli.output import RawOutput
from orchestrator.cli.pool import in_parallel


def rpc_error(code: grpc.StatusCode, message: str = "m", *details) -> grpc.aio.AioRpcError:
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        packed = Any()
        packed.Pack(detail)
        status.details.append(packed)
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", status.SerializeToString()))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details=message)


def retry_info(seconds: float) -> error_details_pb2.RetryInfo:
    delay = Duration()
    delay.FromTimedelta(timedelta(seconds=seconds))
    return error_details_pb2.RetryInfo(retry_delay=delay)


def test_only_transient_refusals_are_worth_another_try():
    unavailable, full = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED
    assert 0 < client.transient_delay(rpc_error(unavailable), 0) <= 0.1
    assert 2.5 <= client.transient_delay(rpc_error(unavailable), 50) <= 5
    assert client.transient_delay(rpc_error(full, "m", retry_info(7)), 0) == 7
    assert client.transient_delay(rpc_error(full), 0) is None
    for code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INTERNAL):
        assert client.transient_delay(rpc_error(code, "m", retry_info(1)), 0) is None


async def test_patience_makes_the_call_again_until_it_succeeds():
    answers = [
        rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry_info(0)),
        rpc_error(grpc.StatusCode.UNAVAILABLE),
        None,
    ]

    async def call():
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return "done"

    assert await client.patiently("it", call) == "done"
    assert answers == []


async def test_patience_ends_at_once_when_the_delay_asked_for_is_over_its_bound():
    async def call():
        raise rpc_error(grpc.StatusCode.UNAVAILABLE, "draining", retry_info(3600))

    with pytest.raises(ServiceFault, match="it is not available: draining"):
        await client.patiently("it", call)


def test_refused_fields_are_told_as_usage():
    violation = error_details_pb2.BadRequest.FieldViolation(field="a.b", description="too long")
    error = client.explained(
        rpc_error(grpc.StatusCode.INVALID_ARGUMENT, "m", error_details_pb2.BadRequest(field_violations=[violation])),
        "it",
    )
    assert (str(error), error.exit_code) == ("it refuses the request: a.b: too long", ExitCode.USAGE)
    other = client.explained(rpc_error(grpc.StatusCode.INTERNAL, "id 5"), "it")
    assert (str(other), other.exit_code) == ("it answered INTERNAL: id 5", ExitCode.SERVICE)


def test_files_are_written_beneath_the_directory(tmp_path):
    files = [
        sandbox_pb2.File(path="a/b.py", content=b"x"),
        sandbox_pb2.File(path="run.sh", content=b"y", executable=True),
    ]
    assert write_files(tmp_path / "out", files) == [tmp_path / "out/a/b.py", tmp_path / "out/run.sh"]
    assert (tmp_path / "out/a/b.py").read_bytes() == b"x"
    assert os.access(tmp_path / "out/run.sh", os.X_OK)


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", ".", "", "link/x", "a\0b"])
def test_paths_that_lead_out_are_refused_before_anything_is_written(tmp_path, path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "link").symlink_to(tmp_path)
    with pytest.raises(UsageFault, match="leads out of the directory"):
        write_files(out, [sandbox_pb2.File(path="good.py"), sandbox_pb2.File(path=path, content=b"bad")])
    assert sorted(entry.name for entry in out.iterdir()) == ["link"]
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"status": sandbox_pb2.EXECUTION_STATUS_SUCCEEDED, "exit_code": 0}, 0),
        ({"status": sandbox_pb2.EXECUTION_STATUS_FAILED, "exit_code": 9}, 9),
        ({"status": sandbox_pb2.EXECUTION_STATUS_DISK_LIMIT, "exit_code": 1}, 1),
        ({"status": sandbox_pb2.EXECUTION_STATUS_TIMED_OUT, "signal": 9}, 124),
        ({"status": sandbox_pb2.EXECUTION_STATUS_CPU_LIMIT, "signal": 9}, 124),
        ({"status": sandbox_pb2.EXECUTION_STATUS_MEMORY_LIMIT, "signal": 9}, 137),
        ({"status": sandbox_pb2.EXECUTION_STATUS_OUTPUT_LIMIT, "signal": 9}, 153),
        ({"status": sandbox_pb2.EXECUTION_STATUS_SIGNALED, "signal": 11}, 139),
        ({"status": sandbox_pb2.EXECUTION_STATUS_CANCELLED}, 3),
    ],
)
def test_exit_codes_of_programs(fields, code):
    assert exit_code(sandbox_pb2.ExecutionResult(**fields)) == code


async def test_raw_output_writes_in_order_and_to_the_end():
    read, write = os.pipe()
    output = RawOutput()
    for number in range(100):
        output.write(write, bytes([number]) * 100)
    await output.finish()
    os.close(write)
    content = b""
    while chunk := os.read(read, 65536):
        content += chunk
    os.close(read)
    assert content == b"".join(bytes([number]) * 100 for number in range(100))


async def test_raw_output_tells_of_a_reader_that_left():
    read, write = os.pipe()
    os.close(read)
    output = RawOutput()
    output.write(write, b"x")
    with pytest.raises(BrokenPipeError):
        await output.finish()
    with pytest.raises(BrokenPipeError):
        output.write(write, b"y")
    os.close(write)


async def test_raw_output_never_blocks_the_loop():
    read, write = os.pipe()
    output = RawOutput()
    output.write(write, b"x" * 10_000_000)  # far over a pipe's buffer, and nobody reads
    finished = asyncio.ensure_future(output.finish())
    await asyncio.sleep(0)
    assert not finished.done()
    finished.cancel()
    os.close(read)
    with pytest.raises((BrokenPipeError, asyncio.CancelledError)):
        await finished
    await _until_broken(output, write)
    os.close(write)


async def _until_broken(output: RawOutput, descriptor: int) -> None:
    async with asyncio.timeout(5):
        while True:
            try:
                output.write(descriptor, b"")
            except BrokenPipeError:
                return
            await asyncio.sleep(0.002)


async def test_pool_bounds_what_runs_at_one_time_and_ends_with_the_first_error():
    running, highest, begun = 0, 0, []

    async def work(item):
        nonlocal running, highest
        begun.append(item)
        running += 1
        highest = max(highest, running)
        try:
            await asyncio.sleep(0)
            if item == 5:
                raise ValueError("five")
            await asyncio.sleep(0)
        finally:
            running -= 1

    with pytest.raises(ValueError, match="five"):
        await in_parallel(range(100), work, at_once=3)
    assert (running, highest) == (0, 3)
    assert len(begun) < 12


def test_model_options_must_fit_together():
    assert orchestrator_environment(model_url="http://x/v1", model="m", embedded_model="1.5b") == {
        "CODEMEND_MODEL_URL": "http://x/v1",
        "CODEMEND_MODEL_NAME": "m",
        "CODEMEND_EMBEDDED_MODEL": "1.5b",
    }
    with pytest.raises(UsageFault, match=r"^--model: "):
        orchestrator_environment(model_url="", model="m", embedded_model="1.5b")
    with pytest.raises(UsageFault, match=r"^--model-url: 'ftp://x' is no"):
        orchestrator_environment(model_url="ftp://x", model="", embedded_model="1.5b")


def test_a_place_that_cannot_be_written_to_is_found_before_there_is_anything_to_write(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/made")):
        with pytest.raises(UsageFault, match="--out: cannot write below"):
            prepare(place)
    prepare(tmp_path / "new" / "place")
    assert list((tmp_path / "new" / "place").iterdir()) == []
