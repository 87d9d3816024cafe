"""The gateway against a real HTTP server on loopback that misbehaves on cue."""

import asyncio
import contextlib
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from support.openai_server import Scripted, scripted_openai

from orchestrator.models import (
    CallOptions,
    ContextTooLong,
    Message,
    ModelGateway,
    ModelRejected,
    ModelSpec,
    ModelUnavailable,
    UnknownRole,
    Usage,
    retry,
)

PROMPT = [Message("system", "You write code."), Message("user", "Write f.")]
KEY = "sk-secret-0123456789"


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(retry, "backoff", lambda _tries: timedelta())


@contextlib.asynccontextmanager
async def gateway(server, **fields):
    made = ModelGateway({"coder": ModelSpec(**{"base_url": server.base_url, "model": "m", "api_key": KEY, **fields})})
    try:
        yield made
    finally:
        await made.aclose()


async def test_a_reply_comes_with_its_usage_and_its_text_as_it_streams():
    deltas = []
    async with scripted_openai(["def f(): return 1  # and more text"]) as server, gateway(server) as models:
        reply = await models.complete("coder", PROMPT, on_delta=deltas.append)
        assert (reply.text, reply.finish_reason, reply.model) == (
            "def f(): return 1  # and more text",
            "stop",
            "scripted-model",
        )
        assert reply.usage == Usage(1, 11, 7)
        assert reply.duration > timedelta()
        assert len(deltas) > 1
        assert "".join(deltas) == reply.text
        (request,) = server.requests
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert [message["role"] for message in request.messages] == ["system", "user"]
        assert {name: request.body[name] for name in ("model", "temperature", "max_tokens", "stream")} == {
            "model": "m",
            "temperature": 0.2,
            "max_tokens": 2048,
            "stream": True,
        }


async def test_options_take_precedence_over_the_spec():
    async with scripted_openai(["x"]) as server, gateway(server) as models:
        options = CallOptions(model="other", temperature=0.0, max_output_tokens=5)
        await models.complete("coder", PROMPT, options=options)
        body = server.requests[0].body
        assert (body["model"], body["temperature"], body["max_tokens"]) == ("other", 0.0, 5)


async def test_usage_is_estimated_where_the_endpoint_does_not_tell_it():
    async with scripted_openai([Scripted(text="x" * 30, usage=False)]) as server, gateway(server) as models:
        usage = (await models.complete("coder", PROMPT)).usage
        assert usage.output_tokens == 10
        assert usage.input_tokens > 5


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_a_passing_fault_is_tried_again(status):
    async with scripted_openai([Scripted(status=status), "ok"]) as server, gateway(server) as models:
        reply = await models.complete("coder", PROMPT)
        assert reply.text == "ok"
        assert reply.usage.model_calls == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_refusal_is_not_tried_again(status):
    async with scripted_openai([Scripted(status=status, error="no such thing"), "ok"]) as server:
        async with gateway(server) as models:
            with pytest.raises(ModelRejected, match="no such thing") as caught:
                await models.complete("coder", PROMPT)
        assert caught.value.status == status
        assert caught.value.usage == Usage(model_calls=1)
        assert len(server.requests) == 1


async def test_an_exhausted_quota_is_a_refusal():
    script = [Scripted(status=429, error="You exceeded your quota", error_code="insufficient_quota"), "ok"]
    async with scripted_openai(script) as server, gateway(server) as models:
        with pytest.raises(ModelRejected):
            await models.complete("coder", PROMPT)


async def test_tries_end_after_the_retries_allowed():
    async with scripted_openai([Scripted(status=500)] * 9) as server, gateway(server, max_retries=2) as models:
        with pytest.raises(ModelUnavailable, match="tried 3 times") as caught:
            await models.complete("coder", PROMPT)
        assert len(server.requests) == 3
        assert caught.value.usage.model_calls == 3


async def test_retry_after_in_seconds_is_honoured():
    script = [Scripted(status=429, headers={"Retry-After": "0.3"}), "ok"]
    async with scripted_openai(script) as server, gateway(server) as models:
        await models.complete("coder", PROMPT)
        assert server.requests[1].at - server.requests[0].at >= 0.3


async def test_retry_after_as_a_date_is_honoured():
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)  # a whole second: 1 to 2 s away
    script = [Scripted(status=503, headers={"Retry-After": date}), "ok"]
    async with scripted_openai(script) as server, gateway(server) as models:
        await models.complete("coder", PROMPT)
        assert server.requests[1].at - server.requests[0].at >= 0.5


async def test_an_endpoint_that_asks_for_too_long_a_wait_is_given_up():
    script = [Scripted(status=429, headers={"Retry-After": "3600"}), "ok"]
    async with scripted_openai(script) as server, gateway(server) as models:
        with pytest.raises(ModelUnavailable, match="asks to wait 3600 s"):
            await models.complete("coder", PROMPT)


async def test_no_server_is_unavailable_after_retries():
    async with scripted_openai([]) as server:
        pass
    async with gateway(server, max_retries=1) as models:
        with pytest.raises(ModelUnavailable, match=r"no connection.*tried 2 times"):
            await models.complete("coder", PROMPT)
        with pytest.raises(ModelUnavailable):
            await models.probe("coder")


@pytest.mark.parametrize(
    "broken",
    [
        Scripted(text="x" * 99, disconnect_after=3),
        Scripted(raw_body="<html>Please log in</html>"),
        Scripted(raw_body='data: {"half": \n\n'),
        Scripted(raw_body='data: {"error": {"message": "overloaded", "code": 500}}\n\n'),
    ],
)
async def test_a_reply_that_breaks_off_or_is_none_is_tried_again(broken):
    async with scripted_openai([broken, "ok"]) as server, gateway(server) as models:
        assert (await models.complete("coder", PROMPT)).text == "ok"
        assert len(server.requests) == 2


async def test_a_stream_that_stalls_is_left_and_tried_again():
    idle = timedelta(seconds=1)
    script = [Scripted(text="x" * 99, stall_after=3), "ok"]
    async with scripted_openai(script) as server, gateway(server, idle_timeout=idle) as models:
        reply = await models.complete("coder", PROMPT)
        assert reply.text == "ok"
        assert reply.usage.output_tokens > 7  # what came before the stall was spent too
        await server.wait_for_disconnects(1)


async def test_bytes_without_tokens_do_not_count_as_progress():
    idle = timedelta(milliseconds=400)
    script = [Scripted(keepalive_only=True), "ok"]
    async with scripted_openai(script) as server, gateway(server, idle_timeout=idle) as models:
        assert (await models.complete("coder", PROMPT)).text == "ok"


async def test_a_stream_that_never_stalls_is_ended_by_the_wall_clock_and_not_tried_again():
    limits = {"call_timeout": timedelta(seconds=2), "idle_timeout": timedelta(seconds=5)}
    endless = Scripted(text="x" * 5000, chunk_chars=1, chunk_delay=0.02)
    async with scripted_openai([endless, "ok"]) as server, gateway(server, **limits) as models:
        with pytest.raises(ModelUnavailable, match=r"no end after 2 s") as caught:
            await models.complete("coder", PROMPT)
        assert caught.value.usage.output_tokens > 0
        await server.wait_for_disconnects(1)
        assert len(server.requests) == 1


@pytest.mark.parametrize("stall_after", [-1, 2])
async def test_cancelling_closes_the_http_stream_at_once(stall_after):
    gate = asyncio.Event()
    reply = Scripted(text="x" * 99, stall_after=stall_after, gate=gate)
    if stall_after >= 0:
        gate.set()
    async with scripted_openai([reply]) as server, gateway(server) as models:
        call = asyncio.create_task(models.complete("coder", PROMPT))
        await server.wait_for_requests(1)
        started = time.monotonic()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await server.wait_for_disconnects(1)
        assert server.disconnects[0] - started < 1.0


async def test_a_failing_delta_sink_ends_the_call_and_the_stream():
    def fail(_text):
        raise RuntimeError("sink")

    endless = Scripted(text="x" * 5000, chunk_chars=1, chunk_delay=0.02)
    async with scripted_openai([endless]) as server, gateway(server) as models:
        with pytest.raises(RuntimeError, match="sink"):
            await models.complete("coder", PROMPT, on_delta=fail)
        await server.wait_for_disconnects(1)


async def test_calls_to_an_endpoint_are_bounded_over_all_roles():
    gate = asyncio.Event()
    async with scripted_openai([Scripted(text="ok", gate=gate)] * 6) as server:
        spec = ModelSpec(base_url=server.base_url, model="m", concurrency=8)
        narrow = ModelSpec(base_url=server.base_url, model="m", concurrency=2)
        models = ModelGateway({"coder": spec, "reviewer": narrow})
        calls = [asyncio.create_task(models.complete(role, PROMPT)) for role in ("coder", "reviewer") * 3]
        await server.wait_for_requests(2)
        gate.set()
        await asyncio.gather(*calls)
        await models.aclose()
        assert server.max_in_flight == 2


async def test_silence_is_asked_once_more():
    async with scripted_openai(["", "ok"]) as server, gateway(server) as models:
        reply = await models.complete("coder", PROMPT)
        assert (reply.text, reply.usage.model_calls) == ("ok", 2)


async def test_silence_twice_is_an_empty_reply():
    async with scripted_openai(["", "  \n"]) as server, gateway(server) as models:
        reply = await models.complete("coder", PROMPT)
        assert (reply.text, reply.usage.model_calls) == ("", 2)


async def test_a_cut_off_reply_says_so_and_is_not_asked_again():
    script = [Scripted(reasoning="hm, hm", finish_reason="length")]
    async with scripted_openai(script) as server, gateway(server) as models:
        reply = await models.complete("coder", PROMPT)
        assert (reply.text, reply.reasoning, reply.finish_reason) == ("", "hm, hm", "length")


@pytest.mark.parametrize(
    ("said", "text", "reasoning"),
    [
        (Scripted(text="answer", reasoning="long thought, in parts"), "answer", "long thought, in parts"),
        (Scripted(text="<think>\nthought\n</think>\n\nanswer"), "answer", "thought"),
        (Scripted(text="thought\n</think>\nanswer"), "answer", "thought"),
        (Scripted(text="<think>\nthe answer is inside"), "the answer is inside", "the answer is inside"),
        (Scripted(reasoning="the answer is inside"), "the answer is inside", "the answer is inside"),
        (Scripted(text='s = "<think>x</think>"'), 's = "<think>x</think>"', ""),
    ],
)
async def test_reasoning_is_kept_apart(said, text, reasoning):
    async with scripted_openai([said]) as server, gateway(server) as models:
        reply = await models.complete("coder", PROMPT)
        assert (reply.text, reply.reasoning) == (text, reasoning)


async def test_the_reply_is_clamped_to_what_is_left_of_the_window():
    async with scripted_openai(["ok"]) as server, gateway(server, context_tokens=1000) as models:
        await models.complete("coder", [Message("user", "x" * 2400)])
        assert server.requests[0].body["max_tokens"] == 1000 - 800 - 8


async def test_a_prompt_over_the_window_is_refused_before_sending():
    async with scripted_openai(["ok"]) as server, gateway(server, context_tokens=1000) as models:
        with pytest.raises(ContextTooLong, match="context window of 1000 tokens"):
            await models.complete("coder", [Message("user", "x" * 4000)])
        assert not server.requests


async def test_an_endpoint_that_calls_the_prompt_too_long_is_believed_and_not_asked_again():
    text = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"
    async with scripted_openai([Scripted(status=400, error=text), "ok"]) as server, gateway(server) as models:
        with pytest.raises(ContextTooLong):
            await models.complete("coder", PROMPT)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("refusal", "left_out", "sent"),
    [
        ("Unrecognized request argument supplied: stream_options", "stream_options", "max_tokens"),
        (
            "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
            "max_tokens",
            "max_completion_tokens",
        ),
        ("Unsupported value: 'temperature' does not support 0.2 with this model.", "temperature", "max_tokens"),
    ],
)
async def test_a_parameter_that_the_endpoint_does_not_know_is_left_out_from_then_on(refusal, left_out, sent):
    script = [Scripted(status=400, error=refusal), "ok", "ok"]
    async with scripted_openai(script) as server, gateway(server) as models:
        await models.complete("coder", PROMPT)
        await models.complete("coder", PROMPT)
        assert [left_out in request.body for request in server.requests] == [True, False, False]
        assert sent in server.requests[2].body


async def test_the_key_is_in_no_error_and_no_repr():
    script = [Scripted(status=401, error=f"Incorrect API key provided: {KEY}; not sk-other-0123456")]
    async with scripted_openai(script) as server, gateway(server) as models:
        with pytest.raises(ModelRejected) as caught:
            await models.complete("coder", PROMPT)
        shown = f"{caught.value} {models.spec('coder')!r} {caught.value.__cause__!r}"
        assert "secret" not in shown
        assert "sk-other" not in shown


async def test_a_proxy_in_the_environment_is_not_used_for_loopback(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "OPENAI_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-somebody-elses")
    async with scripted_openai(["ok"]) as server, gateway(server, api_key="", max_retries=0) as models:
        assert (await models.complete("coder", PROMPT)).text == "ok"
        assert "somebody" not in server.requests[0].headers["authorization"]


async def test_probe_names_the_model():
    async with scripted_openai([], api_key=KEY) as server, gateway(server) as models:
        assert await models.probe("coder") == "scripted-model"
        assert server.model_lists == 1
        assert not server.requests


async def test_probe_tells_a_wrong_key():
    async with scripted_openai([], api_key="another") as server, gateway(server) as models:
        with pytest.raises(ModelRejected) as caught:
            await models.probe("coder")
        assert caught.value.status == 401


async def test_a_spec_without_a_model_gets_the_first_one_listed():
    async with scripted_openai(["a", "b"], model="listed") as server, gateway(server, model="") as models:
        await models.complete("coder", PROMPT)
        await models.complete("coder", PROMPT)
        assert [request.body["model"] for request in server.requests] == ["listed", "listed"]
        assert server.model_lists == 1


async def test_an_unknown_role_is_named_with_the_known_ones():
    async with scripted_openai([]) as server, gateway(server) as models:
        with pytest.raises(UnknownRole, match=r"'tester'.*coder"):
            await models.complete("tester", PROMPT)


def test_a_spec_without_endpoint_needs_the_embedded_model():
    with pytest.raises(ValueError, match="base_url"):
        ModelGateway({"coder": ModelSpec(base_url="", model="")})
