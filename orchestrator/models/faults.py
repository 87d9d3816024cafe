"""Translates what the client library raises into the domain's errors, and says whether another try can help.

Provider texts are shown to people, so keys are blotted out of them, and the library's exceptions (which hold the
request) are not chained.
"""

import re
from dataclasses import dataclass
from datetime import timedelta

import httpx
import openai

from orchestrator.models.errors import ContextTooLong, ModelError, ModelRejected, ModelUnavailable
from orchestrator.models.retry import retry_after

_RETRYABLE = frozenset({408, 409, 429})
_SERVER_ERROR = 500
_PAYLOAD_TOO_LARGE = 413
_TEXT_LIMIT = 500  # characters of a provider's text in an error
_KEY_LIKE = re.compile(r"\b(?:sk|pk|key|gsk|hf)[-_][A-Za-z0-9_\-*.]{6,}|Bearer\s+\S+", re.IGNORECASE)
_NO_QUOTA = ("insufficient_quota", "billing_hard_limit")

# How endpoints say that a prompt is too long; each row was seen with the server named.
_TOO_LONG = re.compile(
    r"context_length_exceeded|maximum context length"  # OpenAI, Azure, vLLM, DeepSeek, OpenRouter
    # vLLM:
    r"|(longer than|exceeds?) the (maximum )?(model|context) (length|window)|exceeds the model's (maximum )?context"
    r"|exceed_context_size|exceeds? the available context"  # llama.cpp
    r"|input tokens exceed|exceeds the context window"  # Azure, OpenAI
    r"|prompt is too long|exceed context limit|input is too long"  # Anthropic, Bedrock
    r"|input token count .* exceeds|too many input tokens"  # Gemini
    r"|too large for model with \d+ maximum context"  # Mistral
    r"|inputs?`? tokens \+ `?max_new_tokens`? must be|reduce the length of the messages"  # TGI, Groq
    r"|ContextWindowExceeded|greater than the context length|context length of only",  # LiteLLM, LM Studio
    re.IGNORECASE,
)


class StallError(Exception):
    """The stream brought no token for too long."""


class OutOfTimeError(Exception):
    """A try took too long, although tokens came. Another one would take as long."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failed try.

    Attributes:
        error: what to raise when there is no other try.
        retry: whether another try can help.
        wait: what the endpoint asks to wait before it; None where it asks nothing.
    """

    error: ModelError
    retry: bool
    wait: timedelta | None = None


def classify(error: Exception, endpoint: str, api_key: str) -> Fault | None:
    """What a failed try means; None for an exception that no endpoint causes.

    Args:
        error: what the client library raised.
        endpoint: the endpoint's URL, for the message.
        api_key: blotted out of the message.
    """
    if isinstance(error, StallError | OutOfTimeError):
        return Fault(ModelUnavailable(f"{endpoint}: {error}"), retry=isinstance(error, StallError))
    if isinstance(error, openai.APIStatusError):
        return _status_fault(error, f"{endpoint}: HTTP {error.status_code}: {redact(_message(error), api_key)}")
    if isinstance(error, openai.APIConnectionError | httpx.HTTPError | OSError):
        cause = error.__cause__ or error
        text = redact(str(cause) or str(error), api_key)
        return Fault(ModelUnavailable(f"{endpoint}: no connection: {type(cause).__name__}: {text}"), retry=True)
    if isinstance(error, openai.APIError):
        return _stream_fault(error, endpoint, redact(_message(error), api_key))
    if isinstance(error, ValueError):  # what came is no stream of chat completion chunks
        return Fault(
            ModelUnavailable(f"{endpoint}: not the OpenAI protocol: {redact(str(error), api_key)}"), retry=True
        )
    return None


def redact(text: str, api_key: str) -> str:
    """`text` without anything that looks like a key, cut to a length that suits an error."""
    clean = _KEY_LIKE.sub("***", text.replace(api_key, "***") if api_key else text)
    return clean if len(clean) <= _TEXT_LIMIT else clean[: _TEXT_LIMIT - 1] + "…"


def is_too_long(text: str, body: object = None) -> bool:
    """Whether a provider's text, or the body it came in, says that the prompt does not fit."""
    return bool(_TOO_LONG.search(text) or _TOO_LONG.search(str(body or "")))


def _status_fault(error: openai.APIStatusError, text: str) -> Fault:
    status = error.status_code
    if status != httpx.codes.TOO_MANY_REQUESTS and is_too_long(_message(error), error.body):
        return Fault(ContextTooLong(text), retry=False)
    if status == _PAYLOAD_TOO_LARGE:
        return Fault(ContextTooLong(text), retry=False)
    out_of_money = status == httpx.codes.TOO_MANY_REQUESTS and any(word in str(error.body) for word in _NO_QUOTA)
    if (status in _RETRYABLE or status >= _SERVER_ERROR) and not out_of_money:
        return Fault(ModelUnavailable(text), retry=True, wait=retry_after(dict(error.response.headers)))
    return Fault(ModelRejected(text, status=status), retry=False)


def _stream_fault(error: openai.APIError, endpoint: str, text: str) -> Fault:
    """An error that came as an event of a stream which had begun with status 200."""
    if is_too_long(_message(error), error.body):
        return Fault(ContextTooLong(f"{endpoint}: {text}"), retry=False)
    return Fault(ModelUnavailable(f"{endpoint}: the reply broke off: {text}"), retry=True)


def _message(error: openai.APIError) -> str:
    body = error.body
    if isinstance(body, dict) and isinstance(body.get("message"), str):
        return str(body["message"])
    return error.message
