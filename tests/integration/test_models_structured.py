"""Structured output: each step of the ladder, what is remembered of it, and replies that do not fit."""

import contextlib
import json
from typing import Literal

import pytest
from pydantic import BaseModel, Field
from support.openai_server import Scripted, scripted_openai

from orchestrator.models import ContextTooLong, MalformedReply, Message, ModelGateway, ModelRejected, ModelSpec, Usage

PROMPT = [Message("user", "Judge it.")]


class Verdict(BaseModel):
    """A judgement."""

    grade: Literal["good", "bad"]
    note: str
    places: list[int] = Field(default_factory=list)


GOOD = '{"grade": "good", "note": "42"}'
VALUE = Verdict(grade="good", note="42")


@contextlib.asynccontextmanager
async def gateway(server):
    models = ModelGateway({"judge": ModelSpec(base_url=server.base_url, model="m", max_retries=0)})
    try:
        yield models
    finally:
        await models.aclose()


def step_of(request):
    body = request.body
    assert not ("response_format" in body and "tools" in body)
    return "schema" if "response_format" in body else "tool" if "tools" in body else "text"


def server_with(**replies):
    """A server whose reply depends on the step; a step without a reply is refused."""

    def reply(body):
        step = "schema" if "response_format" in body else "tool" if "tools" in body else "text"
        return replies.get(step, Scripted(status=400, error=f"{step} is not supported"))

    return scripted_openai(reply)


async def test_the_schema_is_tried_first_and_bounded():
    async with server_with(schema=GOOD) as server, gateway(server) as models:
        value, usage = await models.structured("judge", PROMPT, Verdict)
        assert (value, usage) == (VALUE, Usage(1, 11, 7))
        body = server.requests[0].body
        assert body["response_format"]["json_schema"]["schema"]["properties"]["grade"]["enum"] == ["good", "bad"]
        assert body["max_tokens"] > 0


async def test_refused_steps_are_passed_over_and_not_tried_again():
    async with server_with(text=f"Here:\n```json\n{GOOD}\n```\nDone.") as server, gateway(server) as models:
        first = await models.structured("judge", PROMPT, Verdict)
        second = await models.structured("judge", PROMPT, Verdict)
        assert [step_of(request) for request in server.requests] == ["schema", "tool", "text", "text"]
        assert first[0] == second[0] == VALUE
        assert (first[1].model_calls, second[1].model_calls) == (3, 1)


async def test_a_tool_call_is_the_second_step():
    call = Scripted(tool_call=("Verdict", GOOD), finish_reason="tool_calls")
    async with server_with(tool=call) as server, gateway(server) as models:
        assert (await models.structured("judge", PROMPT, Verdict))[0] == VALUE
        tool = server.requests[1].body["tools"][0]["function"]
        assert (tool["name"], tool["description"]) == ("Verdict", "A judgement.")


async def test_an_answer_in_the_text_of_a_tool_call_step_counts():
    async with server_with(tool=f"I judge: {GOOD}") as server, gateway(server) as models:
        assert (await models.structured("judge", PROMPT, Verdict))[0] == VALUE


@pytest.mark.parametrize(
    "useless",
    [
        Scripted(text="{\n" + " " * 400, finish_reason="length"),
        Scripted(text="I think it is good."),
        Scripted(text="null"),
        Scripted(text='{"grade": "so-so", "note": ""}'),
    ],
)
async def test_a_reply_that_does_not_fit_leads_to_the_next_step(useless):
    call = Scripted(tool_call=("Verdict", GOOD))
    async with server_with(schema=useless, tool=call) as server, gateway(server) as models:
        assert (await models.structured("judge", PROMPT, Verdict))[0] == VALUE
        assert [step_of(request) for request in server.requests] == ["schema", "tool"]


async def test_the_last_step_is_one_repair_with_what_was_wrong():
    wrong = '{"grade": "so-so", "note": "x"}'
    async with scripted_openai([wrong, wrong, wrong, GOOD]) as server, gateway(server) as models:
        value, usage = await models.structured("judge", PROMPT, Verdict)
        assert value == VALUE
        assert usage.model_calls == 4
        repair = server.requests[3].messages
        assert repair[-2] == {"role": "assistant", "content": wrong}
        assert "grade: Input should be 'good' or 'bad'" in repair[-1]["content"]


async def test_a_failed_repair_is_a_malformed_reply_with_all_its_usage():
    async with scripted_openai(["no"] * 4) as server, gateway(server) as models:
        with pytest.raises(MalformedReply, match="no JSON object") as caught:
            await models.structured("judge", PROMPT, Verdict)
        assert caught.value.usage == Usage(4, 44, 28)


async def test_thinking_before_the_json_is_no_part_of_it():
    async with server_with(schema=f"<think>{{maybe}}</think>{GOOD}") as server, gateway(server) as models:
        assert (await models.structured("judge", PROMPT, Verdict))[0] == VALUE


async def test_arguments_encoded_twice_are_decoded_only_where_no_text_is_wanted():
    twice = json.dumps(json.dumps({"grade": "good", "note": "[1]", "places": "[1, 2]"}))
    async with server_with(tool=Scripted(tool_call=("Verdict", twice))) as server, gateway(server) as models:
        value, _ = await models.structured("judge", PROMPT, Verdict)
        assert value == Verdict(grade="good", note="[1]", places=[1, 2])


@pytest.mark.parametrize("status", [401, 403])
async def test_a_wrong_key_ends_the_ladder(status):
    async with scripted_openai([Scripted(status=status)] * 4) as server, gateway(server) as models:
        with pytest.raises(ModelRejected):
            await models.structured("judge", PROMPT, Verdict)
        assert len(server.requests) == 1


async def test_a_prompt_that_is_too_long_ends_the_ladder():
    async with server_with(schema=GOOD) as server, gateway(server) as models:
        with pytest.raises(ContextTooLong):
            await models.structured("judge", [Message("user", "x" * 99_999)], Verdict)
        assert not server.requests
