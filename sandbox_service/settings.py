"""Settings of the sandbox service: environment variables that begin with `SANDBOX_`, read here and nowhere else."""

import os
from datetime import timedelta
from typing import Annotated, Literal, Self

from codemend.rpc import AddressText, Size, Time, TimeOrNone, parse_address
from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from sandbox_service.cells import KINDS, DockerOptions, Reuse
from sandbox_service.domain import DEFAULT_LIMITS, LIMIT_NAMES, MAXIMUM_LIMITS, MIB, Limits
from sandbox_service.languages import DEFAULT_ENVIRONMENTS, Environment, parse_environments

PREFIX = "SANDBOX_"
_DOCKER = DockerOptions()


def _names(value: object) -> object:
    return frozenset(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _environments(value: object) -> object:
    return parse_environments(value) if isinstance(value, str) else value


def _is_kind(value: str) -> str:
    if value not in KINDS:
        raise ValueError(f"unknown kind of cell; known: {', '.join(KINDS)}")
    return value


def _is_metrics_address(value: str) -> str:
    if value and parse_address(value).path:
        raise ValueError("metrics are read over HTTP: write host:port or [::1]:port")
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
    cells_ahead: int = Field(
        default_factory=lambda: min(len(os.sched_getaffinity(0)), 8),
        ge=0,
        le=256,
        description="Process cells of each template that are made before their jobs come.",
    )
    queue_size: int = Field(256, ge=0, le=100_000, description="Jobs that may wait; the next one is refused.")
    tenant_running: int | None = Field(None, ge=1, description="Jobs of one tenant at one time; unset: any number.")
    tenant_waiting: int | None = Field(
        None, ge=0, description="Jobs of one tenant that may wait; unset: at most three for each place still free."
    )
    idempotency_window: Time = Field(
        timedelta(minutes=10), description="How long the result of a call with an idempotency key is remembered."
    )
    idempotency_bytes: Size = Field(
        64 * MIB, ge=4 * MIB, description="Results remembered for idempotency keys, together; the oldest go first."
    )
    metrics_address: Annotated[str, AfterValidator(_is_metrics_address)] = Field(
        "", description="Where to serve Prometheus metrics over HTTP: host:port. Empty: nowhere."
    )
    grace: TimeOrNone = Field(timedelta(seconds=30), description="Time for running jobs to end after SIGTERM.")
    reflection: bool = Field(default=True, description="Whether callers may ask for the contract by gRPC reflection.")
    require: Annotated[frozenset[str], NoDecode, BeforeValidator(_names)] = Field(
        frozenset(), description="Protections, separated by commas, without which the service refuses to start."
    )
    environments: Annotated[tuple[Environment, ...], NoDecode, BeforeValidator(_environments)] = Field(
        DEFAULT_ENVIRONMENTS,
        description="Sets of preinstalled packages, separated by commas: base, data, and name=dist1+dist2 of your own.",
    )
    allow_degraded: Annotated[frozenset[str], NoDecode, BeforeValidator(_names)] = Field(
        frozenset(),
        description="Protections, separated by commas, that may fail the start-up proof; replies then say so.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Least level that is logged.")

    docker_host: str = Field(
        _DOCKER.host,
        pattern=r"^(unix:///|tcp://).+",
        validation_alias=AliasChoices(f"{PREFIX}DOCKER_HOST", "DOCKER_HOST"),
        description="Container engine of docker cells: unix:///path or tcp://host:port. Unset: DOCKER_HOST.",
    )
    docker_image: str = Field("", description="Image of docker cells; empty: codemend-sandbox of this version.")
    docker_runtime: str = Field(
        _DOCKER.runtime, min_length=1, description="Runtime of docker cells: runsc (gVisor), or another by name."
    )
    docker_pool: int = Field(_DOCKER.warm, ge=0, le=1024, description="Warm containers of each template.")
    docker_reuse: Reuse = Field(
        _DOCKER.reuse, description="Whose jobs may share a container, one after another: job, session or tenant."
    )

    max_sessions: Count = Field(1024, description="Sessions at one time.")
    max_sessions_per_tenant: Count = Field(512, description="Sessions of one tenant at one time.")
    session_bytes: Size = Field(1024 * MIB, description="Files of all sessions together, in the service's memory.")
    max_streams: Count = Field(1024, description="Streaming calls at one time.")
    max_streams_per_tenant: Count = Field(512, description="Streaming calls of one tenant at one time.")
    stream_stall_time: Time = Field(
        timedelta(seconds=30), description="Time for the reader of a stream to take one message; then its call ends."
    )
    default_session_idle_ttl: Time = Field(
        timedelta(minutes=15), description="Time without a call that ends a session."
    )
    max_session_idle_ttl: Time = Field(timedelta(hours=4), description="Most such time a session may ask for.")
    default_session_ttl: Time = Field(timedelta(hours=4), description="Time that ends a session whatever happens.")
    max_session_ttl: Time = Field(timedelta(hours=24), description="Most such time a session may ask for.")

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
    def docker(self) -> DockerOptions:
        """What docker cells are made of."""
        return DockerOptions(
            host=self.docker_host,
            image=self.docker_image,
            runtime=self.docker_runtime,
            warm=self.docker_pool,
            reuse=self.docker_reuse,
            limits=self.default_limits,
        )

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
            for name in (*LIMIT_NAMES, "session_idle_ttl", "session_ttl")
            if (default := getattr(self, f"default_{name}")) > (maximum := getattr(self, f"max_{name}"))
        ]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self
