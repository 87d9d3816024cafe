"""A real orchestrator for tests: in this process for speed, or `python -m orchestrator` in one of its own.

Both speak gRPC on loopback. The model behind them is a scripted endpoint, the sandbox a real service.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codemend.orchestrator.v1 import runs_pb2 as pb
from codemend.orchestrator.v1 import runs_pb2_grpc
from codemend.rpc import open_channel, parse_address
from codemend.sandbox.v1 import sandbox_pb2

from orchestrator.server import Parts, make_server, running_parts
from orchestrator.settings import Settings
from support.service import ServiceProcess, service_process

CALL_SECONDS = 60


@dataclass(frozen=True)
class Client:
    """A client's view: the stub, and for an orchestrator of this process its parts."""

    address: str
    stub: Any
    parts: Parts | None = None

    async def generate(self, spec: pb.RunSpec, request_id: str = "", *, within: float = CALL_SECONDS) -> pb.Run:
        """Creates a run and waits for its end."""
        request = pb.GenerateRequest(request_id=request_id, spec=spec)
        return (await self.stub.Generate(request, timeout=within)).run

    async def create(self, spec: pb.RunSpec, request_id: str = "") -> pb.Run:
        """Creates a run."""
        request = pb.CreateRunRequest(request_id=request_id, spec=spec)
        return (await self.stub.CreateRun(request, timeout=CALL_SECONDS)).run

    async def get(self, run_id: str) -> pb.Run:
        """Asks for a run."""
        return (await self.stub.GetRun(pb.GetRunRequest(run_id=run_id), timeout=CALL_SECONDS)).run

    async def cancel(self, run_id: str, reason: str = "") -> pb.Run:
        """Cancels a run."""
        request = pb.CancelRunRequest(run_id=run_id, reason=reason)
        return (await self.stub.CancelRun(request, timeout=CALL_SECONDS)).run

    async def events(self, run_id: str, after: int = 0) -> list[pb.RunEvent]:
        """All events of a run after a number, up to its end."""
        call = self.stub.WatchRun(pb.WatchRunRequest(run_id=run_id, after_sequence=after), timeout=CALL_SECONDS)
        try:
            return [response.event async for response in call if response.HasField("event")]
        finally:
            call.cancel()

    async def wait_for(self, run_id: str, wanted: Callable[[pb.RunEvent], bool]) -> pb.RunEvent:
        """The first event that is wanted."""
        call = self.stub.WatchRun(pb.WatchRunRequest(run_id=run_id), timeout=CALL_SECONDS)
        try:
            async for response in call:
                if wanted(response.event):
                    return response.event
        finally:
            call.cancel()
        raise AssertionError("the run ended without the event that was waited for")


@asynccontextmanager
async def running_orchestrator(
    *, sandbox: str, model_url: str, data_dir: Path, **settings: Any
) -> AsyncIterator[Client]:
    """An orchestrator in this process. `settings` are fields of Settings, such as max_concurrent_runs=1."""
    chosen = Settings(
        address="127.0.0.1:0", sandbox_address=sandbox, model_url=model_url, data_dir=data_dir, grace=0, **settings
    )
    async with running_parts(chosen) as parts:
        server = make_server(parts, chosen)
        bound = await server.start(parse_address(chosen.address))
        await server.set_serving()
        channel = open_channel(str(bound))
        try:
            yield Client(str(bound), runs_pb2_grpc.RunServiceStub(channel), parts)
        finally:
            await channel.close()
            await server.stop()


@dataclass(frozen=True)
class OrchestratorProcess(ServiceProcess):
    """A service that serves, with a client of it."""

    client: Client


@asynccontextmanager
async def orchestrator_process(*, sandbox: str, model_url: str, **env: str) -> AsyncIterator[OrchestratorProcess]:
    """`python -m orchestrator`, ready, and stopped at the end. `env` are variables such as CODEMEND_GRACE."""
    given = {"CODEMEND_MODEL_URL": model_url, "CODEMEND_DATA_DIR": "{folder}/data", **env}
    arguments = ["--address", "127.0.0.1:0", "--sandbox", sandbox]
    async with service_process("orchestrator", arguments, given, without=("CODEMEND_", "OPENAI_")) as service:
        channel = open_channel(service.address)
        try:
            client = Client(service.address, runs_pb2_grpc.RunServiceStub(channel))
            yield OrchestratorProcess(service.address, service.process, service.folder, client)
        finally:
            await channel.close()


def fence(code: str) -> str:
    """A reply that holds this code."""
    return f"```python\n{code}\n```"


def spec(task: str = "Write add(a, b).", *, tests: Mapping[str, str] | None = None, **options: Any) -> pb.RunSpec:
    """A specification. `tests` are sources by path; fields of CodegenInput go there, other options to RunOptions."""
    fields = {field.name for field in pb.CodegenInput.DESCRIPTOR.fields}
    task_fields = {name: value for name, value in options.items() if name in fields}
    run_options = {name: value for name, value in options.items() if name not in fields}
    files = [sandbox_pb2.File(path=path, content=text.encode()) for path, text in (tests or {}).items()]
    return pb.RunSpec(
        codegen=pb.CodegenInput(task=task, tests=files, **task_fields), options=pb.RunOptions(**run_options)
    )
