"""The one way to the models: a role in, a reply out. Owner of retries, limits, concurrency and the connections.

A call is a number of tries. A try fails by a fault, and the fault says whether another one can help (see `faults`);
the caller sees only the end, and every error tells what had been spent.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel

from orchestrator.models import retry, structured
from orchestrator.models.chat import Collected
from orchestrator.models.embedded import EmbeddedModel
from orchestrator.models.endpoint import Endpoint, Request
from orchestrator.models.errors import ContextTooLong, ModelError, ModelRejected, UnknownRole
from orchestrator.models.faults import classify
from orchestrator.models.messages import Message, Reply, Usage, estimate_prompt, estimate_tokens
from orchestrator.models.reasoning import separate
from orchestrator.models.spec import CallOptions, ModelSpec

_T = TypeVar("_T", bound=BaseModel)
_NO_OPTIONS = CallOptions()
_LEAST_ROOM = 64  # tokens: a window with less than this left holds no useful reply
_FIRST_TOKEN_FACTOR = 3  # the prompt is read before the first token, in silence
_CUT_OFF = "length"


class ModelGateway:
    """Calls models by role.

    Args:
        specs: the model of each role. A spec without a base_url is served by `embedded`.
        embedded: started on first use; the gateway never stops it, since others may use it too.
    """

    def __init__(self, specs: Mapping[str, ModelSpec], *, embedded: EmbeddedModel | None = None) -> None:
        self._specs = dict(specs)
        self._embedded = embedded
        self._endpoints: dict[tuple[str, str], Endpoint] = {}
        for role, spec in self._specs.items():
            if not spec.base_url and embedded is None:
                raise ValueError(f"role {role!r}: base_url is empty and there is no embedded model")

    def spec(self, role: str) -> ModelSpec:
        """The spec of a role.

        Raises:
            UnknownRole: there is none.
        """
        try:
            return self._specs[role]
        except KeyError:
            known = ", ".join(sorted(self._specs)) or "none"
            raise UnknownRole(f"no model for role {role!r}; known roles: {known}") from None

    async def complete(
        self,
        role: str,
        messages: Sequence[Message],
        *,
        options: CallOptions = _NO_OPTIONS,
        on_delta: Callable[[str], None] | None = None,
    ) -> Reply:
        """Asks the model of a role for a reply.

        Args:
            role: whose model.
            messages: the prompt.
            options: what differs from the role's spec.
            on_delta: called on the event loop with the reply's text as it comes, tags of reasoning included. A try that
                failed half-way may have handed out text already; the next try starts from the beginning.

        Raises:
            ModelError: see the tree in `errors`; its `usage` says what was spent.
        """
        self._refuse_other_model(role, options)
        reply, _ = await self._ask(role, messages, options, {}, on_delta)
        return reply

    async def structured(
        self, role: str, messages: Sequence[Message], schema: type[_T], *, options: CallOptions = _NO_OPTIONS
    ) -> tuple[_T, Usage]:
        """Asks the model of a role for a value of a pydantic model; tries every way of asking that the endpoint takes.

        Raises:
            MalformedReply: no reply fitted the schema.
            ModelError: as `complete`.
        """
        self._refuse_other_model(role, options)
        endpoint = await self._endpoint(role)
        model = await self._model(role, endpoint, options)

        async def ask(prompt: Sequence[Message], extra: dict[str, Any]) -> tuple[Reply, str]:
            return await self._ask(role, prompt, options, extra)

        return await structured.climb(ask, messages, schema, endpoint.rungs, model)

    async def probe(self, role: str) -> str:
        """Name of the model that serves a role, asked from its endpoint. Never starts the embedded model.

        Raises:
            ModelError: the endpoint does not answer, or refuses to.
        """
        spec = self.spec(role)
        if not spec.base_url and self._embedded is not None:
            return self._embedded.name
        endpoint = await self._endpoint(role)
        names = await endpoint.list_models()
        return spec.model if spec.model in names else (names[0] if names else await endpoint.first_model())

    async def aclose(self) -> None:
        """Closes all connections. Calls still running fail."""
        endpoints, self._endpoints = list(self._endpoints.values()), {}
        for endpoint in endpoints:
            await endpoint.aclose()

    async def _ask(
        self,
        role: str,
        messages: Sequence[Message],
        options: CallOptions,
        extra: dict[str, Any],
        on_delta: Callable[[str], None] | None = None,
    ) -> tuple[Reply, str]:
        """A reply and its tool call's arguments. Silence is asked once more: a fresh sample mostly speaks."""
        started = time.monotonic()
        spent = Usage()
        for last in (False, True):
            try:
                collected, usage = await self._try(role, messages, options, extra, on_delta)
            except ModelError as error:
                error.usage = spent + error.usage
                raise
            spent += usage
            text, reasoning = _answer_of(collected)
            if last or text or collected.tool_arguments or collected.finish_reason == _CUT_OFF:
                break
        model = collected.model or options.model or self.spec(role).model
        took = timedelta(seconds=time.monotonic() - started)
        return Reply(text, reasoning, collected.finish_reason, spent, model, took), collected.tool_arguments

    async def _try(
        self,
        role: str,
        messages: Sequence[Message],
        options: CallOptions,
        extra: dict[str, Any],
        on_delta: Callable[[str], None] | None,
    ) -> tuple[Collected, Usage]:
        """Tries until a reply is complete or no further try can help."""
        spec = self.spec(role)
        spent = Usage()
        for tries in itertools.count(1):
            collected = Collected()
            try:
                endpoint = await self._endpoint(role)  # anew each time: the embedded server may have been replaced
                request = await self._request(role, endpoint, messages, options, extra)
            except ModelError as error:
                error.usage = spent
                raise
            try:
                await endpoint.attempt(request, collected, on_delta)
            except Exception as error:
                fault = classify(error, endpoint.base_url, endpoint.api_key)
                if fault is None:
                    raise
            else:
                return collected, spent + _spent(collected, messages)
            spent += _spent(collected, messages)
            wait = retry.backoff(tries) if fault.wait is None else fault.wait
            if not fault.retry or tries > spec.max_retries or wait > retry.LONGEST_WAIT:
                fault.error.usage = spent
                raise _with_tries(fault.error, tries, wait) from None
            await asyncio.sleep(wait.total_seconds())
        raise AssertionError("unreachable: count() has no end")

    async def _request(
        self, role: str, endpoint: Endpoint, messages: Sequence[Message], options: CallOptions, extra: dict[str, Any]
    ) -> Request:
        spec = self.spec(role)
        window = spec.context_tokens
        if not spec.base_url and self._embedded is not None:
            window = min(window, self._embedded.context_tokens)
        wanted = options.max_output_tokens or spec.max_output_tokens
        prompt_tokens = estimate_prompt(messages) + estimate_tokens(json.dumps(extra) if extra else "")
        room = window - prompt_tokens
        if room < min(wanted, _LEAST_ROOM):
            raise ContextTooLong(
                f"the prompt has about {prompt_tokens} tokens, which leaves no room for a reply in the context window "
                f"of {window} tokens"
            )
        return Request(
            model=await self._model(role, endpoint, options),
            messages=messages,
            temperature=spec.temperature if options.temperature is None else options.temperature,
            max_tokens=min(wanted, room),
            call_timeout=spec.call_timeout,
            first_token_timeout=spec.idle_timeout * _FIRST_TOKEN_FACTOR if spec.base_url else spec.call_timeout,
            idle_timeout=spec.idle_timeout,
            extra=extra,
        )

    def _refuse_other_model(self, role: str, options: CallOptions) -> None:
        """Refuses a name that the embedded model does not have, before it is fetched and started for nothing."""
        if self.spec(role).base_url or self._embedded is None or options.model in {"", self._embedded.name}:
            return
        text = f"there is no model {options.model!r}: without an endpoint, {self._embedded.name!r} serves alone"
        raise ModelRejected(text, status=httpx.codes.NOT_FOUND)

    async def _model(self, role: str, endpoint: Endpoint, options: CallOptions) -> str:
        spec = self.spec(role)
        embedded = self._embedded.name if self._embedded is not None and not spec.base_url else ""
        return embedded or options.model or spec.model or await endpoint.first_model()

    async def _endpoint(self, role: str) -> Endpoint:
        spec = self.spec(role)
        if spec.base_url or self._embedded is None:
            url, key = spec.base_url, spec.api_key
            shared = [other for other in self._specs.values() if (other.base_url, other.api_key) == (url, key)]
            concurrency = min(other.concurrency for other in shared)
        else:
            url, key = await self._embedded.start(), self._embedded.api_key
            concurrency = min(spec.concurrency, self._embedded.parallel)
        if (url, key) not in self._endpoints:
            self._endpoints[url, key] = Endpoint(url, key, concurrency)
        return self._endpoints[url, key]


def _answer_of(collected: Collected) -> tuple[str, str]:
    """Answer and reasoning. Where a finished reply is all reasoning, the answer sits inside it."""
    text, tagged = separate(collected.text)
    reasoning = "\n".join(part for part in (collected.reasoning.strip(), tagged) if part)
    if not text.strip() and collected.finish_reason != _CUT_OFF and not collected.tool_arguments:
        text = reasoning
    return text if text.strip() else "", reasoning


def _spent(collected: Collected, messages: Sequence[Message]) -> Usage:
    """What a try spent: as the endpoint says, or estimated where it does not say and had begun to answer."""
    if not collected.started and not collected.input_tokens:
        return Usage(model_calls=1)
    output = collected.text + collected.reasoning + collected.tool_arguments
    return Usage(
        1, collected.input_tokens or estimate_prompt(messages), collected.output_tokens or estimate_tokens(output)
    )


def _with_tries(error: ModelError, tries: int, wait: timedelta) -> ModelError:
    if wait > retry.LONGEST_WAIT:
        error.args = (f"{error} (asks to wait {wait.total_seconds():.0f} s)",)
    elif tries > 1:
        error.args = (f"{error} (tried {tries} times)",)
    return error
