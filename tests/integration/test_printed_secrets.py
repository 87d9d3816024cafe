"""A secret of the service that a program prints is kept nowhere, in no encoding, and the run is replayed all the same.

The program puts the secret together from halves, so that whatever holds the whole of it has it from the output.
"""

import base64
import sqlite3
from pathlib import Path

import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import debug_pb2, debug_pb2_grpc, regression_pb2, regression_pb2_grpc, runs_pb2
from codemend.rpc import open_channel
from support.openai_server import Scripted, scripted_openai
from support.orchestrator import CALL_SECONDS, fence, running_orchestrator, spec
from support.sandbox import running_sandbox

KEY = "sk-the-key?of>the~service"  # with characters that base64 has in two alphabets
SAYS = f"""import sys
key = {KEY[:9]!r} + {KEY[9:]!r}
print("some words before it,", key)
sys.stdout.buffer.write(b"\\xff\\xfe" + key.encode() + b"\\xff\\n")
print(key, file=sys.stderr)
"""
CODE = f"{SAYS}\ndef add(a, b):\n    print(key)\n    return a {{sign}} b\n"
TESTS = {"test_solution.py": f"{SAYS}\nfrom solution import add\n\ndef test_one():\n    assert add(1, 2) == 3, key\n"}
CHECK = f"{SAYS}\nfrom solution import add\nassert add(1, 2) == 3, key\n"


def forms(secret: bytes) -> list[bytes]:
    """How the secret looks in a text, and in base64 wherever in the bytes it begins."""
    found = [secret]
    for offset in range(3):
        sextets = base64.b64encode(bytes(offset) + secret)
        whole = sextets[-(-offset * 8 // 6) : (offset + len(secret)) * 8 // 6]
        found += [whole, whole.replace(b"+", b"-").replace(b"/", b"_")]
    return found


def kept(folder: Path) -> list[bytes]:
    """Every value of every table, and every artifact."""
    connection = sqlite3.connect(f"file:{folder / 'runs.sqlite'}?mode=ro", uri=True)
    try:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [row for table in tables for row in connection.execute(f'SELECT * FROM "{table}"')]
    finally:
        connection.close()
    values = [value if isinstance(value, bytes) else str(value).encode() for row in rows for value in row]
    return values + [path.read_bytes() for path in (folder / "artifacts").rglob("*") if path.is_file()]


@pytest_asyncio.fixture(scope="module")
async def sandbox():
    async with running_sandbox(SANDBOX_CONCURRENCY="2") as address:
        yield address


@pytest.mark.parametrize(
    "given",
    [{"tests": TESTS}, {"check_script": CHECK}, {}],
    ids=["tests", "check", "program"],
)
async def test_what_a_program_prints_is_kept_without_secrets_and_replayed_to_the_byte(sandbox, tmp_path, given):
    replies = [fence(CODE.format(sign="-")), fence(CODE.format(sign="+"))]
    async with (
        scripted_openai(replies, api_key=KEY) as model,
        running_orchestrator(
            sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path, model_retries=0, api_key=KEY
        ) as client,
        open_channel(client.address) as channel,
    ):
        run = await client.generate(spec(**given))
        assert run.result.outcome == (runs_pb2.RUN_OUTCOME_PASSED if given else runs_pb2.RUN_OUTCOME_UNVERIFIED)
        values = kept(tmp_path)
        for form in forms(KEY.encode()):
            assert not [value[:200] for value in values if form in value], form
        printed = [test.stdout for test in run.result.report.tests] + [run.result.execution.stdout.head]
        assert b"[secret]" in b"".join(printed)
        assert given or b"\xff\xfe[secret]\xff\n" in printed[-1]

        debug = debug_pb2_grpc.DebugServiceStub(channel)
        request = debug_pb2.ReplayRunRequest(run_id=run.run_id)
        replayed = await debug.ReplayRun(request, timeout=CALL_SECONDS)
        assert not replayed.HasField("divergence"), replayed.divergence
        assert replayed.equal_steps > 0

        cases = regression_pb2_grpc.RegressionServiceStub(channel)
        await cases.CreateCase(regression_pb2.CreateCaseRequest(run_id=run.run_id, name="it"), timeout=CALL_SECONDS)
        call = cases.RunSuite(regression_pb2.RunSuiteRequest(), timeout=CALL_SECONDS)
        (answer, _) = [one async for one in call]
        assert (answer.case_result.passed, answer.case_result.reason) == (True, "")
        assert not [form for value in kept(tmp_path) for form in forms(KEY.encode()) if form in value]


async def test_what_a_model_says_is_told_and_kept_without_secrets(sandbox, tmp_path):
    said = fence(f"# {KEY}\ndef add(a, b):\n    return a + b\n")
    async with (
        scripted_openai([Scripted(text=said, chunk_chars=7, chunk_delay=0.06)], api_key=KEY) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path, api_key=KEY) as client,
    ):
        run = await client.generate(spec(tests={"test_solution.py": "def test_one():\n    assert True\n"}))
        events = await client.events(run.run_id)
    assert run.result.outcome == runs_pb2.RUN_OUTCOME_PASSED
    assert "# [secret]\n" in "".join(event.model_tokens.text for event in events)
    assert b"# [secret]\n" in run.result.files[0].content
    assert not [value[:200] for value in kept(tmp_path) for form in forms(KEY.encode()) if form in value]
