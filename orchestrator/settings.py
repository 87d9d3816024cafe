"""Settings of the orchestrator: environment variables that begin with `CODEMEND_`, read here and nowhere else."""

import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from codemend.rpc import AddressText, Time, TimeOrNone
from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "CODEMEND_"
FALLBACK_KEY = "OPENAI_API_KEY"


def _home(variable: str, fallback: str) -> Path:
    """A folder by the XDG rules: the variable where it is an absolute path, else its place under the home folder."""
    path = Path(os.environ.get(variable, ""))
    return path if path.is_absolute() else Path.home() / fallback


def _data_dir() -> Path:
    return _home("XDG_STATE_HOME", ".local/state") / "codemend"


def _cache_dir() -> Path:
    return _home("XDG_CACHE_HOME", ".cache") / "codemend" / "models"


def _fallback_key() -> SecretStr:
    return SecretStr(os.environ.get(FALLBACK_KEY, ""))


def _is_endpoint(value: str) -> str:
    url = urlsplit(value)
    if value and (url.scheme not in {"http", "https"} or not url.hostname or url.username or url.password):
        raise ValueError("write it as http://host:port/v1 or https://host/v1, without a user or password")
    return value


class Settings(BaseSettings):
    """What an operator can set."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    address: AddressText = Field(
        "127.0.0.1:50051", description="Where to listen: host:port, [v6]:port or unix:/path. Port 0 takes a free one."
    )
    sandbox_address: AddressText = Field("127.0.0.1:50061", description="Where the sandbox service listens.")
    sandbox_patience: TimeOrNone = Field(
        timedelta(seconds=60), description="How long an unreachable sandbox is tried again before a run ends as ERROR."
    )

    model_url: Annotated[str, AfterValidator(_is_endpoint)] = Field(
        "", description="Base URL of an OpenAI-compatible endpoint; empty: the embedded model."
    )
    model_name: str = Field("", description="Model at that endpoint; empty: the first one that it lists.")
    api_key: SecretStr = Field(
        default_factory=_fallback_key,
        description=f"Key of that endpoint; where it is not set, {FALLBACK_KEY}. The embedded model never gets it.",
    )
    temperature: float = Field(0.2, ge=0, le=2, description="Temperature of first drafts and repairs.")
    context_tokens: int = Field(8192, ge=512, le=16_777_216, description="Context window: prompt and reply together.")
    max_output_tokens: int = Field(2048, ge=64, le=1_048_576, description="Most tokens of one reply.")
    model_concurrency: int = Field(8, ge=1, le=4096, description="Calls to the model at one time.")
    model_timeout: Time = Field(
        timedelta(minutes=5), description="Time of one call to that endpoint, first to last byte."
    )
    model_idle_timeout: Time = Field(timedelta(seconds=60), description="Longest time between two tokens from it.")
    model_retries: int = Field(4, ge=0, le=20, description="Further tries of a model call after the first.")
    embedded_model: str = Field(
        "1.5b", min_length=1, description="The embedded model: 1.5b, 0.5b, a path of a .gguf, or hf:REPO/FILE.gguf."
    )
    embedded_threads: int = Field(0, ge=0, le=1024, description="Threads of the embedded model; 0: as many as cores.")
    cache_dir: Path = Field(default_factory=_cache_dir, description="Where the embedded model's weights lie.")

    data_dir: Path = Field(default_factory=_data_dir, description="Where runs are kept without a database URL.")
    database_url: SecretStr = Field(
        SecretStr(""), description="postgresql://… for several replicas; empty: SQLite files in the data directory."
    )
    replica_id: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=100,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="Name of this process among its replicas, the same when it is started again.",
    )
    max_attempts: int = Field(4, ge=1, le=100, description="Attempts of a run that does not say how many.")
    timeout: Time = Field(timedelta(minutes=10), description="Time of a run that does not say how long.")
    max_concurrent_runs: int = Field(32, ge=1, le=10_000, description="Runs at one time in this process.")
    global_concurrent_runs: int = Field(
        0, ge=0, le=1_000_000, description="Runs at one time in all replicas; 0: no limit."
    )
    tenant_concurrent_runs: int = Field(
        0, ge=0, le=1_000_000, description="Runs of one tenant at one time in all replicas; 0: no limit."
    )
    tenant_runs_per_minute: int = Field(
        0, ge=0, le=1_000_000, description="Runs of one tenant begun in any minute; 0: no limit."
    )
    queue_size: int = Field(1000, ge=0, le=1_000_000, description="Runs that may wait; the next one is refused.")
    tenant_queue_size: int = Field(0, ge=0, le=1_000_000, description="Runs of one tenant that may wait; 0: no limit.")
    keep_runs: int = Field(10_000, ge=1, le=10_000_000, description="Ended runs that are kept.")
    keep_for: Time = Field(timedelta(days=7), description="How long an ended run is kept.")
    grace: TimeOrNone = Field(
        timedelta(seconds=30), description="Time for runs to reach their next step after SIGTERM."
    )
    reflection: bool = Field(default=True, description="Whether callers may ask for the contract by gRPC reflection.")
    trace_content: bool = Field(
        default=False,
        description="Whether prompts, replies and reasons of routes go into traces, where those are sent.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Least level that is logged.")

    @model_validator(mode="after")
    def _reply_fits(self) -> Self:
        if self.max_output_tokens >= self.context_tokens:
            raise ValueError(
                f"{PREFIX}MAX_OUTPUT_TOKENS ({self.max_output_tokens}) must be less than "
                f"{PREFIX}CONTEXT_TOKENS ({self.context_tokens})"
            )
        return self
