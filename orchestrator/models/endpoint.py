"""One model server: its connections, its slots, what it turned out not to understand, and one bounded try of a call."""

import asyncio
import contextlib
import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai

from orchestrator.models.chat import Clients, Collected, ReasoningChat, make_chat, stream_chat
from orchestrator.models.errors import ModelRejected, ModelUnavailable
from orchestrator.models.faults import OutOfTimeError, StallError, redact
from orchestrator.models.messages import Message

_LIST_SECONDS = 15.0
_UNDERSTANDS_NOT = frozenset({400, 422})

# Parameters that some servers or models refuse, and how their refusals read. Each is left out from then on.
_QUIRKS = {
    "usage": re.compile(r"(?i)stream_options|include_usage"),
    "max_tokens": re.compile(r"(?i)max_completion_tokens"),
    "temperature": re.compile(r"(?is)temperature.*(not support|only the default)|unsupported.*temperature"),
}


@dataclass(frozen=True, slots=True)
class Request:
    """One call, with everything decided.

    Attributes:
        extra: further fields of the request's body, such as `response_format` or `tools`; never both.
    """

    model: str
    messages: Sequence[Message]
    temperature: float
    max_tokens: int
    call_timeout: timedelta
    first_token_timeout: timedelta
    idle_timeout: timedelta
    extra: dict[str, Any] = field(default_factory=dict)


class Endpoint:
    """A model server, known by its URL and the key that is used there.

    Args:
        base_url: ends before `/chat/completions`.
        concurrency: calls at the same time.
    """

    def __init__(self, base_url: str, api_key: str, concurrency: int) -> None:
        self.base_url = base_url.rstrip("/")
        self.rungs: dict[str, int] = {}  # model -> the step of the structured output ladder that worked last
        self.api_key = api_key
        self._clients = Clients(use_environment=not is_loopback(base_url))
        self._slots = asyncio.Semaphore(concurrency)  # protects the server from more calls than it was said to take
        self._chats: dict[str, ReasoningChat] = {}
        self._refused: dict[str, set[str]] = {}  # model -> quirks
        self._first_model = ""

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._clients.aclose()

    async def attempt(self, request: Request, collected: Collected, on_delta: Callable[[str], None] | None) -> None:
        """Makes one try and fills `collected`, also when the try fails half-way.

        Raises:
            StallError: no token for `idle_timeout`.
            OutOfTimeError: `call_timeout` passed while tokens still came.
            Exception: whatever the client library raises; see `faults.classify`.
        """
        async with self._slots:
            while True:
                try:
                    return await self._stream(request, collected, on_delta)
                except openai.APIStatusError as error:
                    if not self._learn(request.model, error):
                        raise

    async def first_model(self) -> str:
        """Name of the first model that the endpoint lists; remembered.

        Raises:
            ModelUnavailable: it does not answer.
            ModelRejected: it refuses to say, or lists none.
        """
        if not self._first_model:
            names = await self.list_models()
            if not names:
                raise ModelRejected(f"{self.base_url}: lists no model", status=httpx.codes.OK)
            self._first_model = names[0]
        return self._first_model

    async def list_models(self) -> list[str]:
        """Names of the models that the endpoint lists. Raises like `first_model`."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                response = await self._clients.http.get(f"{self.base_url}/models", headers=headers)
        except (httpx.HTTPError, TimeoutError) as error:
            text = redact(str(error), self.api_key) or f"no answer within {_LIST_SECONDS:.0f} s"
            raise ModelUnavailable(f"{self.base_url}: {type(error).__name__}: {text}") from None
        if response.status_code != httpx.codes.OK:
            text = f"{self.base_url}/models: HTTP {response.status_code}: {redact(response.text, self.api_key)}"
            if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
                raise ModelUnavailable(text)
            raise ModelRejected(text, status=response.status_code)
        try:
            return [str(entry["id"]) for entry in response.json()["data"]]
        except (ValueError, KeyError, TypeError):
            raise ModelRejected(f"{self.base_url}/models: not the OpenAI protocol", status=httpx.codes.OK) from None

    async def _stream(self, request: Request, collected: Collected, on_delta: Callable[[str], None] | None) -> None:
        refused = self._refused.get(request.model, set())
        chunks = stream_chat(
            self._chat(request.model), request.messages, _body(request, refused), usage="usage" not in refused
        )
        loop = asyncio.get_running_loop()
        patience = request.first_token_timeout
        try:
            # Leaving the generator, for whatever reason, closes the HTTP stream: the server sees it at once.
            async with (
                asyncio.timeout(request.call_timeout.total_seconds()) as wall,
                asyncio.timeout(patience.total_seconds()) as idle,
                contextlib.aclosing(chunks),
            ):
                async for chunk in chunks:
                    before = collected.size
                    delta = collected.add(chunk)
                    if collected.size > before:
                        patience = request.idle_timeout
                        idle.reschedule(loop.time() + patience.total_seconds())
                    if delta and on_delta is not None:
                        on_delta(delta)
                    if collected.full:
                        break
        except TimeoutError as error:
            if idle.expired():
                raise StallError(f"no token for {patience.total_seconds():g} s") from error
            if wall.expired():
                raise OutOfTimeError(f"no end after {request.call_timeout.total_seconds():g} s") from error
            raise

    def _chat(self, model: str) -> ReasoningChat:
        if model not in self._chats:
            self._chats[model] = make_chat(model, self.base_url, self.api_key, self._clients)
        return self._chats[model]

    def _learn(self, model: str, error: openai.APIStatusError) -> bool:
        """Whether the refusal names a parameter that can be left out, and was not left out before."""
        if error.status_code not in _UNDERSTANDS_NOT:
            return False
        refused = self._refused.setdefault(model, set())
        new = {quirk for quirk, text in _QUIRKS.items() if text.search(error.message)} - refused
        refused |= new
        return bool(new)


def is_loopback(url: str) -> bool:
    """Whether the URL's host is this machine, which no proxy can reach."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _body(request: Request, refused: set[str]) -> dict[str, Any]:
    limit = "max_completion_tokens" if "max_tokens" in refused else "max_tokens"
    sampling = {} if "temperature" in refused else {"temperature": request.temperature}
    return {limit: request.max_tokens, **sampling, **request.extra}
