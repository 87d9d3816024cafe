"""Replicas of the orchestrator as processes over one database, which are killed, started again, and asked by turns.

A client of theirs puts up with that: it follows a run's events from the last number it has seen, at whichever replica
answers, lets the run go on at each breakpoint, and insists that every number comes once and in order.
"""

import asyncio
import contextlib
import itertools
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
from codemend.orchestrator.v1 import debug_pb2, debug_pb2_grpc, runs_pb2_grpc
from codemend.orchestrator.v1 import runs_pb2 as pb
from codemend.rpc import open_channel

from support.forked import ForkedOrchestrator
from support.orchestrator import Client

CALL_SECONDS = 60
TERMINAL = frozenset({pb.RUN_STATE_SUCCEEDED, pb.RUN_STATE_FAILED, pb.RUN_STATE_CANCELLED})
BROKEN_OFF = frozenset({"cancelled", "StoreUnavailable", "Fenced"})
"""What is told of a node that was at work when its service, its database or its claim went away."""
_GONE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED})
_MOVED_ON = frozenset({grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ABORTED})

T = TypeVar("T")


class Replica:
    """One replica: a fixed address and name, and a process that comes and goes."""

    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.name = name
        self._env = {**env, "CODEMEND_REPLICA_ID": name}
        self._channel = open_channel(self.address)
        self.client = Client(self.address, runs_pb2_grpc.RunServiceStub(self._channel))
        self.debug: Any = debug_pb2_grpc.DebugServiceStub(self._channel)
        self.service: ForkedOrchestrator | None = None
        self.faults: list[str] = []  # what its processes have logged as errors

    async def start(self) -> None:
        """Starts the process and waits until it serves."""
        self.service = await ForkedOrchestrator.start(["--address", self.address], self._env)

    async def kill(self) -> None:
        """Kills the process, as a machine's end does."""
        service, self.service = self.service, None
        assert service is not None
        self._keep(service.log())
        await service.kill()

    async def stop(self) -> None:
        """Ends the process by SIGTERM, where it is not gone already, and waits for its end."""
        service, self.service = self.service, None
        if service is not None:
            service.send(signal.SIGTERM)
            service.send(signal.SIGCONT)  # a test that failed may have left it paused
            self._keep(service.log())
            code = await service.ended()
            assert code == 0, f"{self.name} ended with {code}"

    def _keep(self, log: str) -> None:
        self.faults += [line for line in log.splitlines() if '"level": "ERROR"' in line or "Traceback" in line]

    async def close(self) -> None:
        """Ends the process and the channel."""
        await self.stop()
        await self._channel.close()


@dataclass
class Followed:
    """What was seen of a run, whichever replica told it."""

    run_id: str
    events: list[pb.RunEvent] = field(default_factory=list)

    def of(self, kind: str) -> list[Any]:
        """The payloads of one kind, as "node_started"."""
        return [getattr(event, kind) for event in self.events if event.WhichOneof("payload") == kind]

    @property
    def ends(self) -> list[int]:
        """Numbers of the events that say that the run has ended."""
        return [
            event.sequence
            for event in self.events
            if event.HasField("state_changed") and event.state_changed.state in TERMINAL
        ]

    @property
    def steps_ended(self) -> int:
        """How many steps have come to their end."""
        return len(self.of("node_finished"))

    def begun_again(self) -> list[str]:
        """Steps that were begun although they had come to their end."""
        over: set[str] = set()
        found = []
        for event in self.events:
            if event.HasField("node_finished") and event.node_finished.error not in BROKEN_OFF:
                over.add(event.node_finished.step_id)
            elif event.HasField("node_started") and event.node_started.step_id in over:
                found.append(f"{event.node_started.node} of attempt {event.node_started.attempt}")
        return found


class Cluster:
    """The replicas, and a client of whichever answers."""

    def __init__(self, replicas: list[Replica]) -> None:
        self.replicas = replicas
        self._turn = itertools.cycle(replicas)

    async def asked(self, ask: Callable[[Replica], Awaitable[T]]) -> T:
        """The answer of the first replica that has one; they are asked by turns."""
        async with asyncio.timeout(CALL_SECONDS):
            while True:
                replica = self._next()
                try:
                    return await ask(replica)
                except grpc.aio.AioRpcError as error:
                    if error.code() not in _GONE:
                        raise
                await _reachable(replica)

    def faults(self) -> str:
        """What the replicas have logged as errors."""
        return "\n".join(line for replica in self.replicas for line in replica.faults)

    async def create(self, spec: pb.RunSpec, request_id: str) -> pb.Run:
        """Creates a run, once however often it had to be asked for."""
        return await self.asked(lambda replica: replica.client.create(spec, request_id))

    async def get(self, run_id: str) -> pb.Run:
        """The run."""
        return await self.asked(lambda replica: replica.client.get(run_id))

    async def follow(self, seen: Followed) -> None:
        """Takes in all events up to the run's end, each once and in order; lets the run go on whenever it waits."""
        while not seen.ends:
            replica = self._next()
            try:
                await self._watch(replica, seen)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _GONE:
                    raise
                await _reachable(replica)

    async def _watch(self, replica: Replica, seen: Followed) -> None:
        request = pb.WatchRunRequest(run_id=seen.run_id, after_sequence=len(seen.events))
        call = replica.client.stub.WatchRun(request)
        try:
            async for response in call:
                if not response.HasField("event"):
                    continue
                event = response.event
                assert event.sequence == len(seen.events) + 1, f"event {event.sequence} after {len(seen.events)}"
                seen.events.append(event)
                if event.HasField("wait"):
                    await self._go_on(seen.run_id, event.wait.checkpoint_id)
        finally:
            call.cancel()

    async def _go_on(self, run_id: str, checkpoint_id: str) -> None:
        request = debug_pb2.ResumeRunRequest(run_id=run_id, checkpoint_id=checkpoint_id)
        try:
            await self.asked(lambda replica: replica.debug.ResumeRun(request, timeout=CALL_SECONDS))
        except grpc.aio.AioRpcError as error:
            if error.code() not in _MOVED_ON:  # it had gone on, and the answer was lost with the replica
                raise

    def _next(self) -> Replica:
        alive = [replica for replica in self.replicas if replica.service is not None]
        return next(replica for replica in self._turn if replica in alive or not alive)


async def _reachable(replica: Replica) -> None:
    """Waits until something listens at the address, or for the time that another one may be asked after."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(0.1):
            while True:
                try:
                    _, writer = await asyncio.open_connection(*replica.address.rsplit(":", 1))
                except ConnectionRefusedError:
                    await asyncio.sleep(0.01)
                else:
                    writer.close()
                    return


@asynccontextmanager
async def running_cluster(
    *names: str, sandbox: str, model_url: str, data_dir: str, database_url: str = "", **env: str
) -> AsyncIterator[Cluster]:
    """Replicas of these names, started one after the other, and ended at the end.

    Args:
        names: their replica ids.
        sandbox: address of the sandbox service.
        model_url: of the scripted endpoint.
        data_dir: their data directory, as that of one machine.
        database_url: empty: SQLite in the data directory.
        env: further variables, such as CODEMEND_GRACE.
    """
    given = {
        "CODEMEND_MODEL_URL": model_url,
        "CODEMEND_SANDBOX_ADDRESS": sandbox,
        "CODEMEND_DATA_DIR": data_dir,
        **({"CODEMEND_DATABASE_URL": database_url} if database_url else {}),
        **env,
    }
    cluster = Cluster([Replica(name, given) for name in names])
    try:
        for replica in cluster.replicas:
            await replica.start()
        yield cluster
    finally:
        for replica in cluster.replicas:
            await replica.close()
