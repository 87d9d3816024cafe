"""A sandbox service whose cells answer by script: the real servicer and real gRPC in this process, and no program runs.

For what a real program cannot be made to do on demand: a forged report, a forbidden call, cells that cannot start.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from codemend.rpc import RpcServer, parse_address
from codemend.sandbox.v1 import sandbox_pb2_grpc as pb_grpc
from google.protobuf.message import Message

from sandbox_service.api import ERRORS
from sandbox_service.cells import OutputSink
from sandbox_service.domain import NO_LEASE, Job, JobOutcome, Lease
from sandbox_service.errors import SandboxError
from sandbox_service.idempotency import IdempotencyKeys
from sandbox_service.scheduler import Scheduler
from sandbox_service.server import SERVICE, make_keys, make_servicer
from sandbox_service.settings import Settings
from support.cells import HeldCells

Answer = JobOutcome | SandboxError | Callable[[Job], JobOutcome]


class ScriptedCells(HeldCells):
    """A CellKind that gives one answer a job, in order, the last one again and again; a function makes its own."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        super().__init__()
        self._answers = list(answers)

    async def run(self, job: Job, sink: OutputSink | None = None, *, lease: Lease = NO_LEASE) -> JobOutcome:
        """The next answer."""
        self.started.append(job)
        self.sinks.append(sink)
        self.leases.append(lease)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        await asyncio.sleep(0)
        if isinstance(answer, SandboxError):
            raise answer
        return answer if isinstance(answer, JobOutcome) else answer(job)


@dataclass
class ScriptedSandbox:
    """A service that serves, and what came to it."""

    address: str
    cells: ScriptedCells
    keys: IdempotencyKeys[Message]


@asynccontextmanager
async def scripted_sandbox(
    *answers: Answer, address: str = "127.0.0.1:0", concurrency: int = 2
) -> AsyncIterator[ScriptedSandbox]:
    """Serves these answers."""
    settings = Settings(address=address, concurrency=concurrency)
    cells, keys = ScriptedCells(answers), make_keys(settings)
    scheduler = Scheduler(cells, concurrency=settings.concurrency, queue_size=settings.queue_size)
    server = RpcServer(ERRORS, reflection=False, maximum_calls=100)
    servicer = make_servicer(scheduler, cells, settings, keys)
    server.add(SERVICE, lambda target: pb_grpc.add_SandboxServiceServicer_to_server(servicer, target))
    bound = await server.start(parse_address(settings.address))
    try:
        yield ScriptedSandbox(str(bound), cells, keys)
    finally:
        await scheduler.stop()
        await server.stop()
