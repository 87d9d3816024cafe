"""Which model serves a role, and how one call may differ from that."""

from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

_MAX_TEMPERATURE = 2.0


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model at an OpenAI-compatible endpoint.

    Attributes:
        base_url: such as "https://api.example.com/v1"; empty: the embedded model.
        model: name at the endpoint; empty: the first one that the endpoint lists.
        api_key: never part of a repr, an error or a log; empty where the endpoint wants none.
        temperature: from 0 to 2.
        max_output_tokens: most tokens of one reply, reasoning included.
        context_tokens: context window: prompt and reply together.
        call_timeout: wall clock of one try, from request to last token.
        idle_timeout: longest time between two tokens. The first may take three times as long, since the prompt is
            read before it; that of the embedded model (minutes, on a busy CPU) as long as the whole call.
        concurrency: calls at the same time to the endpoint; of several specs for one endpoint, the smallest counts.
        max_retries: further tries after the first.
    """

    base_url: str
    model: str
    api_key: str = field(default="", repr=False)
    temperature: float = 0.2
    max_output_tokens: int = 2048
    context_tokens: int = 8192
    call_timeout: timedelta = timedelta(minutes=5)
    idle_timeout: timedelta = timedelta(seconds=60)
    concurrency: int = 8
    max_retries: int = 4

    def __post_init__(self) -> None:
        url = urlsplit(self.base_url)
        if self.base_url and (url.scheme not in {"http", "https"} or not url.hostname):
            raise ValueError("base_url: must be empty or an http:// or https:// URL")
        if url.username or url.password:
            raise ValueError("base_url: must not hold a user or password; api_key is the place for a secret")
        if not 0 <= self.temperature <= _MAX_TEMPERATURE:
            raise ValueError(f"temperature: must be from 0 to {_MAX_TEMPERATURE:.0f}, not {self.temperature}")
        for name in ("max_output_tokens", "context_tokens", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, not {getattr(self, name)}")
        for name in ("call_timeout", "idle_timeout"):
            if getattr(self, name) <= timedelta():
                raise ValueError(f"{name}: must be more than zero")
        if self.max_retries < 0:
            raise ValueError(f"max_retries: must not be negative, not {self.max_retries}")


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What one call asks for instead of the spec's own values; an empty field asks for nothing."""

    model: str = ""
    temperature: float | None = None
    max_output_tokens: int = 0
