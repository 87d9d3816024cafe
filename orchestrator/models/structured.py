"""Gets a value of a pydantic model out of a text model, by a ladder of ways to ask.

JSON schema, tool call, a JSON block in the text, then one repair prompt. An endpoint that refuses a step gets the
next one; the step that worked is remembered. No step sends `response_format` and `tools` together: some servers then
drop the tools.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.models import loose_json
from orchestrator.models.errors import MalformedReply, ModelError, ModelRejected
from orchestrator.models.messages import Message, Reply, Usage

_T = TypeVar("_T", bound=BaseModel)
_Extra = dict[str, Any]
_Ask = Callable[[Sequence[Message], _Extra], Awaitable[tuple[Reply, str]]]
"""Sends a prompt with further fields of the request; returns the reply and its tool call's arguments."""

_UNAUTHORISED = frozenset({401, 402, 403})  # refusals that have nothing to do with how it was asked
_TOOL_RUNG, _TEXT_RUNG = 1, 2
_SHOWN_ERRORS = 8
_FORMS = {0: "", _TEXT_RUNG: " in a ```json block"}  # the first step's grammar would forbid the block


async def climb(
    ask: _Ask, messages: Sequence[Message], schema: type[_T], memory: MutableMapping[str, int], model: str
) -> tuple[_T, Usage]:
    """Asks from the remembered step on, until a reply fits.

    Args:
        ask: makes one call.
        messages: the prompt.
        schema: what the reply must be.
        memory: model -> the step that worked last at this endpoint; updated.
        model: whose step.

    Raises:
        MalformedReply: nothing fitted, the repair included.
        ModelError: the call failed for another reason than how it was asked.
    """
    spec = schema.model_json_schema()
    spent, problem, said = Usage(), "", ""
    for rung in range(memory.get(model, 0), _TEXT_RUNG + 1):
        prompt = messages if rung == _TOOL_RUNG else _with_schema(messages, spec, _FORMS[rung])
        try:
            reply, arguments = await ask(prompt, _extra(rung, schema, spec))
        except ModelRejected as error:
            if rung == _TEXT_RUNG or error.status in _UNAUTHORISED:
                raise _spending(error, spent) from error.__cause__
            spent += error.usage
            continue
        except ModelError as error:
            raise _spending(error, spent) from error.__cause__
        spent += reply.usage
        value, problem = _read(reply, arguments, schema, spec)
        if value is not None:
            memory[model] = rung
            return value, spent
        said = reply.text or arguments
    return await _repair(ask, messages, schema, said=said, problem=problem, spent=spent)


async def _repair(
    ask: _Ask, messages: Sequence[Message], schema: type[_T], *, said: str, problem: str, spent: Usage
) -> tuple[_T, Usage]:
    spec = schema.model_json_schema()
    correction = f"That does not fit: {problem}\nAnswer again, with nothing but the corrected JSON object."
    turns = [*_with_schema(messages, spec), Message("assistant", said or "(nothing)"), Message("user", correction)]
    try:
        reply, arguments = await ask(turns, {})
    except ModelError as error:
        raise _spending(error, spent) from error.__cause__
    spent += reply.usage
    value, problem = _read(reply, arguments, schema, spec)
    if value is None:
        raise MalformedReply(f"{reply.model} gave no valid {schema.__name__}: {problem}", usage=spent)
    return value, spent


def _spending(error: ModelError, before: Usage) -> ModelError:
    error.usage = before + error.usage
    return error


def _extra(rung: int, schema: type[BaseModel], spec: _Extra) -> _Extra:
    """The fields of the request that make up a step."""
    name = schema.__name__
    if rung == 0:
        return {"response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": spec}}}
    if rung == _TOOL_RUNG:
        about = (schema.__doc__ or f"Gives the {name}.").strip()
        function = {"name": name, "description": about, "parameters": spec}
        choice = {"type": "function", "function": {"name": name}}
        return {"tools": [{"type": "function", "function": function}], "tool_choice": choice}
    return {}


def _with_schema(messages: Sequence[Message], spec: _Extra, form: str = "") -> list[Message]:
    """The prompt with the schema told at its end, in the last turn where that is the user's."""
    wish = f"Answer with one JSON object{form} that fits this JSON Schema:\n{json.dumps(spec)}"
    if messages and messages[-1].role == "user":
        return [*messages[:-1], Message("user", f"{messages[-1].text}\n\n{wish}")]
    return [*messages, Message("user", wish)]


def _read(reply: Reply, arguments: str, schema: type[_T], spec: _Extra) -> tuple[_T | None, str]:
    """The value in a reply, or what is wrong with it."""
    if reply.finish_reason == "length":
        return None, "it was cut off at the token limit; be shorter"
    found = loose_json.find(arguments) or loose_json.find(reply.text)
    if found is None:
        return None, "it holds no JSON object"
    try:
        return schema.model_validate(loose_json.decode_twice_encoded(found[0], spec)), ""
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        lines = [f"{'.'.join(map(str, one['loc'])) or 'the object'}: {one['msg']}" for one in problems[:_SHOWN_ERRORS]]
        return None, "; ".join(lines)
