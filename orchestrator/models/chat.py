"""The client library, narrowed to what the gateway needs: one streaming chat call and what came of it.

All sampling parameters go into the request's extra body, so that the library neither renames nor reinterprets them:
servers other than OpenAI's know `max_tokens` and not its successor.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from orchestrator.models.messages import Message

_REASONING_FIELDS = ("reasoning_content", "reasoning")  # DeepSeek, vLLM, llama.cpp; OpenRouter
_CONNECT_SECONDS = 10.0
MOST_CHARS = 1024 * 1024  # of one reply, reasoning included; an endpoint that sends more is not read any further


class ReasoningChat(ChatOpenAI):
    """ChatOpenAI that keeps the reasoning which other servers send beside the content."""

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        made = super()._convert_chunk_to_generation_chunk(chunk, default_chunk_class, base_generation_info)
        delta = (chunk.get("choices") or [{}])[0].get("delta") or {}
        thought = next((text for name in _REASONING_FIELDS if isinstance(text := delta.get(name), str) and text), "")
        if made is not None and thought:
            made.message.additional_kwargs["reasoning_content"] = thought
        return made


def make_chat(model: str, base_url: str, api_key: str, clients: "Clients") -> ReasoningChat:
    """A client for one model. Retries, timeouts and connections are the gateway's business, not the library's."""
    return ReasoningChat(
        model=model,
        base_url=base_url,
        api_key=SecretStr(api_key or "none"),  # never the key that the environment holds for another endpoint
        max_retries=0,
        timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
        stream_chunk_timeout=None,
        use_responses_api=False,
        openai_proxy="",
        http_client=clients.unused,
        http_async_client=clients.http,
    )


class Clients:
    """The HTTP connections to one endpoint.

    Args:
        use_environment: whether the proxies and certificates that the environment names apply.
    """

    def __init__(self, *, use_environment: bool) -> None:
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        self.http = httpx.AsyncClient(timeout=timeout, trust_env=use_environment)
        self.unused = httpx.Client(trust_env=False)  # the library insists on a blocking one; nothing is sent over it

    async def aclose(self) -> None:
        """Closes all connections."""
        await self.http.aclose()
        self.unused.close()


@dataclass(slots=True)
class Collected:
    """A reply while it streams in."""

    text: str = ""
    reasoning: str = ""
    tool_arguments: str = ""
    finish_reason: str = ""
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    started: bool = False

    def add(self, chunk: AIMessageChunk) -> str:
        """Takes the next chunk in, as far as there is room; returns its text."""
        text = str(chunk.text)[: self._room]
        thought = str(chunk.additional_kwargs.get("reasoning_content", ""))[: self._room - len(text)]
        arguments = "".join(call["args"] or "" for call in chunk.tool_call_chunks)
        arguments = arguments[: self._room - len(text) - len(thought)]
        self.text += text
        self.reasoning += thought
        self.tool_arguments += arguments
        self.finish_reason = str(chunk.response_metadata.get("finish_reason") or self.finish_reason)
        self.model = str(chunk.response_metadata.get("model_name") or self.model)
        if chunk.usage_metadata:
            self.input_tokens = max(self.input_tokens, chunk.usage_metadata["input_tokens"])
            self.output_tokens = max(self.output_tokens, chunk.usage_metadata["output_tokens"])
        self.started = self.started or bool(text or thought or arguments)
        if self.full:
            self.finish_reason = "length"
        return text

    @property
    def full(self) -> bool:
        """Whether there is no room for more: the reply counts as cut off."""
        return self._room <= 0

    @property
    def _room(self) -> int:
        return MOST_CHARS - len(self.text) - len(self.reasoning) - len(self.tool_arguments)

    @property
    def size(self) -> int:
        """Characters so far, of any kind: it grows when the model made progress."""
        return len(self.text) + len(self.reasoning) + len(self.tool_arguments) + len(self.finish_reason)


async def stream_chat(
    chat: ReasoningChat, messages: Sequence[Message], body: Mapping[str, object], *, usage: bool
) -> AsyncGenerator[AIMessageChunk]:
    """Starts one streaming call. `body` is added to the request; `usage` asks for token counts at the end."""
    turns = [_TURNS[message.role](content=message.text) for message in messages]
    chunks = chat.astream(turns, extra_body=dict(body), stream_usage=usage)
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        if isinstance(chunks, AsyncGenerator):  # closed here and now, not when the garbage collector comes by
            await chunks.aclose()


_TURNS: dict[str, type[BaseMessage]] = {"system": SystemMessage, "user": HumanMessage, "assistant": AIMessage}
