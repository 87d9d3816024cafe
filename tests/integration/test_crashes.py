"""The orchestrator is killed again and again at random moments of runs at work: nothing is lost and nothing done twice.

The model is scripted and slow, the sandbox real; both write down what they were asked for. Every run must end as it
does undisturbed, in one gapless sequence of events with one end, whichever process told which part.
"""

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import runs_pb2 as pb
from support.openai_server import ScriptedServer, scripted_openai
from support.orchestrator import running_orchestrator
from support.recording_sandbox import RecordingSandbox, recording_sandbox
from support.replicas import Cluster, Followed, running_cluster
from support.staged import Call, Staged, prompt_of, stage_of, staged_model
from support.waiting import until

from orchestrator.runs.store import TapeRows, open_database

KILLS = 30
AT_ONCE = 5  # runs in progress at any moment
LONGEST_WAIT = 0.6  # seconds from a start to the next kill: a run takes longer than that
SLOWEST_PIECE = 0.03  # seconds before each piece of a reply, which has about ten

SHAPES = (
    Staged("passing"),
    Staged("repaired", right_at=2),
    Staged("candidates", right_at=1, candidates=3),
    Staged("stopping", right_at=1, stops=("execute", "repair")),
)

pytestmark = pytest.mark.timeout(300)


@dataclass
class Work:
    """Runs made one after the other, always so many in progress, until it is enough."""

    cluster: Cluster
    stopping: bool = False
    tasks: dict[str, Staged] = field(default_factory=dict)  # by the run's id
    followed: list[Followed] = field(default_factory=list)
    _number: int = 0

    async def caller(self) -> None:
        while not self.stopping:
            self._number += 1
            shape = SHAPES[self._number % len(SHAPES)]
            task = Staged(f"{shape.name}{self._number}", shape.right_at, shape.candidates, shape.stops)
            run = await self.cluster.create(task.spec(), request_id=task.name)
            self.tasks[run.run_id] = task
            seen = Followed(run.run_id)
            self.followed.append(seen)
            await self.cluster.follow(seen)

    @property
    def open(self) -> list[Followed]:
        return [seen for seen in self.followed if not seen.ends]

    async def gets_on(self) -> None:
        """Returns when each open run has ended a step, or itself, since it was called."""
        before = {seen.run_id: seen.steps_ended for seen in self.open}
        await until(lambda: all(seen.steps_ended > before.get(seen.run_id, -1) for seen in self.open), seconds=60)


class Asked:
    """What the model was asked for, held against what the runs have on their tapes."""

    def __init__(self, server: ScriptedServer, url: str) -> None:
        self._server = server
        self._url = url
        self._known: Counter[Call] = Counter()
        self._before: Counter[Call] = Counter()
        self.again: list[Call] = []

    def now(self) -> Counter[Call]:
        return Counter(stage_of(request.prompt) for request in self._server.requests)

    async def compare(self, tasks: dict[str, Staged]) -> None:
        """Since the last time, nothing was asked for that was on a tape then."""
        taped: Counter[Call] = Counter()
        async with open_database(self._url) as database:
            for run_id in list(tasks):
                entries = await TapeRows(database).read(run_id)
                taped.update(
                    stage_of(prompt_of(json.loads(entry.request))) for entry in entries if entry.kind == "model"
                )
        asked = self.now()
        wanted = sum((task.calls() for task in list(tasks.values())), Counter())
        since = asked - self._before
        self.again += [call for call in wanted if since[call] > wanted[call] - self._known[call]]
        self._known, self._before = taped, asked


@pytest_asyncio.fixture(scope="module")
async def sandbox(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RecordingSandbox]:
    async with recording_sandbox(tmp_path_factory.mktemp("sandbox"), SANDBOX_CONCURRENCY="2") as service:
        yield service


@pytest_asyncio.fixture(scope="module")
async def undisturbed(sandbox: RecordingSandbox, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pb.RunResult]:
    """How a run of each shape ends when nothing happens to it."""
    async with (
        scripted_openai(staged_model()) as model,
        running_orchestrator(
            sandbox=sandbox.address, model_url=model.base_url, data_dir=tmp_path_factory.mktemp("undisturbed")
        ) as client,
    ):
        shapes = [Staged(f"{shape.name}1", shape.right_at, shape.candidates) for shape in SHAPES]
        runs = await asyncio.gather(*(client.generate(shape.spec()) for shape in shapes))
    assert all(run.result.outcome == pb.RUN_OUTCOME_PASSED for run in runs)
    return {shape.name: run.result for shape, run in zip(SHAPES, runs, strict=True)}


async def test_killed_thirty_times_on_sqlite(
    sandbox: RecordingSandbox, undisturbed: dict[str, pb.RunResult], tmp_path: Path
) -> None:
    await killed_again_and_again(("only",), sandbox, undisturbed, tmp_path)


async def test_killed_thirty_times_by_turns_on_postgres(
    sandbox: RecordingSandbox, undisturbed: dict[str, pb.RunResult], tmp_path: Path, postgres_url: str
) -> None:
    await killed_again_and_again(("one", "two"), sandbox, undisturbed, tmp_path, postgres_url)


async def killed_again_and_again(
    names: Sequence[str],
    sandbox: RecordingSandbox,
    undisturbed: dict[str, pb.RunResult],
    folder: Path,
    database_url: str = "",
) -> None:
    seed = int(os.environ.get("CODEMEND_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"seed {seed}; CODEMEND_TEST_SEED={seed} begins the same again")
    chance = random.Random(seed)
    began = time.monotonic()
    async with (
        scripted_openai(staged_model(lambda: chance.uniform(0, SLOWEST_PIECE))) as model,
        running_cluster(
            *names,
            sandbox=sandbox.address,
            model_url=model.base_url,
            data_dir=str(folder),
            database_url=database_url,
        ) as cluster,
    ):
        work = Work(cluster)
        asked = Asked(model, database_url or f"sqlite:///{folder / 'runs.sqlite'}")
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work.caller())
            at_work = 0
            for number in range(KILLS):
                replica = cluster.replicas[number % len(cluster.replicas)]
                if number % 3 == 2:  # a run whose replicas die again and again before a step ends is given up
                    await work.gets_on()
                await asyncio.sleep(chance.uniform(0.05, LONGEST_WAIT))  # the random moment
                await replica.kill()
                at_work += len(work.open)
                await asked.compare(work.tasks)
                await replica.start()
            work.stopping = True
        await asked.compare(work.tasks)
        runs = [await cluster.get(run_id) for run_id in work.tasks]
    recoveries = sum(run.recoveries for run in runs)
    print(
        f"{KILLS} kills, {at_work} runs open at them, {len(runs)} runs, {recoveries} recoveries,"
        f" {time.monotonic() - began:.0f} s"
    )
    assert recoveries >= KILLS / 2, "too few kills met a run at work for this to prove anything"
    for run in runs:
        task = work.tasks[run.run_id]
        expected = summed_up(undisturbed[task.name.rstrip("0123456789")], task)
        assert summed_up(run.result, task) == expected, f"{task.name}: {run.result.reason}\n{cluster.faults()}"
    for seen in work.followed:
        assert seen.ends == [len(seen.events)], f"{seen.run_id} has ends at {seen.ends} of {len(seen.events)} events"
        assert not seen.begun_again(), seen.run_id
    assert not asked.again, "asked again for what was on the tape"
    assert_ran_once(sandbox, [run.run_id for run in runs])


def summed_up(result: pb.RunResult, task: Staged) -> object:
    """What must not depend on kills. Which of several candidates is done first is chance without any, too."""
    files = [(file.path, file.content) for file in result.files]
    attempts = [
        (
            attempt.number,
            attempt.strategy,
            attempt.code_hash,
            attempt.passed,
            attempt.tests_passed,
            attempt.usage.model_calls,
        )
        for attempt in result.attempts
    ]
    usage = (result.usage.model_calls, result.usage.input_tokens, result.usage.output_tokens)
    firsts = sorted(attempts)[: task.candidates] if task.candidates == 1 else len(attempts)
    return result.outcome, files, result.delivered_attempt, firsts, attempts[task.candidates :], usage


def assert_ran_once(sandbox: RecordingSandbox, run_ids: Sequence[str]) -> None:
    """No job came to a result twice, and each that a run has in its history came to one."""
    began, ended = sandbox.counts()
    mine = {key for key in began if any(key.startswith(run_id) for run_id in run_ids)}
    assert len(mine) >= len(run_ids)
    assert {key: ended[key] for key in mine if ended[key] != 1} == {}
