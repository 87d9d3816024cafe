"""`codemend eval` as a person uses it: task sets through real services, with a scripted model where one is needed."""

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.cli import outcome_of, run_cli, started_cli
from support.openai_server import Scripted, scripted_openai
from support.orchestrator import fence, running_orchestrator
from support.sandbox import running_sandbox

OWN_TASKS = Path(__file__).parents[1] / "data" / "tasks.jsonl"
DATA = Path(os.environ.get("CODEMEND_DATA") or Path(__file__).parents[3] / "shared" / "data")


def row(name: str, factor: int, **fields) -> dict[str, object]:
    return {
        "id": name,
        "source": "here",
        "license": "Apache-2.0",
        "prompt": f"Write times(x): x times {factor}.",
        "entry_point": "times",
        "tests": {
            "test_solution.py": f"from solution import times\n\ndef test_it():\n    assert times(10) == {10 * factor}\n"
        },
        "reference": {"solution.py": f"def times(x):\n    return x * {factor}\n"},
        "buggy": {"solution.py": f"def times(x):\n    return x + {factor}\n"},
        **fields,
    }


def write_set(folder: Path, *rows: dict[str, object]) -> str:
    (folder / "set.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return "set.jsonl"


def solve(body):
    """A model that gets task 3 wrong for ever, task 2 at first, and the others right."""
    text = "\n".join(str(message["content"]) for message in body["messages"])
    factor = int(text.split("x times ")[1].split(".")[0])
    first = len(body["messages"]) <= 2 and "return x" not in text
    wrong = factor == 3 or (factor == 2 and first)
    return fence(f"def times(x):\n    return x {'+' if wrong else '*'} {factor}")


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[str]:
    async with running_sandbox() as address:
        yield address


@pytest.fixture
def evaluate(sandbox, tmp_path):
    """Runs `codemend eval` against an orchestrator whose model is `script`; gives the outcome and the model."""

    async def run(script, *arguments, **settings):
        async with (
            scripted_openai(script) as model,
            running_orchestrator(
                sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path / "data", model_retries=0, **settings
            ) as service,
        ):
            return await run_cli("eval", *arguments, "--address", service.address, cwd=tmp_path), model

    return run


def records(path: Path) -> dict[str, dict[str, object]]:
    return {one["id"]: one for one in map(json.loads, path.read_text().splitlines())}


async def test_own_task_set_is_right(tmp_path, sandbox):
    done = await run_cli("eval", str(OWN_TASKS), "--reference", "--sandbox-address", sandbox, cwd=tmp_path)
    count = len(OWN_TASKS.read_text().splitlines())
    assert (done.code, done.out.splitlines()[-1]) == (0, f"{count} of {count} PASSED")
    done = await run_cli("eval", str(OWN_TASKS), "--buggy", "--sandbox-address", sandbox, cwd=tmp_path)
    assert (done.code, done.out.splitlines()[-1].endswith(" NOT PASSED")) == (0, True)


async def test_humaneval_references_pass(tmp_path, sandbox):
    data = DATA / "humaneval.jsonl"
    if not data.exists():
        if os.environ.get("CI"):
            pytest.fail(f"{data} is missing")
        pytest.skip(f"{data} is missing; CODEMEND_DATA names the folder")
    done = await run_cli("eval", str(data), "--reference", "--sandbox-address", sandbox, cwd=tmp_path, within=110)
    assert (done.code, done.out.splitlines()[-1]) == (0, "164 of 164 PASSED")


async def test_reference_that_fails_is_listed_with_its_reason(tmp_path, sandbox):
    wrong = row("t/2", 2, reference={"solution.py": "def times(x):\n    return x\n"})
    name = write_set(tmp_path, row("t/1", 1), wrong)
    done = await run_cli("eval", name, "--reference", "--sandbox-address", sandbox, cwd=tmp_path)
    assert done.code == 1
    assert "t/2: FAILED" in done.out
    assert "      left  = 10" in done.out
    assert done.out.splitlines()[-1] == "1 of 2 PASSED"


async def test_buggy_version_that_passes_is_listed(tmp_path, sandbox):
    name = write_set(tmp_path, row("t/2", 2), row("t/3", 3, buggy={"solution.py": "def times(x):\n    return x * 3\n"}))
    done = await run_cli("eval", name, "--buggy", "--sandbox-address", sandbox, cwd=tmp_path)
    assert done.code == 1
    assert "t/3: PASSED" in done.out
    assert done.out.splitlines()[-1] == "1 of 2 NOT PASSED"


async def test_bad_rows_are_told_with_line_and_field(tmp_path):
    bad = row("t/2", 2, tests={"../t.py": ""}, extra=1)
    del bad["prompt"]
    name = write_set(tmp_path, row("t/1", 1), bad, row("t/1", 1))
    with (tmp_path / name).open("a") as stream:
        stream.write("{\n")
    done = await run_cli("eval", name, "--reference", cwd=tmp_path)
    assert done.code == 2
    for said in ("line 2: prompt: ", "line 2: tests: ", "line 2: extra: ", "line 3: id: 't/1' stands", "line 4: "):
        assert said in done.err


async def test_loop_measures_first_attempts_and_repairs(evaluate, tmp_path):
    name = write_set(tmp_path, *(row(f"t/{factor}", factor) for factor in (1, 2, 3, 4)))
    done, _ = await evaluate(solve, name, "--attempts", "3", "--concurrency", "1", "--out", "r.jsonl")
    assert done.code == 0
    assert "[2/4] t/2 PASSED after 2 attempts" in done.out
    for words in (
        ["pass@1", "2 of 4", "(50.0 %)"],
        ["pass after repair", "3 of 4", "(75.0 %)"],
        ["tasks with a verdict", "4"],
    ):
        assert any(all(word in line for word in words) for line in done.out.splitlines()), words
    found = records(tmp_path / "r.jsonl")
    assert [one["passed"] for one in found["t/2"]["attempts"]] == [False, True]
    assert found["t/1"]["code_hash"]
    assert found["t/1"]["input_tokens"] == 11
    assert found["t/3"]["outcome"] in {"FAILED", "STUCK"}
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


async def test_errors_are_recorded_and_tried_again(sandbox, tmp_path):
    name = write_set(tmp_path, *(row(f"t/{factor}", factor) for factor in (1, 2, 4)))
    broken = True

    def script(body):
        return Scripted(status=401, error="no such key") if broken and "times 4" in str(body) else solve(body)

    async with (
        scripted_openai(script) as model,
        running_orchestrator(
            sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path / "data", model_retries=0
        ) as service,
    ):
        arguments = ["eval", name, "--out", "r.jsonl", "--address", service.address]
        first = await run_cli(*arguments, cwd=tmp_path)
        asked = len(model.requests)
        with (tmp_path / "r.jsonl").open("a") as stream:
            stream.write('{"id": "t/9", "finger')  # as a crash leaves it
        broken = False
        second = await run_cli(*arguments, cwd=tmp_path)
        third = await run_cli(*arguments, "--attempts", "2", cwd=tmp_path)
    assert first.code == 3
    assert "t/4 ERROR" in first.out
    assert "1 tasks ended in an error" in first.err
    assert second.code == 0
    assert "2 of 3 tasks have their verdict in r.jsonl already" in second.err
    assert "times 4" in str(model.requests[asked].body)
    assert "pass after repair" in second.out
    assert "3 of 3" in second.out
    assert "already" not in third.err, "other settings are another experiment"
    assert len(records(tmp_path / "r.jsonl")) == 3


async def test_ctrl_c_keeps_what_has_ended_and_cancels_the_rest(sandbox, tmp_path):
    name = write_set(tmp_path, row("t/1", 1), row("t/4", 4))

    def script(body):
        reply = solve(body)
        return Scripted(text=reply, stall_after=1) if "times 4" in str(body) else reply

    async with (
        scripted_openai(script) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path / "data") as service,
    ):
        arguments = ["eval", name, "--out", "r.jsonl", "--concurrency", "1", "--address", service.address]
        async with started_cli(*arguments, cwd=tmp_path) as process:
            await model.wait_for_requests(2)
            process.send_signal(signal.SIGINT)
            done = await outcome_of(process)
        await model.wait_for_disconnects()
    assert done.code == 130
    assert "the same command goes on from there" in done.err
    assert list(records(tmp_path / "r.jsonl")) == ["t/1"]


async def test_chosen_tasks_only(evaluate, tmp_path):
    name = write_set(tmp_path, *(row(f"t/{factor}", factor) for factor in (1, 4, 5, 6)))
    done, _ = await evaluate(solve, name, "--ids", "t/6,t/4,t/5", "--limit", "2")
    assert done.code == 0
    assert list(records(tmp_path / "out" / "eval-set.jsonl")) in (["t/6", "t/4"], ["t/4", "t/6"])
    done, _ = await evaluate(solve, name, "--ids", "t/7")
    assert done.code == 2
    assert "--ids: no task has the id 't/7'" in done.err


async def test_file_that_is_no_file_of_results_is_left_alone(tmp_path):
    name = write_set(tmp_path, row("t/1", 1))
    (tmp_path / "notes.txt").write_text("mine")
    done = await run_cli("eval", name, "--out", "notes.txt", "--address", "127.0.0.1:1", cwd=tmp_path)
    assert done.code == 2
    assert "--out: 'notes.txt' is no file of results: line 1 is no record" in done.err
    assert (tmp_path / "notes.txt").read_text() == "mine"
