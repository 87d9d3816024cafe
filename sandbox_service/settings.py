"""Settings of the sandbox service: environment variables that begin with `SANDBOX_`, read here and nowhere else.

Times are seconds (`10`) or carry a unit (`500ms`, `10s`, `2m`, `1h`); sizes are bytes (`1048576`) or carry one
(`512MiB`).
"""

import os
import re
from datetime import timedelta
from typing import Annotated, Literal, Self

from codemend.rpc import parse_address
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from sandbox_service.cells import KINDS
from sandbox_service.domain import DEFAULT_LIMITS, LIMIT_NAMES, MAXIMUM_LIMITS, Limits

PREFIX = "SANDBOX_"

_TIME_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE_UNITS = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_QUANTITY = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")


def parse_time(value: object) -> object:
    """A text such as `10`, `10s` or `1.5m` as a timedelta; what is no text is left to pydantic.

    Raises:
        ValueError: the text is no time.
    """
    if not isinstance(value, str):
        return value
    number, unit = _quantity(value, _TIME_UNITS, "10, 10s, 500ms, 2m or 1h")
    return timedelta(seconds=float(number) * _TIME_UNITS[unit])


def parse_size(value: object) -> object:
    """A text such as `1048576`, `512MiB` or `0.5GiB` as bytes; what is no text is left to pydantic.

    Raises:
        ValueError: the text is no size.
    """
    if not isinstance(value, str):
        return value
    number, unit = _quantity(value, _SIZE_UNITS, "1048576, 64KiB, 512MiB or 1GiB")
    return int(float(number) * _SIZE_UNITS[unit])


def _quantity(text: str, units: dict[str, float] | dict[str, int], examples: str) -> tuple[str, str]:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise ValueError(f"write it as {examples}")
    return match[1], match[2]


def _names(value: object) -> object:
    return frozenset(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _is_address(value: str) -> str:
    parse_address(value)
    return value


def _is_positive(value: timedelta) -> timedelta:
    if value <= timedelta():
        raise ValueError("must be longer than zero")
    return value


def _is_kind(value: str) -> str:
    if value not in KINDS:
        raise ValueError(f"unknown kind of cell; known: {', '.join(KINDS)}")
    return value


Time = Annotated[timedelta, BeforeValidator(parse_time), AfterValidator(_is_positive)]
Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]
Count = Annotated[int, Field(gt=0)]


class Settings(BaseSettings):
    """What an operator can set. Every limit has a default, for jobs that set nothing, and a maximum."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    address: Annotated[str, AfterValidator(_is_address)] = Field(
        "127.0.0.1:50061", description="Where to listen: host:port, [v6]:port or unix:/path. Port 0 takes a free one."
    )
    cell: Annotated[str, AfterValidator(_is_kind)] = Field("process", description="Kind of cell that jobs run in.")
    concurrency: int = Field(
        default_factory=lambda: len(os.sched_getaffinity(0)), ge=1, le=1024, description="Jobs at one time."
    )
    queue_size: int = Field(256, ge=0, le=100_000, description="Jobs that may wait; the next one is refused.")
    grace: Annotated[timedelta, BeforeValidator(parse_time), Field(ge=timedelta())] = Field(
        timedelta(seconds=30), description="Time for running jobs to end after SIGTERM."
    )
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
