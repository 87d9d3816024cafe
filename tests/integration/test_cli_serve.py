"""`codemend serve` and `codemend doctor` as an operator uses them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from codemend.rpc import open_channel
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.cli import outcome_of, run_cli, started_cli
from support.openai_server import scripted_openai
from support.sandbox import running_sandbox


@asynccontextmanager
async def serving(
    tmp_path: Path, *arguments: str, **env: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, str]]]:
    """A `codemend serve` that serves, and the addresses that it printed."""
    settings = {"CODEMEND_MODEL_URL": "http://127.0.0.1:1/v1", "CODEMEND_DATA_DIR": str(tmp_path / "data"), **env}
    async with started_cli("serve", *arguments, cwd=tmp_path, env=settings) as process, asyncio.timeout(60):
        addresses: dict[str, str] = {}
        while len(addresses) < (1 if {"--sandbox", "--orchestrator"} & set(arguments) else 2):
            line = (await process.stdout.readline()).decode()
            assert line, (await process.stderr.read()).decode()
            name, address = line.split()
            addresses[name] = address
        yield process, addresses


async def is_serving(address: str) -> bool:
    async with open_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
    return answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_serve_prints_its_addresses_and_stops_both_with_exit_code_0(tmp_path, signum):
    sockets = {name: f"unix:{tmp_path}/{name}" for name in ("orchestrator", "sandbox")}
    arguments = ["--address", sockets["orchestrator"], "--sandbox-address", "127.0.0.1:0"]
    async with serving(tmp_path, *arguments) as (process, addresses):
        assert addresses["orchestrator"] == sockets["orchestrator"]
        assert not addresses["sandbox"].endswith(":0")
        assert await is_serving(addresses["orchestrator"])
        assert await is_serving(addresses["sandbox"])
        process.send_signal(signum)
        done = await outcome_of(process)
    assert done.code == 0, done.err
    assert "Traceback" not in done.err


async def test_serve_stops_the_other_service_when_one_dies(tmp_path):
    async with serving(tmp_path, "--address", "127.0.0.1:0", "--sandbox-address", "127.0.0.1:0") as (process, _):
        children = {module_of(pid): pid for pid in children_of(process.pid)}
        os.kill(children["sandbox_service"], signal.SIGKILL)
        done = await outcome_of(process)
    assert done.code == 3
    assert "sandbox_service was killed by signal 9" in done.err
    assert not is_alive(children["orchestrator"])


async def test_serve_one_service_alone(tmp_path):
    async with serving(tmp_path, "--sandbox", "--sandbox-address", "127.0.0.1:0") as (process, addresses):
        assert list(addresses) == ["sandbox"]
        assert [module_of(pid) for pid in children_of(process.pid)] == ["sandbox_service"]
        process.send_signal(signal.SIGTERM)
        assert (await outcome_of(process)).code == 0


async def test_serve_an_address_that_is_taken_is_told(tmp_path):
    async with running_sandbox() as taken:
        done = await run_cli("serve", "--sandbox", "--sandbox-address", taken, cwd=tmp_path)
    assert done.code == 3
    assert f"cannot listen on {taken}" in done.err
    assert "sandbox_service ended with exit code 1" in done.err


async def test_serve_refuses_one_address_for_both(tmp_path):
    done = await run_cli("serve", "--address", "h:1", "--sandbox-address", "h:1", cwd=tmp_path)
    assert done.code == 2
    assert "--address: both services cannot listen on h:1" in done.err


async def test_doctor_finds_sandbox_and_endpoint(tmp_path):
    async with scripted_openai([]) as model, running_sandbox() as address:
        env = {"CODEMEND_MODEL_URL": model.base_url, "CODEMEND_SANDBOX_ADDRESS": address, "HOME": str(tmp_path)}
        done = await run_cli("doctor", cwd=tmp_path, env=env)
        assert model.requests == []
    assert done.code == 0, done.out
    for words in (
        "a program ran and printed what it should",
        "network_namespace",
        "maximum limits",
        "codemend can work here",
    ):
        assert words in done.out
    assert f"{model.base_url} serves {model.model}" in " ".join(done.out.split())


async def test_doctor_tells_what_is_missing_and_how_to_mend_it(tmp_path):
    env = {
        "CODEMEND_MODEL_URL": "http://127.0.0.1:1/v1",
        "CODEMEND_SANDBOX_ADDRESS": f"unix:{tmp_path}/none",
        "HOME": str(tmp_path),
    }
    done = await run_cli("doctor", cwd=tmp_path, env=env)
    said = " ".join(done.out.split())
    assert done.code == 1
    assert f"FAILED service cannot reach the sandbox service at unix:{tmp_path}/none" in said
    assert "FAILED endpoint http://127.0.0.1:1/v1: " in said
    assert "-> check CODEMEND_MODEL_URL" in said
    assert said.endswith("codemend cannot work here")


async def test_doctor_takes_missing_weights_for_a_warning_and_fetches_nothing(tmp_path):
    async with running_sandbox() as address:
        env = {"CODEMEND_SANDBOX_ADDRESS": address, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        done = await run_cli("doctor", cwd=tmp_path, env=env)
        strict = await run_cli("doctor", "--strict", cwd=tmp_path, env=env)
    assert "the first run fetches 1.0 GiB" in " ".join(done.out.split())
    assert (done.code, strict.code) == (0, 1)
    assert not (tmp_path / "cache").exists()


async def test_wrong_settings_are_told_by_name(tmp_path):
    done = await run_cli("doctor", cwd=tmp_path, env={"CODEMEND_TEMPERATURE": "hot", "CODEMEND_API_KEY": "sk-secret"})
    assert done.code == 2
    assert "CODEMEND_TEMPERATURE: " in done.err
    assert "hot" not in done.err
    assert "sk-secret" not in done.err


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def module_of(pid: int) -> str:
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return arguments[arguments.index(b"-m") + 1].decode()
