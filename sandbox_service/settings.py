"""Settings of the sandbox service: environment variables that begin with `SANDBOX_`, read here and nowhere else."""

import os
from datetime import timedelta
from typing import Annotated, Literal, Self

from codemend.rpc import AddressText, Size, Time, TimeOrNone
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from sandbox_service.cells import KINDS
from sandbox_service.domain import DEFAULT_LIMITS, LIMIT_NAMES, MAXIMUM_LIMITS, Limits

PREFIX = "SANDBOX_"


def _names(value: object) -> object:
    return frozenset(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _is_kind(value: str) -> str:
    if value not in KINDS:
        raise ValueError(f"unknown kind of cell; known: {', '.join(KINDS)}")
    return value


Count = Annotated[int, Field(gt=0)]


class Settings(BaseSettings):
    """What an operator can set. Every limit has a default, for jobs that set nothing, and a maximum."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    address: AddressText = Field(
        "127.0.0.1:50061", description="Where to listen: host:port, [v6]:port or unix:/path. Port 0 takes a free one."
    )
    cell: Annotated[str, AfterValidator(_is_kind)] = Field("process", description="Kind of cell that jobs run in.")
    concurrency: int = Field(
        default_factory=lambda: len(os.sched_getaffinity(0)), ge=1, le=1024, description="Jobs at one time."
    )
    queue_size: int = Field(256, ge=0, le=100_000, description="Jobs that may wait; the next one is refused.")
    grace: TimeOrNone = Field(timedelta(seconds=30), description="Time for running jobs to end after SIGTERM.")
    reflection: bool = Field(default=True, description="Whether callers may ask for the contract by gRPC reflection.")
    require: Annotated[frozenset[str], NoDecode, BeforeValidator(_names)] = Field(
        frozenset(), description="Protections, separated by commas, without which the service refuses to start."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Least level that is logged.")

    default_wall_time: Time = Field(DEFAULT_LIMITS.wall_time, description="Real time of a job.")
    default_cpu_time: Time = Field(DEFAULT_LIMITS.cpu_time, description="Processor time of a job.")
    default_memory_bytes: Size = Field(DEFAULT_LIMITS.memory_bytes, description="Memory of a job.")
    default_processes: Count = Field(DEFAULT_LIMITS.processes, description="Processes and threads of a job.")
    default_open_files: Count = Field(DEFAULT_LIMITS.open_files, description="Open files of one process.")
    default_output_bytes: Size = Field(DEFAULT_LIMITS.output_bytes, description="Output of a job.")
    default_file_bytes: Size = Field(DEFAULT_LIMITS.file_bytes, description="Size of one file.")
    default_disk_bytes: Size = Field(DEFAULT_LIMITS.disk_bytes, description="Files of a job together.")

    max_wall_time: Time = Field(MAXIMUM_LIMITS.wall_time, description="Most real time a job may ask for.")
    max_cpu_time: Time = Field(MAXIMUM_LIMITS.cpu_time, description="Most processor time a job may ask for.")
    max_memory_bytes: Size = Field(MAXIMUM_LIMITS.memory_bytes, description="Most memory a job may ask for.")
    max_processes: Count = Field(MAXIMUM_LIMITS.processes, description="Most processes a job may ask for.")
    max_open_files: Count = Field(MAXIMUM_LIMITS.open_files, description="Most open files a job may ask for.")
    max_output_bytes: Size = Field(MAXIMUM_LIMITS.output_bytes, description="Most output a job may ask for.")
    max_file_bytes: Size = Field(MAXIMUM_LIMITS.file_bytes, description="Largest file size a job may ask for.")
    max_disk_bytes: Size = Field(MAXIMUM_LIMITS.disk_bytes, description="Most disk a job may ask for.")

    @property
    def default_limits(self) -> Limits:
        """What a job gets where it sets nothing."""
        return Limits(**{name: getattr(self, f"default_{name}") for name in LIMIT_NAMES})

    @property
    def maximum_limits(self) -> Limits:
        """What a job may ask for."""
        return Limits(**{name: getattr(self, f"max_{name}") for name in LIMIT_NAMES})

    @model_validator(mode="after")
    def _defaults_fit(self) -> Self:
        wrong = [
            f"{PREFIX}DEFAULT_{name.upper()} ({default}) is over {PREFIX}MAX_{name.upper()} ({maximum})"
            for name in LIMIT_NAMES
            if (default := getattr(self, f"default_{name}")) > (maximum := getattr(self, f"max_{name}"))
        ]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self
