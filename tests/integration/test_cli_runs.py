"""`codemend runs` as a person uses it: real processes, real services, a scripted model."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import debug_pb2, runs_pb2
from google.protobuf.json_format import ParseDict
from support.cli import command_line, environment, outcome_of, run_cli
from support.openai_server import scripted_openai
from support.orchestrator import fence, running_orchestrator, spec
from support.sandbox import running_sandbox

TESTS = {
    "test_solution.py": "from solution import divide\n\ndef test_two():\n    assert divide(4, 2) == 2\n\n"
    "def test_by_zero():\n    assert divide(4, 0) is None\n"
}
WRONG = fence("def divide(a, b):\n    return a / b")
WRONG_TOO = fence("def divide(a, b):\n    return 0 if b == 0 else a / b")
RIGHT = fence("def divide(a, b):\n    return None if b == 0 else a / b")
NOTE = "Mind that b may be zero."


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[str]:
    async with running_sandbox() as address:
        yield address


class Terminal:
    """A person before an orchestrator that stays."""

    def __init__(self, service, model, cwd) -> None:
        self.service, self.model, self.cwd = service, model, cwd

    async def runs(self, *arguments, code=0):
        """Gives what `codemend runs` printed."""
        done = await run_cli("runs", *arguments, cwd=self.cwd, env={"CODEMEND_ORCHESTRATOR": self.service.address})
        assert done.code == code, done.err
        return done

    async def waiting(self, **options) -> runs_pb2.Run:
        """A run that waits before its first repair."""
        run = await self.service.create(spec("Write divide.", tests=TESTS, interrupt_before=["repair"], **options))
        await self.service.wait_for(run.run_id, lambda event: event.HasField("wait"))
        return await self.service.get(run.run_id)

    async def passed(self) -> runs_pb2.Run:
        """A run that has passed after one repair."""
        return await self.service.generate(spec("Write divide.", tests=TESTS))


@pytest_asyncio.fixture
async def terminal(sandbox, tmp_path) -> AsyncIterator[Terminal]:
    def script(body):
        prompt = "\n".join(str(message["content"]) for message in body["messages"])
        if "FRESH PROMPT" in prompt:
            return WRONG_TOO
        return RIGHT if NOTE in prompt or "ZeroDivisionError" in prompt else WRONG

    async with (
        scripted_openai(script) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path / "data") as service,
    ):
        yield Terminal(service, model, tmp_path)


async def test_list_filters_by_state_and_label(terminal):
    passed = await terminal.passed()
    waiting = await terminal.waiting()
    done = await terminal.runs("list", "--state", "waiting")
    assert waiting.run_id in done.out
    assert passed.run_id not in done.out
    lines = (await terminal.runs("list", "--json")).json_lines
    assert [line["run_id"] for line in lines] == [waiting.run_id, passed.run_id]
    assert not (await terminal.runs("list", "--label", "ticket=1")).out


async def test_show_is_a_tree_of_nodes_with_verdicts_and_the_reasons_of_routes(terminal):
    run = await terminal.passed()
    out = (await terminal.runs("show", run.run_id)).out
    assert "PASSED after 2 attempts" in out
    tree = out[out.index(f"{run.run_id} SUCCEEDED") :]
    assert "generate (attempt 1)" in tree
    assert "11 tokens in, 7 out" in tree
    assert "attempt 1 draft: FAILED 1/2 tests" in tree
    assert "-> repair: attempt 1 failed" in tree
    assert "given: attempts 2 B" in tree
    assert "attempt 2 repair: PASSED 2/2 tests" in tree


async def test_show_of_a_run_that_waits_ends_and_tells_what_it_waits_for(terminal):
    run = await terminal.waiting()
    out = (await terminal.runs("show", run.run_id)).out
    assert f"waits (before repair) at checkpoint {run.wait.checkpoint_id}, next: repair" in out


async def test_watch_goes_on_after_a_number_and_leaves_with_the_outcome(terminal):
    run = await terminal.passed()
    *events, last = (await terminal.runs("watch", run.run_id, "--after", "3", "--json")).json_lines
    numbers = [ParseDict(event, runs_pb2.WatchRunResponse()).event.sequence for event in events]
    assert numbers == list(range(4, run.last_sequence + 1))
    assert last["run"]["state"] == "RUN_STATE_SUCCEEDED"


async def test_cancel_ends_a_waiting_run_and_keeps_the_reason(terminal):
    run = await terminal.waiting()
    done = await terminal.runs("cancel", run.run_id, "--reason", "no longer needed")
    assert "CANCELLED" in done.out
    assert (await terminal.service.get(run.run_id)).cancel_reason == "no longer needed"


async def test_checkpoints_say_what_changed_and_states_can_be_looked_at(terminal):
    run = await terminal.waiting()
    out = (await terminal.runs("checkpoints", run.run_id)).out
    assert f"{run.wait.checkpoint_id}  loop  next: repair" in out
    assert 'strategy "draft" -> "repair"' in out
    drafted = next(
        one
        for one in (await terminal.runs("checkpoints", run.run_id, "--json")).json_lines
        if one["next"] == ["execute"]
    )
    done = await terminal.runs("state", run.run_id, drafted["checkpoint_id"], "--files", "then")
    assert json.loads(done.out)["draft"]["number"] == 1
    assert "return a / b" in (terminal.cwd / "then" / "solution.py").read_text()


async def test_an_edited_note_reaches_the_model_when_the_run_is_resumed(terminal):
    run = await terminal.waiting()
    edited = await terminal.runs("edit", run.run_id, "--set", f"plan.note={NOTE}")
    assert "waits (edited)" in edited.out
    resumed = await terminal.runs("resume", run.run_id, "--no-breaks", "--watch")
    assert "PASSED after 2 attempts" in resumed.out
    assert NOTE in terminal.model.requests[-1].prompt


async def test_a_stale_edit_and_a_run_that_does_not_wait_are_refused_by_name(terminal):
    run = await terminal.waiting()
    await terminal.runs("edit", run.run_id, "--set", f"plan.note={NOTE}")
    stale = await terminal.runs(
        "edit", run.run_id, "--set", "plan.note=late", "--checkpoint", run.wait.checkpoint_id, code=3
    )
    assert "ABORTED" in stale.err
    assert run.wait.checkpoint_id in stale.err
    passed = await terminal.passed()
    refused = await terminal.runs("resume", passed.run_id, code=3)
    assert f"{passed.run_id} does not wait; it is SUCCEEDED" in refused.err
    unknown = await terminal.runs("edit", run.run_id, "--set", "plan.colour=red", code=2)
    assert "colour" in unknown.err


async def test_step_stops_before_the_next_node_where_a_file_can_be_laid_over_the_draft(terminal):
    run = await terminal.waiting()
    stepped = await terminal.runs("resume", run.run_id, "--step", "--watch")
    assert "waits (step)" in stepped.out
    assert "next: execute" in stepped.out
    (terminal.cwd / "fix.py").write_text("def divide(a, b):\n    return a / b if b else None  # by hand\n")
    await terminal.runs("edit", run.run_id, "--file", "solution.py=@fix.py")
    await terminal.runs("resume", run.run_id, "--no-breaks", "--watch")
    ended = await terminal.service.get(run.run_id)
    assert ended.result.outcome == runs_pb2.RUN_OUTCOME_PASSED
    assert b"# by hand" in ended.result.files[0].content


async def test_a_fork_goes_its_own_way_and_the_two_can_be_compared(terminal):
    run = await terminal.passed()
    before_repair = next(
        one
        for one in (await terminal.runs("checkpoints", run.run_id, "--json")).json_lines
        if one.get("next") == ["repair"]
    )
    options = ["--checkpoint", before_repair["checkpoint_id"], "--model", "other-model", "--label", "try=2"]
    forked = await terminal.runs("fork", run.run_id, *options, "--watch", "--json")
    fork = ParseDict(forked.json_lines[-1], runs_pb2.GetRunResponse()).run
    assert fork.origin.run_id == run.run_id
    assert fork.result.outcome == runs_pb2.RUN_OUTCOME_PASSED
    assert fork.labels == {"try": "2"}
    assert terminal.model.requests[-1].body["model"] == "other-model"
    compared = await terminal.runs("compare", run.run_id, fork.run_id)
    assert "steps in common" in compared.out
    assert (await terminal.service.get(run.run_id)).result == run.result


async def test_json_has_what_is_false_zero_and_empty(terminal):
    run = await terminal.passed()
    events = [line["event"] for line in (await terminal.runs("watch", run.run_id, "--json")).json_lines[:-1]]
    assert [event["attempt"]["passed"] for event in events if "attempt" in event] == [False, True]
    assert [event["node_started"]["attempt"] for event in events if "node_started" in event][2] == 0
    points = (await terminal.runs("checkpoints", run.run_id, "--json")).json_lines
    assert [point["step"] for point in points] == [*range(len(points) - 2, -1, -1), -1]
    assert points[0]["next"] == []
    shown = (await terminal.runs("state", run.run_id, "--json")).json_lines[0]
    assert shown["interrupts"] == []
    compared = (await terminal.runs("compare", run.run_id, run.run_id, "--json")).json_lines[0]
    assert (compared["result_changes"], compared["files_diff"]) == ([], "")
    for arguments in (("list", "--json"), ("cancel", run.run_id, "--json")):
        (line,) = (await terminal.runs(*arguments)).json_lines
        assert (line.get("run") or line)["recoveries"] == 0


async def test_a_fork_is_watched_from_its_beginning_without_how_it_was_made(terminal):
    run = await terminal.passed()
    point = (await terminal.runs("checkpoints", run.run_id, "--json")).json_lines[2]
    arguments = ["--checkpoint", point["checkpoint_id"], "--set", "base=1"]
    forked = await terminal.runs("fork", run.run_id, *arguments, "--as-node", "execute", "--watch")
    assert "PASSED" in forked.out
    assert "base changed as execute, now checkpoint" in forked.out
    assert "waits" not in forked.out
    waiting = (await terminal.runs("fork", run.run_id, *arguments, "--wait", "--json")).json_lines[0]["run"]
    shown = await terminal.runs("watch", waiting["run_id"], "--until-wait")
    assert "waits (edited fork) at checkpoint" in shown.out
    assert "being made" not in shown.out


async def test_a_fork_that_is_refused_leaves_no_run(terminal):
    run = await terminal.passed()
    refused = await terminal.runs("fork", run.run_id, "--set", "base=1", "--as-node", "nope", code=2)
    assert "nope" in refused.err
    few = await terminal.runs("fork", run.run_id, "--set", "base=1", "--max-attempts", "1", code=2)
    assert "must be at least 2, not 1" in few.err
    assert [line["run_id"] for line in (await terminal.runs("list", "--json")).json_lines] == [run.run_id]


@pytest.mark.parametrize(
    ("closed", "said"), [(">&-", ""), ("2>&-", "SUCCEEDED"), ("<&-", "SUCCEEDED"), (">&- 2>&-", "")]
)
async def test_a_command_without_a_stream_does_its_work_without_it(terminal, closed, said):
    run = await terminal.passed()
    command = command_line("runs", "show", run.run_id, "--address", terminal.service.address)
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", f'"$@" {closed}', "sh", *command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
        cwd=terminal.cwd,
    )
    done = await outcome_of(process)
    assert (done.code, done.err) == (0, "")
    assert said in done.out
    assert bool(said) == bool(done.out)


async def test_a_fork_can_wait_for_a_look_at_it(terminal):
    run = await terminal.passed()
    forked = await terminal.runs("fork", run.run_id, "--set", f"plan.note={NOTE}", "--as-node", "decide", "--wait")
    assert "WAITING" in forked.out


async def test_a_replay_is_equal_and_a_changed_prompt_is_told_by_its_first_step(terminal):
    run = await terminal.passed()
    asked = len(terminal.model.requests)
    equal = await terminal.runs("replay", run.run_id)
    assert "the original's, byte for byte" in equal.out
    (terminal.cwd / "system.md").write_text("FRESH PROMPT: write Python.\n")
    differs = await terminal.runs("replay", run.run_id, "--prompt", "system=@system.md", code=1)
    assert "first difference at step" in differs.out
    assert "prompt" in differs.out
    answer = (await terminal.runs("replay", run.run_id, "--json")).json_lines[0]
    assert not ParseDict(answer, debug_pb2.ReplayRunResponse()).HasField("divergence")
    assert len(terminal.model.requests) == asked


async def test_run_leaves_a_run_at_its_breakpoint_and_detaches_where_it_is_asked_to(terminal):
    (terminal.cwd / "test_solution.py").write_text(TESTS["test_solution.py"])
    env = {"CODEMEND_ORCHESTRATOR": terminal.service.address}
    arguments = ["run", "Write divide.", "--tests", "test_solution.py", "--break-before", "repair", "--label", "a=b"]
    stopped = await run_cli(*arguments, cwd=terminal.cwd, env=env)
    assert stopped.code == 0
    assert "waits (before repair)" in stopped.out
    left = await run_cli(*arguments, "--detach", cwd=terminal.cwd, env=env)
    run = await terminal.service.get(left.out.strip())
    assert list(run.labels.items()) == [("a", "b")]
    refused = await run_cli(*arguments, cwd=terminal.cwd)
    assert refused.code == 2
    assert "--break-before: the run outlives this command" in refused.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("list", "--state", "asleep"), "--state: 'asleep' is no state"),
        (("list", "--label", "x"), "--label: 'x' is not KEY=VALUE"),
        (("edit", "run_1"), "nothing is to be changed"),
        (("edit", "run_1", "--set", "plan"), "--set: 'plan' is not FIELD=VALUE"),
        (("edit", "run_1", "--set", "plan=1", "--set", "plan.note=2"), "lies below a field that is given whole"),
        (("edit", "run_1", "--file", "solution.py"), "--file: 'solution.py' is not PATH=@FILE"),
        (("resume", "run_1", "--no-breaks", "--break-after", "decide"), "--no-breaks: it cannot be given together"),
        (("resume", "run_1", "--answer", "yes"), "--answer: 'yes' is not ID=VALUE"),
        (("fork", "run_1", "--as-node", "decide"), "--as-node: it needs a change"),
        (("replay", "run_1", "--prompt", "system"), "--prompt: 'system' is not NAME=@FILE"),
        (("show", "run_1", "--address", "nowhere"), "--address"),
    ],
)
async def test_refusals_name_the_option_before_any_service_is_asked(tmp_path, arguments, said):
    done = await run_cli("runs", *arguments, cwd=tmp_path)
    assert done.code == 2
    assert said in done.err
