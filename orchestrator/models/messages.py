"""What goes to a model and what comes back: plain values that know nothing of HTTP or of any client library."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

_BYTES_PER_TOKEN = 3  # code and English measure 3.2 to 4.5 bytes a token; 3 errs towards too many tokens
_MESSAGE_TOKENS = 8  # role, delimiters and template around each message


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What model calls spent. Adds up with `+`."""

    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.model_calls + other.model_calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's reply.

    Attributes:
        text: the answer, without reasoning. Empty when the model said nothing, twice.
        reasoning: what the model thought aloud, from a field of its own or from <think> tags.
        finish_reason: as the endpoint says: "stop", "length", …; empty where it does not say.
        usage: of all tries, the failed ones included.
        model: the model's name, as the endpoint gives it.
        duration: from the call to the last token, waiting and retries included.
    """

    text: str
    reasoning: str
    finish_reason: str
    usage: Usage
    model: str
    duration: timedelta


def estimate_tokens(text: str) -> int:
    """A cheap upper estimate of the tokens in `text`; lone surrogates are counted, not refused."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


def estimate_prompt(messages: Sequence[Message]) -> int:
    """A cheap upper estimate of the tokens of a whole prompt."""
    return sum(estimate_tokens(message.text) + _MESSAGE_TOKENS for message in messages)
