"""Puts the parts together and runs them until a signal comes: cells, scheduler, servicer, gRPC server.

Cells are started before any gRPC object is made: they hold processes that fork, and gRPC must not be near a fork.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import version

from codemend.rpc import CLEAN_UP_TIME, RpcServer, StopSignals, finished, parse_address, serve_until_stopped
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sandbox_pb2_grpc as pb_grpc
from google.protobuf.message import Message

from sandbox_service import cells
from sandbox_service.api import ERRORS, SandboxServicer, SessionRules, StreamLimits
from sandbox_service.cells import CellKind
from sandbox_service.errors import CellUnavailable
from sandbox_service.exposition import exposed
from sandbox_service.idempotency import IdempotencyKeys
from sandbox_service.languages import LANGUAGES
from sandbox_service.metrics import Metrics
from sandbox_service.scheduler import Scheduler
from sandbox_service.sessions import Capacity, SessionStore, Terms
from sandbox_service.settings import PREFIX, Settings
from sandbox_service.validation import Rules

logger = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["SandboxService"]
WORKERS = 8
"""Threads for what would hold up other calls: archives, diffs and workspaces of thousands of files."""
SPARE_CALLS = 256
"""Calls beside the jobs that run and wait and beside all streams: those of sessions, capabilities, health, reflection,
and those on their way to a refusal."""


async def serve(settings: Settings, on_ready: Callable[[str], None] = lambda _: None) -> None:
    """Runs the service until SIGTERM or SIGINT, then drains it.

    Args:
        settings: what the operator set.
        on_ready: called with the bound address once health says SERVING.

    Raises:
        CellUnavailable: this machine cannot run the cells asked for.
        AddressError: the address cannot be listened on.
    """
    workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="work")
    asyncio.get_running_loop().set_default_executor(workers)  # for what `to_thread` is given, here and below
    with StopSignals() as signals:
        try:
            kind = cells.create(
                settings.cell,
                require=settings.require,
                environments=settings.environments,
                docker=settings.docker,
                ahead=settings.cells_ahead,
            )
        except ValueError as error:
            raise CellUnavailable(f"{PREFIX}CELL or {PREFIX}REQUIRE: {error}") from error
        try:
            if await finished(_bring_up(kind, settings), unless=signals.first):
                _report_protections(kind)
                await _serve_cells(kind, settings, signals, on_ready)
        finally:
            await kind.stop()


async def _bring_up(kind: CellKind, settings: Settings) -> None:
    await kind.start()
    try:
        kind.degrade(await cells.prove(kind, settings.allow_degraded))
    except ValueError as error:
        raise CellUnavailable(f"{PREFIX}ALLOW_DEGRADED: {error}") from error


async def _serve_cells(
    kind: CellKind, settings: Settings, signals: StopSignals, on_ready: Callable[[str], None]
) -> None:
    metrics = Metrics()
    scheduler = Scheduler(
        kind,
        concurrency=settings.concurrency,
        queue_size=settings.queue_size,
        tenant_running=settings.tenant_running,
        tenant_waiting=settings.tenant_waiting,
        observer=metrics,
    )
    server = RpcServer(
        ERRORS,
        reflection=settings.reflection,
        maximum_calls=settings.concurrency + settings.queue_size + settings.max_streams + SPARE_CALLS,
        stall=settings.stream_stall_time,
    )
    keys = make_keys(settings)
    _watch(metrics, scheduler, kind, keys, settings)
    sessions = make_sessions(settings, kind)
    metrics.watch("sessions", "Sessions now.", lambda: sessions.count)
    metrics.watch("session_bytes", "Bytes of the files of all sessions.", lambda: sessions.held_bytes)
    servicer = make_servicer(scheduler, kind, settings, keys, sessions)
    metrics.watch("streams", "Streaming calls now, with those whose readers have stalled.", lambda: servicer.streams)
    server.add(SERVICE, lambda target: pb_grpc.add_SandboxServiceServicer_to_server(servicer, target))
    try:
        async with _exposed(metrics, settings), sessions.sweeping():
            bound = await server.start(parse_address(settings.address))
            await server.set_serving()
            logger.info("serving", extra={"address": str(bound), "pid": os.getpid(), "cell": kind.name})
            on_ready(str(bound))

            def refuse_new() -> None:
                sessions.refuse_new()
                scheduler.refuse_new()

            await serve_until_stopped(
                server, signals, refuse=refuse_new, drained=scheduler.drained, grace=settings.grace
            )
    finally:
        await server.stop()
        if not await finished(scheduler.stop(), unless=signals.second, within=CLEAN_UP_TIME):
            logger.error("jobs did not end in time; their cells are removed by force")


@asynccontextmanager
async def _exposed(metrics: Metrics, settings: Settings) -> AsyncIterator[None]:
    """Serves the metrics over HTTP, where that is asked for."""
    if not settings.metrics_address:
        yield
        return
    async with exposed(metrics.registry, parse_address(settings.metrics_address)) as bound:
        logger.info("metrics", extra={"address": str(bound)})
        yield


def _watch(
    metrics: Metrics, scheduler: Scheduler, kind: CellKind, keys: IdempotencyKeys[Message], settings: Settings
) -> None:
    metrics.watch_scheduler(scheduler.stats, places=settings.concurrency)
    metrics.watch_cells(kind)
    metrics.watch("idempotency_results", "Results remembered for idempotency keys.", lambda: keys.remembered)
    metrics.watch("idempotency_bytes", "Bytes of those results.", lambda: keys.remembered_bytes)
    metrics.watch("idempotency_replays", "Calls answered by another call's job.", lambda: keys.replayed)


def make_keys(settings: Settings) -> IdempotencyKeys[Message]:
    """The memory of calls with an idempotency key."""
    return IdempotencyKeys(
        window=settings.idempotency_window,
        maximum_bytes=settings.idempotency_bytes,
        size_of=lambda message: message.ByteSize(),
    )


def make_sessions(settings: Settings, kind: CellKind) -> SessionStore:
    """The store of sessions, whose cells go with them."""
    return SessionStore(_capacity(settings), on_end=kind.forget)


def _capacity(settings: Settings) -> Capacity:
    return Capacity(settings.max_sessions, settings.max_sessions_per_tenant, settings.session_bytes)


def make_servicer(
    scheduler: Scheduler,
    kind: CellKind,
    settings: Settings,
    keys: IdempotencyKeys[Message],
    sessions: SessionStore | None = None,
) -> SandboxServicer:
    """The servicer over started cells; without a store of sessions it gets one of its own."""
    languages = kind.language_versions()
    rules = Rules(
        defaults=settings.default_limits,
        maximums=settings.maximum_limits,
        languages=tuple(languages),
        environments=tuple(environment.name for environment in settings.environments),
        shared_only=tuple(name for name in languages if not LANGUAGES[name].separates),
        not_covered=tuple(name for name in languages if not LANGUAGES[name].covers),
    )
    return SandboxServicer(
        scheduler,
        kind,
        rules,
        keys,
        sessions=sessions or make_sessions(settings, kind),
        session_rules=SessionRules(
            Terms(
                settings.default_session_idle_ttl,
                settings.default_session_ttl,
                min(settings.default_disk_bytes, settings.session_bytes),
            ),
            Terms(
                settings.max_session_idle_ttl,
                settings.max_session_ttl,
                min(settings.max_disk_bytes, settings.session_bytes),
            ),
            _capacity(settings),
        ),
        stream_limits=StreamLimits(settings.max_streams, settings.max_streams_per_tenant),
        concurrency=settings.concurrency,
        queue_size=settings.queue_size,
        version=version("codemend"),
    )


def _report_protections(kind: CellKind) -> None:
    for protection in kind.protections():
        if not protection.in_force:
            extra = {"protection": protection.name, "detail": protection.detail}
            logger.warning("a protection is not in force on this machine", extra=extra)
