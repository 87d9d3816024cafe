"""The embedded model for real: a child process that serves a tiny model on loopback, and what can go wrong."""

import asyncio
import contextlib
import os
import signal
import sys
import textwrap
from pathlib import Path

import httpx
import pytest
from pydantic import BaseModel
from support.tiny_gguf import write_tiny_gguf
from support.waiting import until

from orchestrator.models import (
    EmbeddedModel,
    EmbeddedSettings,
    Message,
    ModelGateway,
    ModelSpec,
    ModelUnavailable,
    embedded,
)

PROMPT = [Message("user", "hello")]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


def settings(model, tmp_path, **fields):
    return EmbeddedSettings(
        **{"cache_dir": tmp_path, "model": str(model), "threads": 1, "context_tokens": 512, **fields}
    )


@contextlib.asynccontextmanager
async def running(model, tmp_path, **fields):
    made = EmbeddedModel(settings(model, tmp_path, **fields))
    try:
        yield made
    finally:
        await made.stop()


def servers_of(pid):
    """Process ids of the model servers among the children of `pid`."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # threads end while they are listed
            children += map(int, (task / "children").read_text().split())
    return [child for child in children if b"embedded_server" in command_of(child)]


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()  # empty for a process that ended and was not reaped yet
    except FileNotFoundError:
        return b""


async def test_serves_a_gateway_and_is_started_by_its_first_call(tiny, tmp_path):
    async with running(tiny, tmp_path) as model:
        models = ModelGateway({"coder": ModelSpec(base_url="", model="", max_output_tokens=8)}, embedded=model)
        assert await models.probe("coder") == "tiny"
        assert not servers_of(os.getpid())
        replies = await asyncio.gather(*(models.complete("coder", PROMPT) for _ in range(3)))
        assert {reply.model for reply in replies} == {"tiny"}
        assert all(reply.usage.input_tokens > 0 and 0 < reply.usage.output_tokens <= 8 for reply in replies)
        assert len(servers_of(os.getpid())) == 1
        await models.aclose()


async def test_json_schemas_bind_even_a_model_that_babbles(tiny, tmp_path):
    class Yes(BaseModel):
        yes: bool

    async with running(tiny, tmp_path) as model:
        models = ModelGateway({"judge": ModelSpec(base_url="", model="", max_output_tokens=200)}, embedded=model)
        value, usage = await models.structured("judge", PROMPT, Yes)
        assert isinstance(value, Yes)
        assert usage.model_calls >= 1
        await models.aclose()


async def test_wants_its_key_and_listens_on_loopback_alone(tiny, tmp_path):
    async with running(tiny, tmp_path) as model, httpx.AsyncClient(trust_env=False) as client:
        url = await model.start()
        assert url.startswith("http://127.0.0.1:")
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        assert (await client.post(f"{url}/chat/completions", json=body)).status_code == 401
        headers = {"Authorization": f"Bearer {model.api_key}"}
        assert (await client.post(f"{url}/chat/completions", json=body, headers=headers)).status_code == 200
        (pid,) = servers_of(os.getpid())
        assert model.api_key.encode() not in command_of(pid)


async def test_is_started_anew_when_it_died(tiny, tmp_path):
    async with running(tiny, tmp_path) as model:
        await model.start()
        (pid,) = servers_of(os.getpid())
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not command_of(pid), seconds=10)
        models = ModelGateway({"coder": ModelSpec(base_url="", model="", max_output_tokens=4)}, embedded=model)
        assert (await models.complete("coder", PROMPT)).usage.output_tokens > 0
        await models.aclose()


async def test_a_cancelled_caller_does_not_end_the_start_for_others(tiny, tmp_path):
    async with running(tiny, tmp_path) as model:
        first, second = (asyncio.create_task(model.start()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).startswith("http://127.0.0.1:")
        assert first.cancelled()


async def test_stopping_while_it_starts_is_an_error_for_those_who_wait_and_leaves_nothing(tiny, tmp_path):
    async with running(tiny, tmp_path) as model:
        waiting = asyncio.create_task(model.start())
        await until(lambda: bool(servers_of(os.getpid())), seconds=10)
        await model.stop()
        with pytest.raises(ModelUnavailable, match="stopped"):
            await waiting
        assert not servers_of(os.getpid())


async def test_dies_with_its_parent(tiny):
    program = f"""
        import asyncio
        from pathlib import Path
        from orchestrator.models import EmbeddedModel, EmbeddedSettings

        async def main():
            model = EmbeddedModel(EmbeddedSettings(cache_dir=Path("/nowhere"), model={str(tiny)!r}, context_tokens=256))
            await model.start()
            print("ready", flush=True)
            await asyncio.Event().wait()

        asyncio.run(main())
    """
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", textwrap.dedent(program)), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        assert await parent.stdout.readline() == b"ready\n"
    (pid,) = servers_of(parent.pid)
    parent.kill()
    await parent.wait()
    await until(lambda: not command_of(pid), seconds=10)


async def test_a_file_that_cannot_be_loaded_is_told_with_the_servers_own_words(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 64)
    async with running(broken, tmp_path) as model:
        with pytest.raises(ModelUnavailable, match=r"broken\.gguf ended while it started: .*\w"):
            await model.start()
        assert not servers_of(os.getpid())


async def test_a_load_that_takes_too_long_is_ended(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "_LOAD_SECONDS", 0.01)
    async with running(tiny, tmp_path) as model:
        with pytest.raises(ModelUnavailable, match="not loaded within"):
            await model.start()
        assert not servers_of(os.getpid())


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("missing.gguf", "No such file"),
        ("/", "Is a directory"),
        (__file__, "no GGUF file"),
        ("3b", '"1.5b", "0.5b"'),
        ("hf:only-one-part.gguf", "hf:OWNER/NAME/FILE.gguf"),
        ("hf:owner/name/file.gguf", "huggingface_hub"),
    ],
)
async def test_a_model_that_cannot_be_had_is_named(model, words, tmp_path):
    with pytest.raises(ModelUnavailable, match="model ") as caught:
        await EmbeddedModel(settings(model, tmp_path)).start()
    assert words in str(caught.value)
