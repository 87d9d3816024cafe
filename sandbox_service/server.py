"""Puts the parts together and runs them until a signal comes: cells, scheduler, servicer, gRPC server.

Cells are started before any gRPC object is made: they hold processes that fork, and gRPC must not be near a fork.
"""

import logging
import os
from collections.abc import Callable
from importlib.metadata import version

from codemend.rpc import CLEAN_UP_TIME, RpcServer, StopSignals, finished, parse_address, serve_until_stopped
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sandbox_pb2_grpc as pb_grpc

from sandbox_service import cells
from sandbox_service.api import ERRORS, SandboxServicer
from sandbox_service.cells import CellKind
from sandbox_service.errors import CellUnavailable
from sandbox_service.languages import ENVIRONMENTS, LANGUAGES
from sandbox_service.scheduler import Scheduler
from sandbox_service.settings import PREFIX, Settings
from sandbox_service.validation import Rules

logger = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["SandboxService"]
SPARE_CALLS = 256
"""Calls beside the jobs that run and wait: capabilities, health, reflection, and those on their way to a refusal."""


async def serve(settings: Settings, on_ready: Callable[[str], None] = lambda _: None) -> None:
    """Runs the service until SIGTERM or SIGINT, then drains it.

    Args:
        settings: what the operator set.
        on_ready: called with the bound address once health says SERVING.

    Raises:
        CellUnavailable: this machine cannot run the cells asked for.
        AddressError: the address cannot be listened on.
    """
    with StopSignals() as signals:
        try:
            kind = cells.create(settings.cell, require=settings.require)
        except ValueError as error:
            raise CellUnavailable(f"{PREFIX}CELL or {PREFIX}REQUIRE: {error}") from error
        try:
            if await finished(kind.start(), unless=signals.first):
                _report_protections(kind)
                await _serve_cells(kind, settings, signals, on_ready)
        finally:
            await kind.stop()


async def _serve_cells(
    kind: CellKind, settings: Settings, signals: StopSignals, on_ready: Callable[[str], None]
) -> None:
    scheduler = Scheduler(kind, concurrency=settings.concurrency, queue_size=settings.queue_size)
    server = RpcServer(
        ERRORS,
        reflection=settings.reflection,
        maximum_calls=settings.concurrency + settings.queue_size + SPARE_CALLS,
    )
    servicer = make_servicer(scheduler, kind, settings)
    server.add(SERVICE, lambda target: pb_grpc.add_SandboxServiceServicer_to_server(servicer, target))
    try:
        bound = await server.start(parse_address(settings.address))
        await server.set_serving()
        logger.info("serving", extra={"address": str(bound), "pid": os.getpid(), "cell": kind.name})
        on_ready(str(bound))
        await serve_until_stopped(
            server, signals, refuse=scheduler.refuse_new, drained=scheduler.drained, grace=settings.grace
        )
    finally:
        await server.stop()
        if not await finished(scheduler.stop(), unless=signals.second, within=CLEAN_UP_TIME):
            logger.error("jobs did not end in time; their cells are removed by force")


def make_servicer(scheduler: Scheduler, kind: CellKind, settings: Settings) -> SandboxServicer:
    """The servicer over started cells."""
    rules = Rules(
        defaults=settings.default_limits,
        maximums=settings.maximum_limits,
        languages=tuple(LANGUAGES),
        environments=ENVIRONMENTS,
    )
    return SandboxServicer(
        scheduler,
        kind,
        rules,
        concurrency=settings.concurrency,
        queue_size=settings.queue_size,
        version=version("codemend"),
    )


def _report_protections(kind: CellKind) -> None:
    for protection in kind.protections():
        if not protection.in_force:
            extra = {"protection": protection.name, "detail": protection.detail}
            logger.warning("a protection is not in force on this machine", extra=extra)
