"""Puts the parts together and runs them until a signal comes: models, sandbox client, stores, manager, gRPC server."""

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta

from codemend.orchestrator.v1 import (
    debug_pb2,
    debug_pb2_grpc,
    regression_pb2,
    regression_pb2_grpc,
    runs_pb2,
    runs_pb2_grpc,
)
from codemend.rpc import CLEAN_UP_TIME, RpcServer, StopSignals, parse_address, serve_until_stopped

from orchestrator.api import ERRORS, DebugServicer, Defaults, RegressionServicer, RunServicer
from orchestrator.models import EmbeddedModel, EmbeddedSettings, ModelGateway, ModelSpec
from orchestrator.offers import Offers
from orchestrator.runs import Limits, Policy, Retention, RunParts, RunSettings, running_runs
from orchestrator.sandbox_client import SandboxClient
from orchestrator.settings import Settings
from orchestrator.tracing import Traced, no_headers, open_tracing, trace_headers
from orchestrator.workflows import CODER

logger = logging.getLogger(__name__)

SERVICE = runs_pb2.DESCRIPTOR.services_by_name["RunService"]
DEBUG_SERVICE = debug_pb2.DESCRIPTOR.services_by_name["DebugService"]
REGRESSION_SERVICE = regression_pb2.DESCRIPTOR.services_by_name["RegressionService"]
SPARE_CALLS = 4096
"""Calls beside those that wait for runs: watchers, cancellations, health, and those on their way to a refusal."""
EMBEDDED_CALL_TIME, EMBEDDED_IDLE_TIME = timedelta(hours=1), timedelta(minutes=5)
"""On a few busy cores a call takes minutes, and a retry would only add to that; the run's own time bounds it."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What serves runs."""

    runs: RunParts
    offers: Offers


async def serve(settings: Settings, on_ready: Callable[[str], None] = lambda _: None) -> None:
    """Runs the service until SIGTERM or SIGINT, then drains it.

    Args:
        settings: what the operator set.
        on_ready: called with the bound address once health says SERVING.

    Raises:
        AddressError: the address cannot be listened on.
        OSError: the data directory cannot be used.
        StoreError: the database cannot be used.
        ValueError: the model's settings are wrong.
    """
    with StopSignals() as signals:
        async with running_parts(settings) as parts:
            server = make_server(parts, settings)
            try:
                bound = await server.start(parse_address(settings.address))
                await server.set_serving()
                logger.info("serving", extra={"address": str(bound), "pid": os.getpid()})
                on_ready(str(bound))
                await serve_until_stopped(
                    server,
                    signals,
                    refuse=parts.runs.manager.refuse,
                    drained=lambda: parts.runs.manager.drain(settings.grace),
                    grace=settings.grace + CLEAN_UP_TIME,  # runs are cancelled in time to tell their watchers
                )
            finally:
                await server.stop()


def make_server(parts: Parts, settings: Settings) -> RpcServer:
    """The gRPC server over started parts; it does not listen yet."""
    defaults = Defaults(max_attempts=settings.max_attempts, timeout=settings.timeout)
    servicer = RunServicer(parts.runs.manager, parts.runs.artifacts, defaults, parts.offers.known)
    calls = settings.max_concurrent_runs + settings.queue_size + SPARE_CALLS
    server = RpcServer(ERRORS, reflection=settings.reflection, maximum_calls=calls)
    server.add(SERVICE, lambda target: runs_pb2_grpc.add_RunServiceServicer_to_server(servicer, target))
    debugger = DebugServicer(parts.runs, parts.offers.known)
    server.add(DEBUG_SERVICE, lambda target: debug_pb2_grpc.add_DebugServiceServicer_to_server(debugger, target))
    keeper = RegressionServicer(parts.runs, model_spec(settings), parts.offers.known)
    server.add(
        REGRESSION_SERVICE, lambda target: regression_pb2_grpc.add_RegressionServiceServicer_to_server(keeper, target)
    )
    return server


@contextlib.asynccontextmanager
async def running_parts(settings: Settings) -> AsyncIterator[Parts]:
    """The parts behind the servicers, started, and stopped in reverse order; runs still at work are handed back."""
    async with contextlib.AsyncExitStack() as stack:
        tracing = await stack.enter_async_context(open_tracing(content=settings.trace_content))
        gateway = await stack.enter_async_context(_models(settings))
        sandbox = SandboxClient(settings.sandbox_address, trace_headers if tracing is not None else no_headers)
        stack.push_async_callback(sandbox.close)
        seen = tracing.wrap(gateway, sandbox) if tracing is not None else Traced(gateway, sandbox, None)
        runs = await stack.enter_async_context(
            running_runs(run_settings(settings), seen.models, seen.sandbox, seen.observer)
        )
        yield Parts(runs, Offers(sandbox.capabilities))


def run_settings(settings: Settings) -> RunSettings:
    """What the settings say of runs."""
    database_url = settings.database_url.get_secret_value()
    return RunSettings(
        data_dir=settings.data_dir,
        database_url=database_url,
        replica_id=settings.replica_id,
        policy=Policy(settings.max_concurrent_runs, settings.queue_size, settings.tenant_queue_size),
        limits=Limits(
            running=settings.global_concurrent_runs,
            tenant_running=settings.tenant_concurrent_runs,
            tenant_starts=settings.tenant_runs_per_minute,
        ),
        retention=Retention(settings.keep_for, settings.keep_runs),
        sandbox_patience=settings.sandbox_patience,
        secrets=(settings.api_key.get_secret_value(), database_url),
    )


@contextlib.asynccontextmanager
async def _models(settings: Settings) -> AsyncIterator[ModelGateway]:
    """The gateway; where no endpoint is set, the embedded model is behind it, started by its first call."""
    embedded = None
    if not settings.model_url:
        embedded = EmbeddedModel(
            EmbeddedSettings(
                model=settings.embedded_model,
                cache_dir=settings.cache_dir,
                threads=settings.embedded_threads,
                context_tokens=settings.context_tokens,
            )
        )
    gateway = ModelGateway({CODER: model_spec(settings)}, embedded=embedded)
    try:
        yield gateway
    finally:
        await gateway.aclose()
        if embedded is not None:
            await embedded.stop()


def model_spec(settings: Settings) -> ModelSpec:
    """How the coder is called. The key goes to a configured endpoint and nowhere else."""
    embedded = not settings.model_url
    return ModelSpec(
        base_url=settings.model_url,
        model=settings.model_name,
        api_key="" if embedded else settings.api_key.get_secret_value(),
        temperature=settings.temperature,
        max_output_tokens=settings.max_output_tokens,
        context_tokens=settings.context_tokens,
        call_timeout=EMBEDDED_CALL_TIME if embedded else settings.model_timeout,
        idle_timeout=EMBEDDED_IDLE_TIME if embedded else settings.model_idle_timeout,
        concurrency=settings.model_concurrency,
        max_retries=settings.model_retries,
    )
