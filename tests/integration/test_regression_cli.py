"""`codemend suite`: the shipped suite played with nothing but this checkout, and cases of a running service."""

import asyncio
import json
import signal
from pathlib import Path

import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import runs_pb2
from support.cli import CLI_SECONDS, outcome_of, run_cli, started_cli
from support.openai_server import Scripted, scripted_openai
from support.orchestrator import fence, running_orchestrator, spec
from support.sandbox import running_sandbox

SUITE = Path(__file__).parents[1] / "data" / "suite.jsonl"
PROMPTS = Path(__file__).parents[2] / "orchestrator" / "workflows" / "prompts"
NOWHERE = {"CODEMEND_ORCHESTRATOR": "127.0.0.1:1", "CODEMEND_SANDBOX_ADDRESS": "127.0.0.1:1"}
TESTS = {"test_solution.py": "from solution import add\n\ndef test_one():\n    assert add(1, 2) == 3\n"}
RIGHT = fence("def add(a, b):\n    return a + b")
WRONG = fence("def add(a, b):\n    return a - b")


def shipped() -> list[dict]:
    return [json.loads(line) for line in SUITE.read_text("utf-8").splitlines()]


async def test_the_shipped_suite_ends_as_recorded_without_any_service(tmp_path):
    done = await run_cli("suite", "run", str(SUITE), cwd=tmp_path, env=NOWHERE)
    assert done.code == 0, done.out + done.err
    count = len(shipped())
    assert done.out.splitlines()[-1].startswith(f"{count} cases: {count} as expected, 0 flipped")


def test_the_shipped_suite_holds_every_kind_of_run():
    cases = [line["case"] for line in shipped()]
    outcomes = [case["expectation"]["outcome"] for case in cases]
    repaired = [case for case in cases if "repair" in case["expectation"]["path"]]
    assert SUITE.stat().st_size < 200_000
    assert len(cases) >= 5
    assert set(outcomes) == {"PASSED", "FAILED"}
    assert "FAILED" in {case["expectation"]["outcome"] for case in repaired}
    assert "PASSED" in {case["expectation"]["outcome"] for case in repaired}
    assert any(case["spec"]["task"]["check_script"] for case in cases)
    assert any(case["spec"]["options"]["candidates"] == 2 for case in cases)
    assert any(case["spec"]["task"]["files"] for case in cases)
    assert all(case["model"]["name"] for case in cases)


async def test_a_changed_prompt_file_flips_the_shipped_suite_and_names_the_first_step(tmp_path):
    changed = (PROMPTS / "system.md").read_text("utf-8") + "\nNever use recursion.\n"
    (tmp_path / "system.md").write_text(changed, "utf-8")
    done = await run_cli("suite", "run", str(SUITE), "--prompt", "system=@system.md", cwd=tmp_path, env=NOWHERE)
    assert done.code == 1, done.out + done.err
    count = len(shipped())
    lines = done.out.splitlines()
    assert lines[-1].startswith(f"{count} cases: 0 as expected, {count} flipped")
    assert sum(line.startswith("FLIPPED") for line in lines) == count
    assert "    first difference: step 1, generate, prompt" in lines
    assert "      +Never use recursion." in lines


async def test_a_prompt_of_repairs_alone_flips_the_runs_that_were_repaired(tmp_path):
    changed = (PROMPTS / "repair.md").read_text("utf-8") + "\nThink twice.\n"
    done = await run_cli(
        "suite", "run", str(SUITE), "--prompt", f"repair={changed}", "--json", cwd=tmp_path, env=NOWHERE
    )
    *results, report = done.json_lines
    flipped = [line["case_result"] for line in results if not line["case_result"].get("passed")]
    assert (done.code, report["report"]["flipped"]) == (1, len(flipped))
    repaired = {line["name"] for line in shipped() if any("repair/" in one["name"] for one in line["case"]["tape"])}
    assert {result["case"]["name"] for result in flipped} == repaired != set()
    assert {result["divergence"]["node"] for result in flipped} == {"repair"}
    assert {result["divergence"]["kind"] for result in flipped} == {"prompt"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.jsonl"], "FILE: cannot read"),
        (["empty.jsonl"], "FILE: 'empty.jsonl' holds no case"),
        (["wrong.jsonl"], "FILE: wrong.jsonl: line 2"),
        ([str(SUITE), "--case", "none"], "--case: "),
        ([str(SUITE), "--prompt", "system"], "--prompt: "),
        ([str(SUITE), "--prompt", "nothing=x"], "options.prompts[nothing]"),
        ([str(SUITE), "--record", "x"], "--record: "),
        ([], "FILE: give a file of cases, or the --address"),
    ],
)
async def test_a_wrong_use_is_refused_by_name(tmp_path, arguments, words):
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "wrong.jsonl").write_text('\n{"name": "x", "case": {}}\n')
    done = await run_cli("suite", "run", *arguments, cwd=tmp_path)
    assert (done.code, words in done.err) == (2, True), done.err


async def test_a_service_that_is_not_there_is_told(tmp_path):
    done = await run_cli("suite", "list", "--address", "127.0.0.1:1", cwd=tmp_path)
    assert done.code == 3
    assert "cannot reach the orchestrator at 127.0.0.1:1" in done.err


@pytest_asyncio.fixture(scope="module")
async def sandbox():
    async with running_sandbox(SANDBOX_CONCURRENCY="2") as address:
        yield address


@pytest.mark.timeout(300)  # a dozen commands, each a process of its own
async def test_cases_of_a_service_are_made_moved_run_and_deleted(sandbox, tmp_path):
    async with (
        scripted_openai([WRONG, RIGHT]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path / "data") as client,
    ):
        run = await client.generate(spec(tests=TESTS))

        async def suite(*arguments):
            return await run_cli("suite", *arguments, cwd=tmp_path, env={"CODEMEND_ORCHESTRATOR": client.address})

        made = await suite("create", run.run_id, "--name", "add")
        assert (made.code, "PASSED" in made.out) == (0, True), made.err
        assert (await suite("create", run.run_id, "--name", "add", "--expect", "failed")).code == 3
        other = await suite("create", run.run_id, "--name", "add", "--expect", "failed", "--replace")
        assert (other.code, other.out.split()[0], "FAILED" in other.out) == (0, made.out.split()[0], True), other.err
        assert (await suite("create", run.run_id, "--name", "add", "--replace")).code == 0
        assert (await suite("list")).out.split()[:2] == made.out.split()[:2]
        assert (await suite("export", "--out", "cases.jsonl")).code == 0
        assert (await suite("export", "add")).out == (tmp_path / "cases.jsonl").read_text("utf-8")
        assert (await suite("run")).out.splitlines()[-1].startswith("1 case: 1 as expected")
        assert (await suite("delete", "add")).code == 0
        assert (await suite("run")).code == 2
        again = await suite("import", "cases.jsonl")
        assert (again.code, "add" in again.out) == (0, True), again.err
        flipped = await suite("run", "--prompt", "system=Answer in verse.")
        assert (flipped.code, "step 1, generate, prompt" in flipped.out) == (1, True), flipped.err
        assert len(model.requests) == 2


@pytest.mark.timeout(300)
async def test_a_file_is_recorded_anew_by_running_it_live(sandbox, tmp_path):
    async with (
        scripted_openai([WRONG, RIGHT, RIGHT]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path / "data") as client,
    ):
        env = {"CODEMEND_ORCHESTRATOR": client.address}
        run = await client.generate(spec(tests=TESTS))
        await run_cli("suite", "create", run.run_id, "--name", "add", cwd=tmp_path, env=env)
        await run_cli("suite", "export", "--out", "cases.jsonl", cwd=tmp_path, env=env)
        before = json.loads((tmp_path / "cases.jsonl").read_text("utf-8"))
        done = await run_cli("suite", "run", "cases.jsonl", "--live", "--record", "cases.jsonl", cwd=tmp_path, env=env)
        assert done.code == 0, done.out + done.err
        after = json.loads((tmp_path / "cases.jsonl").read_text("utf-8"))
        assert [len(one["case"]["tape"]) for one in (before, after)] == [4, 2]
        played = await run_cli("suite", "run", "cases.jsonl", cwd=tmp_path, env=NOWHERE)
        assert played.code == 0, played.out


@pytest.mark.timeout(300)
async def test_a_case_of_which_no_run_can_be_made_stays_as_it_is_when_a_file_is_recorded_anew(sandbox, tmp_path):
    async with (
        scripted_openai([WRONG, RIGHT, RIGHT]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path / "data") as client,
    ):
        env = {"CODEMEND_ORCHESTRATOR": client.address}
        run = await client.generate(spec(tests=TESTS))
        await run_cli("suite", "create", run.run_id, "--name", "add", cwd=tmp_path, env=env)
        await run_cli("suite", "export", "--out", "cases.jsonl", cwd=tmp_path, env=env)
        other = json.loads((tmp_path / "cases.jsonl").read_text("utf-8"))
        other["name"], other["case"]["spec"]["options"]["environment"] = "gone", "nowhere"
        with (tmp_path / "cases.jsonl").open("a") as stream:
            stream.write(json.dumps(other) + "\n")
        done = await run_cli("suite", "run", "cases.jsonl", "--live", "--record", "new.jsonl", cwd=tmp_path, env=env)
        assert (done.code, "the sandbox has no 'nowhere'" in done.out) == (1, True), done.out + done.err
        after = {line["name"]: line for line in map(json.loads, (tmp_path / "new.jsonl").read_text().splitlines())}
        assert after["gone"] == other
        assert len(after["add"]["case"]["tape"]) == 2


@pytest.mark.timeout(300)
async def test_cases_of_a_file_are_run_beside_those_of_a_service_and_leave_it_as_it_was(sandbox, tmp_path):
    gate = asyncio.Event()
    async with (
        scripted_openai([WRONG, RIGHT, RIGHT, RIGHT, Scripted(text=RIGHT, gate=gate)]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path / "data") as client,
    ):
        env = {"CODEMEND_ORCHESTRATOR": client.address}

        async def suite(*arguments):
            return await run_cli("suite", *arguments, cwd=tmp_path, env=env)

        repaired = await client.generate(spec(tests=TESTS))
        await suite("create", repaired.run_id, "--name", "add")
        await suite("export", "--out", "cases.jsonl")
        await suite("delete", "add")
        other = await client.generate(spec("Add two numbers.", tests=TESTS))
        await suite("create", other.run_id, "--name", "add")
        kept = (await suite("export")).out
        done = await suite("run", "cases.jsonl", "--live", "--record", "new.jsonl")
        assert (done.code, done.out.splitlines()[0].split()[:2]) == (0, ["ok", "add"]), done.out + done.err
        after = json.loads((tmp_path / "new.jsonl").read_text("utf-8"))
        assert (after["name"], len(after["case"]["tape"])) == ("add", 2)
        assert (await suite("export")).out == kept

        async with started_cli("suite", "run", "cases.jsonl", "--live", cwd=tmp_path, env=env) as process:
            await model.wait_for_requests(5, timeout=CLI_SECONDS)
            process.send_signal(signal.SIGINT)
            left = await outcome_of(process)
        assert (left.code, "Traceback" in left.err) == (130, False), left.err
        assert (await suite("export")).out == kept


@pytest.mark.timeout(300)
async def test_a_case_whose_new_run_is_cancelled_stays_as_it_was_recorded(sandbox, tmp_path):
    gate = asyncio.Event()
    async with (
        scripted_openai([WRONG, RIGHT, Scripted(text=RIGHT, gate=gate)]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path / "data") as client,
    ):
        env = {"CODEMEND_ORCHESTRATOR": client.address}
        run = await client.generate(spec(tests=TESTS))
        await run_cli("suite", "create", run.run_id, "--name", "add", cwd=tmp_path, env=env)
        before = await run_cli("suite", "export", cwd=tmp_path, env=env)
        async with started_cli("suite", "run", "--live", "--record", "new.jsonl", cwd=tmp_path, env=env) as process:
            await model.wait_for_requests(3, timeout=CLI_SECONDS)
            listed = await client.stub.ListRuns(runs_pb2.ListRunsRequest(page_size=1), timeout=CLI_SECONDS)
            await client.cancel(listed.runs[0].run_id)
            done = await outcome_of(process)
        assert (done.code, "add: stays as it was recorded: its run was cancelled" in done.err) == (1, True), done.err
        assert (tmp_path / "new.jsonl").read_text("utf-8") == before.out
        assert (await run_cli("suite", "export", cwd=tmp_path, env=env)).out == before.out
