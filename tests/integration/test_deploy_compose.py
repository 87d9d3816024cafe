"""deploy/compose.yaml on the real engine: a run passes, and goes on after its orchestrator was started again."""

import asyncio

import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import runs_pb2 as pb
from codemend.orchestrator.v1 import runs_pb2_grpc
from codemend.rpc import open_channel
from support.compose import Deployment, bridge_address, deployment, lacking
from support.openai_server import Scripted, scripted_openai
from support.orchestrator import Client, fence, spec

TESTS = {"test_solution.py": "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3\n"}
RIGHT = fence("def add(a, b):\n    return a + b")
WRONG = fence("def add(a, b):\n    return a - b")
CONNECT = "import socket; socket.create_connection(({host!r}, {port}), timeout=5)"
REFUSALS = ("No route to host", "unreachable", "Name or service not known", "name resolution")

pytestmark = pytest.mark.timeout(600)


class Model:
    """The replies to come; the deployment's endpoint asks for one after the other."""

    def __init__(self) -> None:
        self.replies: list[Scripted] = []
        self.asked = asyncio.Event()

    def answer(self, _body: object) -> Scripted:
        self.asked.set()
        return self.replies.pop(0)


@pytest_asyncio.fixture(scope="module")
async def started(require):
    reason = lacking()
    require(not reason, reason)
    model = Model()
    async with scripted_openai(model.answer, host=bridge_address()) as server, deployment(server.base_url) as made:
        yield made, model, server


@pytest_asyncio.fixture
async def client(started):
    channel = open_channel(started[0].address)
    yield Client(started[0].address, runs_pb2_grpc.RunServiceStub(channel))
    await channel.close()


async def test_a_run_is_repaired_and_passes(started, client):
    _, model, _ = started
    model.replies[:] = [Scripted(text=WRONG), Scripted(text=RIGHT)]
    run = await client.generate(spec(tests=TESTS))
    assert pb.RunOutcome.Name(run.result.outcome) == "RUN_OUTCOME_PASSED"
    assert len(run.result.attempts) == 2


async def test_the_sandbox_reaches_neither_the_model_nor_the_database(started):
    made, _, server = started
    host, port = server.base_url.removeprefix("http://").removesuffix("/v1").split(":")
    reached = await asyncio.to_thread(made.inside, "orchestrator", CONNECT.format(host=host, port=port))
    assert reached.returncode == 0, reached.stderr
    for target in ((host, int(port)), ("postgres", 5432)):
        tried = await asyncio.to_thread(made.inside, "sandbox", CONNECT.format(host=target[0], port=target[1]))
        assert tried.returncode != 0, target
        assert any(reason in tried.stderr for reason in REFUSALS), tried.stderr


@pytest.mark.parametrize("service", ["orchestrator", "sandbox"])
async def test_services_are_not_root_and_cannot_write_their_root_file_system(started, service):
    made: Deployment = started[0]
    source = "import os; print(os.getuid()); open('/usr/codemend-was-here', 'w')"
    tried = await asyncio.to_thread(made.inside, service, source)
    assert tried.stdout == "10001\n"
    assert "Read-only file system" in tried.stderr


async def test_a_run_goes_on_after_its_orchestrator_was_started_again(started, client):
    made, model, _ = started
    gate = asyncio.Event()
    model.asked.clear()
    model.replies[:] = [Scripted(text=WRONG, gate=gate), Scripted(text=RIGHT)]
    run = await client.create(spec(tests=TESTS))
    async with asyncio.timeout(60):
        await model.asked.wait()
    model.replies[:] = [Scripted(text=WRONG), Scripted(text=RIGHT)]
    await asyncio.to_thread(made.compose, "kill", "orchestrator")
    await asyncio.to_thread(made.compose, "start", "orchestrator")
    await made.healthy("orchestrator")
    gate.set()
    events = await client.events(run.run_id)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    seen = await client.get(run.run_id)
    assert pb.RunOutcome.Name(seen.result.outcome) == "RUN_OUTCOME_PASSED"
