"""A service all of whose places are taken, so that whatever comes waits; and what it says of jobs that came."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
from codemend.sandbox.v1 import sandbox_pb2 as pb
from support.jobs import CALL_SECONDS, files, limits
from support.kinds import PLACES, Running

_HOLD = "import time\nprint('up', flush=True)\ntime.sleep(1000)"


@dataclass(frozen=True)
class Tenant:
    """A tenant that has not been here before, so that no job but its own tells what its jobs will take."""

    running: Running
    name: str = field(default_factory=lambda: f"places-{secrets.token_hex(4)}")

    def execute(
        self, code: str, seconds: float = CALL_SECONDS, wall_time: float = 10
    ) -> grpc.aio.UnaryUnaryCall[pb.ExecuteRequest, pb.ExecuteResponse]:
        """Calls for one program."""
        return self.running.sandbox.stub.Execute(
            pb.ExecuteRequest(program=_program(code, wall_time)), timeout=seconds, metadata=self._metadata
        )

    async def waits_in_vain(self, seconds: float) -> None:
        """A call whose deadline passes while it waits; with twice the time until it has been seen to wait."""
        seen = False
        while not seen:
            call = self.execute("pass", seconds)
            while not call.done():
                seen |= await asyncio.to_thread(waiting, self.running) == 1
            assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED, await call.details()
            seconds *= 2

    @asynccontextmanager
    async def with_all_places(self) -> AsyncIterator[None]:
        """Its jobs hold every place of the service until the end."""
        await self.execute("pass")
        program = pb.ExecuteStreamRequest(program=_program(_HOLD, 100))
        stream = self.running.sandbox.stub.ExecuteStream
        calls = [stream(program, timeout=CALL_SECONDS, metadata=self._metadata) for _ in range(PLACES)]
        try:
            for call in calls:
                assert (await call.read()).stdout_chunk == b"up\n"
            yield
        finally:
            for call in calls:
                call.cancel()

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("x-codemend-tenant", self.name),)


def _program(code: str, wall_time: float) -> pb.Program:
    return pb.Program(files=files({"main.py": code}), entry="main.py", limits=limits(wall_time=wall_time))


def started(running: Running) -> float:
    """Jobs that have got a place since the service started."""
    queued = running.metrics()["codemend_sandbox_queue_seconds"]
    return sum(value for (ending, *_), value in queued.items() if ending == "_count")


def waiting(running: Running) -> float:
    """Jobs that wait now."""
    return running.metrics()["codemend_sandbox_jobs_waiting"]["",]
