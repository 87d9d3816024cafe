"""Puts the parts together and runs them until a signal comes: models, sandbox client, stores, manager, gRPC server."""

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta

from codemend.orchestrator.v1 import runs_pb2, runs_pb2_grpc
from codemend.rpc import CLEAN_UP_TIME, RpcServer, StopSignals, parse_address, serve_until_stopped

from orchestrator.api import ERRORS, Defaults, RunServicer
from orchestrator.models import EmbeddedModel, EmbeddedSettings, ModelGateway, ModelSpec
from orchestrator.offers import Offers
from orchestrator.runs import CodegenEngine, DirectoryStore, Policy, RunManager, housekeeping, open_saver
from orchestrator.sandbox_client import SandboxClient
from orchestrator.settings import Settings
from orchestrator.workflows import CODER

logger = logging.getLogger(__name__)

SERVICE = runs_pb2.DESCRIPTOR.services_by_name["RunService"]
SPARE_CALLS = 4096
"""Calls beside those that wait for runs: watchers, cancellations, health, and those on their way to a refusal."""
LONGEST_RUN = timedelta(hours=24)
EMBEDDED_CALL_TIME, EMBEDDED_IDLE_TIME = timedelta(hours=1), timedelta(minutes=5)
"""On a few busy cores a call takes minutes, and a retry would only add to that; the run's own time bounds it."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What serves runs."""

    manager: RunManager
    artifacts: DirectoryStore
    offers: Offers


async def serve(settings: Settings, on_ready: Callable[[str], None] = lambda _: None) -> None:
    """Runs the service until SIGTERM or SIGINT, then drains it.

    Args:
        settings: what the operator set.
        on_ready: called with the bound address once health says SERVING.

    Raises:
        AddressError: the address cannot be listened on.
        OSError: the data directory cannot be used.
        sqlite3.Error: the checkpoints cannot be used.
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
                    refuse=parts.manager.refuse,
                    drained=lambda: parts.manager.drain(settings.grace),
                    grace=settings.grace + CLEAN_UP_TIME,  # runs are cancelled in time to tell their watchers
                )
            finally:
                await server.stop()


def make_server(parts: Parts, settings: Settings) -> RpcServer:
    """The gRPC server over started parts; it does not listen yet."""
    defaults = Defaults(max_attempts=settings.max_attempts, timeout=settings.timeout)
    servicer = RunServicer(parts.manager, parts.artifacts, defaults, parts.offers.known)
    calls = settings.max_concurrent_runs + settings.queue_size + SPARE_CALLS
    server = RpcServer(ERRORS, reflection=settings.reflection, maximum_calls=calls)
    server.add(SERVICE, lambda target: runs_pb2_grpc.add_RunServiceServicer_to_server(servicer, target))
    return server


@contextlib.asynccontextmanager
async def running_parts(settings: Settings) -> AsyncIterator[Parts]:
    """The parts behind the servicer, started, and stopped in reverse order; runs still at work are cancelled."""
    artifacts = DirectoryStore(settings.data_dir / "artifacts")
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(artifacts.close)
        saver = await stack.enter_async_context(open_saver(settings.data_dir / "checkpoints.sqlite"))
        gateway = await stack.enter_async_context(_models(settings))
        sandbox = SandboxClient(settings.sandbox_address)
        stack.push_async_callback(sandbox.close)
        engine = CodegenEngine(
            models=gateway,
            sandbox=sandbox,
            artifacts=artifacts,
            saver=saver,
            sandbox_patience=settings.sandbox_patience,
        )
        policy = Policy(settings.max_concurrent_runs, settings.queue_size, settings.keep_runs, settings.keep_for)
        manager = RunManager(engine, policy)
        keep_for = settings.keep_for + LONGEST_RUN
        await stack.enter_async_context(housekeeping(manager, saver, artifacts, keep_for=keep_for))
        stack.push_async_callback(manager.drain, timedelta())
        yield Parts(manager, artifacts, Offers(sandbox.capabilities))


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
