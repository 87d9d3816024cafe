"""A gRPC server with what every service owes its callers: health, reflection, the error table and a request log.

Knows no service: names and servicers are given to it. How a process lives and stops is in `lifecycle`.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection as grpc_reflection

from codemend.rpc.addresses import Address, bind, remove_socket
from codemend.rpc.calls import STALL_TIME, CallInterceptor, CallTracker
from codemend.rpc.errors import ErrorTable
from codemend.rpc.options import server_options

logger = logging.getLogger(__name__)

HEALTH_PATIENCE = timedelta(seconds=1)
"""A health watcher that does not read holds the library's lock; a stop does not wait longer than this for it."""

CLEAN_UP_TIME = timedelta(seconds=10)
"""For cancelled work to clean up after itself."""

FLUSH_TIME = timedelta(seconds=1)
"""For the last replies to leave and for watchers of health to go, once no handler is at work."""


class RpcServer:
    """One server on one address. Order of use: `add`, `start`, `set_serving`, `set_not_serving`, `stop`."""

    def __init__(
        self, errors: ErrorTable, *, reflection: bool, maximum_calls: int, stall: timedelta = STALL_TIME
    ) -> None:
        """Makes the server; nothing listens yet.

        Args:
            errors: what domain errors become.
            reflection: whether callers may ask for the contract.
            maximum_calls: backstop for all calls at one time, health watchers included; admission is up to services.
            stall: for the caller of a stream to take one message.
        """
        self.calls = CallTracker()
        self._server = grpc.aio.server(
            interceptors=[CallInterceptor(errors, self.calls, stall=stall)],
            options=server_options(),
            maximum_concurrent_rpcs=maximum_calls,
        )
        self._health = health.aio.HealthServicer()
        self._reflection = reflection
        self._services = [""]  # the server as a whole
        self._address: Address | None = None

    def add(self, service: ServiceDescriptor, register: Callable[[grpc.aio.Server], None]) -> None:
        """Adds a service; `register` is called with the server and puts the servicer on it."""
        self._services.append(service.full_name)
        register(self._server)

    async def start(self, address: Address) -> Address:
        """Listens, with every health entry NOT_SERVING, and returns the address with its real port.

        Raises:
            AddressError: the address cannot be listened on.
        """
        for name in self._services:
            await self._health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if self._reflection:
            names = [*self._services[1:], health.SERVICE_NAME, grpc_reflection.SERVICE_NAME]
            grpc_reflection.enable_server_reflection(names, self._server)
        bound = bind(self._server, address)
        if not bound.is_private:
            logger.warning(
                "this port is unauthenticated plain text and open to other machines: put it behind a trusted network",
                extra={"address": str(bound)},
            )
        await self._server.start()
        self._address = bound
        return bound

    async def set_serving(self) -> None:
        """Health: SERVING, for the server and each of its services."""
        for name in self._services:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def set_not_serving(self) -> None:
        """Health: NOT_SERVING, for good."""
        try:
            await asyncio.wait_for(self._health.enter_graceful_shutdown(), HEALTH_PATIENCE.total_seconds())
        except TimeoutError:
            logger.warning("a health watcher does not read; stopping without it")

    async def stop(self, grace: timedelta = FLUSH_TIME) -> None:
        """Stops: no new calls; those at work are cancelled after `grace`, and their handlers get time to clean up."""
        try:
            async with asyncio.timeout((grace + CLEAN_UP_TIME).total_seconds()):
                await self._server.stop(grace.total_seconds())
                await self.calls.idle()
        except TimeoutError:
            logger.error("handlers did not clean up in time", extra={"calls": self.calls.running})  # noqa: TRY400 - its traceback would show this wait alone
        if self._address is not None:
            remove_socket(self._address)
