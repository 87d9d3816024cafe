"""The gateway's parts alone: retries, faults, reasoning, loose JSON, estimates and specs."""

import json
from datetime import UTC, datetime, timedelta

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from orchestrator import models
from orchestrator.models import (
    CallOptions,
    ContextTooLong,
    EmbeddedModel,
    EmbeddedSettings,
    Message,
    ModelError,
    ModelGateway,
    ModelRejected,
    ModelSpec,
    Usage,
    errors,
    estimate_tokens,
    faults,
    loose_json,
    retry,
)
from orchestrator.models.endpoint import is_loopback
from orchestrator.models.messages import estimate_prompt
from orchestrator.models.reasoning import separate

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


async def test_a_model_of_another_name_is_refused_before_the_embedded_one_is_fetched(tmp_path):
    settings = EmbeddedSettings(tmp_path / "cache", model="0.5b")
    embedded = EmbeddedModel(settings)
    gateway = ModelGateway({"coder": ModelSpec(base_url="", model="")}, embedded=embedded)
    with pytest.raises(ModelRejected, match=f"no model 'gpt-x'.*{embedded.name}"):
        await gateway.complete("coder", [Message("user", "hello")], options=CallOptions(model="gpt-x"))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "7"}, timedelta(seconds=7)),
        ({"retry-after": " 0.5 "}, timedelta(seconds=0.5)),
        ({"retry-after-ms": "250", "retry-after": "7"}, timedelta(milliseconds=250)),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:30 GMT"}, timedelta(seconds=30)),
        ({"retry-after": "Thu, 01 Jan 2026 11:00:00 GMT"}, timedelta()),
        ({"retry-after": "-5"}, timedelta()),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_every_form(headers, wait):
    assert retry.retry_after(headers, NOW) == wait


def test_backoff_grows_has_jitter_and_is_capped():
    delays = {tries: [retry.backoff(tries) for _ in range(200)] for tries in (1, 3, 50)}
    assert len(set(delays[3])) > 100
    assert max(delays[1]) <= timedelta(seconds=1) < max(delays[3]) <= timedelta(seconds=4) < max(delays[50])
    assert max(delays[50]) <= timedelta(seconds=30)


TOO_LONG = [
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "The decoder prompt (length 9001) is longer than the maximum model length of 8192.",
    "the request exceeds the available context size, try increasing it",
    "Input tokens exceed the configured limit of 272000 tokens.",
    "Your input exceeds the context window of this model.",
    "prompt is too long: 210000 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "Input is too long for requested model.",
    "The input token count (40000) exceeds the maximum number of tokens allowed (32768).",
    "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
    "`inputs` tokens + `max_new_tokens` must be <= 4096",
    "Please reduce the length of the messages or completion.",
    "litellm.ContextWindowExceededError: ...",
    "The number of tokens to keep from the initial prompt is greater than the context length.",
]


def status_error(status, message, code=None):
    response = httpx.Response(status, request=httpx.Request("POST", "http://h/v1"))
    return openai.APIStatusError(message, response=response, body={"message": message, "code": code})


@pytest.mark.parametrize("text", TOO_LONG)
def test_each_providers_word_for_too_long_is_known(text):
    fault = faults.classify(status_error(400, text), "http://h/v1", "")
    assert isinstance(fault.error, ContextTooLong)
    assert not fault.retry


@pytest.mark.parametrize(
    "text",
    ["Invalid value for max_tokens", "The model does not exist", "context must be a string", "Request timed out"],
)
def test_other_refusals_are_not_taken_for_too_long(text):
    assert not isinstance(faults.classify(status_error(400, text), "http://h/v1", "").error, ContextTooLong)


def test_a_code_alone_says_too_long():
    error = status_error(400, "Bad request", "context_length_exceeded")
    assert isinstance(faults.classify(error, "http://h/v1", "").error, ContextTooLong)


def test_a_rate_limit_by_tokens_is_no_lack_of_context():
    error = status_error(429, "Rate limit reached: reduce the length of the messages")
    assert faults.classify(error, "http://h/v1", "").retry


def test_a_fault_of_the_program_is_no_fault_of_the_endpoint():
    assert faults.classify(ZeroDivisionError(), "http://h/v1", "") is None


@pytest.mark.parametrize(
    ("text", "answer", "reasoning"),
    [
        ("plain", "plain", ""),
        ("<think>a</think>b", "b", "a"),
        ("\n<THINK>\na\n</THINK>\n\nb", "b", "a"),
        ("<think>a</think><think>b</think>c", "c", "a\nb"),
        ("<think>never ends", "", "never ends"),
        ("a\n</think>\nb", "b", "a"),
        ("a\n```\ncode\n```\n</think>\nb", "b", "a\n```\ncode\n```"),
        ('```\nx = """\n</think>\n"""\n```', '```\nx = """\n</think>\n"""\n```', ""),
        ("x = '</think>'", "x = '</think>'", ""),
        ("use <think> tags", "use <think> tags", ""),
    ],
)
def test_reasoning_is_separated_where_a_template_puts_it(text, answer, reasoning):
    assert separate(text) == (answer, reasoning)


@given(st.text())
def test_text_without_tags_is_untouched(text):
    assert separate(text.replace("<", "")) == (text.replace("<", ""), "")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('Sure: {"a": {"b": "}"}} ok?', {"a": {"b": "}"}}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('Set {x} to:\n~~~\n{"a": 1}\n~~~', {"a": 1}),
        ("null", None),
    ],
)
def test_json_is_found_in_what_surrounds_it(text, value):
    assert loose_json.find(text) == (value,)


@pytest.mark.parametrize("text", ["", "no", "{", "{" * 5000, "[" * 100_000, "{a: 1}"])
def test_no_json_is_none(text):
    assert loose_json.find(text) is None


class Inner(BaseModel):
    number: int
    text: str


class Outer(BaseModel):
    inner: Inner
    many: list[Inner]
    maybe: list[str] | None
    either: str | list[str]
    free: dict[str, list[int]]


def test_double_encoding_is_undone_only_where_the_schema_wants_no_text():
    inner = {"number": "42", "text": '{"a": 1}'}
    once = {
        "inner": json.dumps(inner),
        "many": json.dumps([json.dumps(inner)]),
        "maybe": '["a"]',
        "either": '["a"]',
        "free": {"k": "[1]"},
    }
    assert loose_json.decode_twice_encoded(json.dumps(once), Outer.model_json_schema()) == {
        "inner": inner,
        "many": [inner],
        "maybe": ["a"],
        "either": '["a"]',
        "free": {"k": [1]},
    }


def test_recursive_schemas_end():
    class Tree(BaseModel):
        children: list["Tree"]

    value = {"children": json.dumps([{"children": []}])}
    assert loose_json.decode_twice_encoded(value, Tree.model_json_schema()) == {"children": [{"children": []}]}


@given(st.text())
def test_the_estimate_is_never_below_a_token_for_three_bytes(text):
    assert estimate_tokens(text) * 3 >= len(text.encode())


def test_the_estimate_takes_lone_surrogates():
    assert estimate_tokens("\ud800") == 1
    assert estimate_prompt([Message("user", "")]) > 0


def test_usage_adds_up():
    assert Usage(1, 2, 3) + Usage(10, 20, 30) == Usage(11, 22, 33)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"base_url": "api.example.com"}, "base_url"),
        ({"base_url": "ftp://x"}, "base_url"),
        ({"base_url": "https://user:word@x/v1"}, "base_url"),
        ({"temperature": 2.5}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"context_tokens": -1}, "context_tokens"),
        ({"concurrency": 0}, "concurrency"),
        ({"max_retries": -1}, "max_retries"),
        ({"call_timeout": timedelta()}, "call_timeout"),
        ({"idle_timeout": timedelta(-1)}, "idle_timeout"),
    ],
)
def test_a_bad_spec_names_its_field(fields, name):
    with pytest.raises(ValueError, match=f"^{name}: "):
        ModelSpec(**{"base_url": "https://x/v1", "model": "m", **fields})


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:1/v1", True),
        ("http://localhost/v1", True),
        ("http://[::1]:80/v1", True),
        ("http://127.0.0.1.example.com/v1", False),
        ("https://api.example.com/v1", False),
        ("http://10.0.0.1/v1", False),
    ],
)
def test_loopback_is_told_from_the_host_alone(url, loopback):
    assert is_loopback(url) is loopback


def test_the_drawn_error_tree_is_the_real_one():
    drawn = [line.split("── ")[1].split()[0] for line in errors.__doc__.splitlines() if "──" in line]
    real = [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, ModelError)]
    assert sorted([*drawn, "ModelError"]) == sorted(real)


def test_the_exported_names_are_these():
    assert set(models.__all__) == {
        *("Message", "Usage", "Reply", "ModelSpec", "CallOptions", "ModelGateway", "estimate_tokens"),
        *("ModelError", "ModelUnavailable", "ModelRejected", "ContextTooLong", "MalformedReply", "UnknownRole"),
        *("Extraction", "extract_code", "EmbeddedModel", "EmbeddedSettings"),
    }
