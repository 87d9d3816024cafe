"""A real orchestrator for tests: in this process for speed, or `python -m orchestrator` in one of its own.

Both speak gRPC on loopback. The model behind them is a scripted endpoint, the sandbox a real service.
"""

import asyncio
import os
import signal
import sys
import tempfile
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

START_SECONDS = 40
STOP_SECONDS = 30
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
class OrchestratorProcess:
    """A service that serves: a client of it, its process, and the folder that holds its log."""

    client: Client
    process: asyncio.subprocess.Process
    folder: Path

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Waits for the end, within a bound, and returns the exit code."""
        return await asyncio.wait_for(self.process.wait(), STOP_SECONDS)

    def log(self) -> str:
        """What it has logged so far."""
        return (self.folder / "log").read_text()


@asynccontextmanager
async def orchestrator_process(*, sandbox: str, model_url: str, **env: str) -> AsyncIterator[OrchestratorProcess]:
    """`python -m orchestrator`, ready, and stopped at the end. `env` are variables such as CODEMEND_GRACE."""
    with tempfile.TemporaryDirectory(prefix="codemend-test-") as name:
        folder = Path(name)
        given = {"CODEMEND_MODEL_URL": model_url, "CODEMEND_DATA_DIR": str(folder / "data"), **env}
        process = await _start(folder, sandbox, given)
        try:
            address = await _ready(folder, process)
            channel = open_channel(address)
            try:
                yield OrchestratorProcess(Client(address, runs_pb2_grpc.RunServiceStub(channel)), process, folder)
            finally:
                await channel.close()
        finally:
            await _stop(folder, process)


async def _start(folder: Path, sandbox: str, env: Mapping[str, str]) -> asyncio.subprocess.Process:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CODEMEND_", "OPENAI_"))}
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    arguments = ("--address", "127.0.0.1:0", "--sandbox", sandbox, "--ready-file", str(folder / "address"))
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "orchestrator", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**clean, **env},
        )
    finally:
        os.close(log)


async def _ready(folder: Path, process: asyncio.subprocess.Process) -> str:
    async with asyncio.timeout(START_SECONDS):
        while not (folder / "address").exists():
            if process.returncode is not None:
                raise AssertionError(f"it ended with {process.returncode}:\n{(folder / 'log').read_text()}")
            await asyncio.sleep(0.02)
    return (folder / "address").read_text()


async def _stop(folder: Path, process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise AssertionError(f"it did not stop in {STOP_SECONDS} s:\n{(folder / 'log').read_text()}") from None


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
