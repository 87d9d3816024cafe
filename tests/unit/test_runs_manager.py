"""The life of runs against an engine that does as it is told: states, idempotency, limits, faults, retention, drain."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.errors import QueueFull, RequestIdTaken, RunNotFound, ServiceDraining
from orchestrator.runs import Policy, RunManager, RunState
from orchestrator.runs.run import Run, created_at, new_run_id
from orchestrator.runs.states import RunResult
from orchestrator.workflows import Attempt, CodegenTask, Conclusion, Outcome, RunOptions, RunSpec, Strategy, Verdict

PASSED = Conclusion(Outcome.PASSED, "attempt 1 passed", 1)
DRAINED = timedelta()


class ScriptedEngine:
    """Each run's work waits for its gate; `faults` are raised instead of working, by task."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.faults = {}
        self.result_fault = None
        self.running = 0
        self.most = 0
        self.started = asyncio.Event()
        self.cleaned = []
        self.archived = []

    async def work(self, run):
        self.running += 1
        self.most = max(self.most, self.running)
        self.started.set()
        task = run.spec.task.task
        try:
            if (fault := self.faults.get(task)) is not None:
                raise fault
            await self.gate.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.cleaned.append(task)
            raise
        else:
            return PASSED
        finally:
            self.running -= 1

    async def result(self, _run, conclusion):
        if self.result_fault is not None:
            raise self.result_fault
        return RunResult(conclusion.outcome, conclusion.reason, conclusion.delivered)

    async def archive(self, run):
        self.archived.append(run.run_id)


@pytest.fixture
def engine():
    return ScriptedEngine()


def spec(task="t", **options):
    return RunSpec("codegen", CodegenTask(task), RunOptions(**options))


def open_engine():
    engine = ScriptedEngine()
    engine.gate.set()
    return engine


async def test_a_run_goes_from_queued_over_running_to_its_end(engine):
    manager = RunManager(engine, Policy())
    run = manager.create(spec())
    assert run.state is RunState.QUEUED
    await engine.started.wait()
    assert run.state is RunState.RUNNING
    engine.gate.set()
    await run.ended.wait()
    assert run.state is RunState.SUCCEEDED
    states = [event.payload.state for event in run.log.events]
    assert states == [RunState.QUEUED, RunState.RUNNING, RunState.SUCCEEDED]
    assert run.create_time <= run.start_time <= run.end_time
    await manager.drain(DRAINED)


async def test_a_terminal_state_is_never_overwritten():
    run = Run(spec(), "", 0.0)
    assert run.finish(RunResult(Outcome.FAILED, "first"))
    assert not run.finish(RunResult(Outcome.PASSED, "second"))
    run.start()
    assert (run.state, run.result.reason) == (RunState.FAILED, "first")
    assert run.log.last_sequence == 2


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome.PASSED, RunState.SUCCEEDED),
        (Outcome.UNVERIFIED, RunState.SUCCEEDED),
        (Outcome.CANCELLED, RunState.CANCELLED),
        (Outcome.STUCK, RunState.FAILED),
        (Outcome.ERROR, RunState.FAILED),
    ],
)
def test_the_outcome_decides_the_state(outcome, state):
    assert RunResult(outcome, "").state is state


async def test_never_more_runs_at_work_than_allowed_and_all_come_to_an_end(engine):
    manager = RunManager(engine, Policy(concurrency=3))
    runs = [manager.create(spec(str(number))) for number in range(10)]
    await engine.started.wait()
    engine.gate.set()
    await asyncio.gather(*(run.ended.wait() for run in runs))
    assert engine.most == 3
    assert {run.state for run in runs} == {RunState.SUCCEEDED}


async def test_the_run_after_the_last_place_is_refused_until_a_place_is_free(engine):
    manager = RunManager(engine, Policy(concurrency=1, queue_size=2))
    runs = [manager.create(spec()) for _ in range(3)]
    with pytest.raises(QueueFull, match="2 runs wait") as caught:
        manager.create(spec())
    assert timedelta(seconds=1) <= caught.value.retry_after <= timedelta(minutes=1)
    await manager.cancel(runs[1].run_id, "")
    manager.create(spec())
    await manager.drain(DRAINED)


async def test_a_request_id_makes_one_run(engine):
    manager = RunManager(engine, Policy())
    run = manager.create(spec(), "id")
    assert manager.create(spec(), "id") is run
    with pytest.raises(RequestIdTaken):
        manager.create(spec("other"), "id")
    assert manager.create(spec()) is not manager.create(spec())
    await manager.drain(DRAINED)


async def test_a_request_id_finds_its_run_when_the_queue_is_full_and_when_the_service_stops(engine):
    manager = RunManager(engine, Policy(concurrency=1, queue_size=0))
    run = manager.create(spec(), "id")
    assert manager.create(spec(), "id") is run
    await manager.drain(DRAINED)
    assert manager.create(spec(), "id") is run
    with pytest.raises(ServiceDraining):
        manager.create(spec())


async def test_cancel_returns_when_the_work_has_cleaned_up(engine):
    manager = RunManager(engine, Policy())
    run = manager.create(spec("c"))
    await engine.started.wait()
    assert await manager.cancel(run.run_id, "enough") is run
    assert engine.cleaned == ["c"]
    assert run.state is RunState.CANCELLED
    assert run.result.reason == "enough"


async def test_cancel_before_the_first_step_works_too(engine):
    manager = RunManager(engine, Policy())
    run = await manager.cancel(manager.create(spec()).run_id, "early")
    assert run.state is RunState.CANCELLED
    assert run.start_time is None
    assert engine.most == 0


async def test_a_second_cancel_changes_nothing(engine):
    manager = RunManager(engine, Policy())
    run = manager.create(spec())
    await engine.started.wait()
    await asyncio.gather(manager.cancel(run.run_id, "first"), manager.cancel(run.run_id, "second"))
    assert run.result.reason == "first"


async def test_an_unknown_run_cannot_be_had(engine):
    manager = RunManager(engine, Policy())
    with pytest.raises(RunNotFound):
        manager.get("run_none")
    with pytest.raises(RunNotFound):
        await manager.cancel("run_none", "")


@pytest.mark.parametrize("fault", [RuntimeError("secret text"), asyncio.CancelledError("from inside"), KeyError("x")])
async def test_a_run_that_breaks_off_is_an_error_and_touches_no_other(engine, fault):
    engine.faults["bad"] = fault
    manager = RunManager(engine, Policy())
    bad, good = manager.create(spec("bad")), manager.create(spec("good"))
    await bad.ended.wait()
    assert bad.result.outcome is Outcome.ERROR
    assert "err_" in bad.result.reason
    assert "secret text" not in bad.result.reason
    engine.gate.set()
    await good.ended.wait()
    assert good.state is RunState.SUCCEEDED


async def test_a_run_whose_result_cannot_be_made_still_ends():
    engine = open_engine()
    engine.result_fault = OSError("disk")
    run = RunManager(engine, Policy()).create(spec())
    await run.ended.wait()
    assert run.result.outcome is Outcome.ERROR


async def test_time_that_is_up_in_the_queue_ends_the_run(engine):
    manager = RunManager(engine, Policy(concurrency=1))
    manager.create(spec("first"))
    waiting = manager.create(spec("second", timeout=timedelta(milliseconds=20)))
    await waiting.ended.wait()
    assert waiting.result.outcome is Outcome.BUDGET_EXHAUSTED
    assert waiting.start_time is None
    await manager.drain(DRAINED)


async def test_work_that_outlasts_its_deadline_is_ended_with_its_best_attempt(engine, monkeypatch):
    monkeypatch.setattr("orchestrator.runs.manager.HARD_MARGIN", timedelta())
    run = RunManager(engine, Policy()).create(spec("late", timeout=timedelta(milliseconds=50)))
    best = Attempt(1, Strategy.DRAFT, Verdict.FAILED, code_hash="h")
    run.progress.apply({"attempts": [best]})
    await run.ended.wait()
    assert run.result.outcome is Outcome.BUDGET_EXHAUSTED
    assert run.result.delivered_attempt == 1
    assert engine.cleaned == ["late"]


async def test_a_cancelled_run_delivers_its_best_attempt(engine):
    manager = RunManager(engine, Policy())
    run = manager.create(spec())
    run.progress.apply({"attempts": [Attempt(1, Strategy.DRAFT, Verdict.FAILED, code_hash="h", tests_passed=2)]})
    await manager.cancel(run.run_id, "")
    assert run.result.delivered_attempt == 1


async def test_drain_lets_runs_end_in_the_grace_and_cancels_those_that_wait(engine):
    manager = RunManager(engine, Policy(concurrency=1))
    running, waiting = manager.create(spec("a")), manager.create(spec("b"))
    await engine.started.wait()
    drain = asyncio.create_task(manager.drain(timedelta(seconds=10)))
    await waiting.ended.wait()
    engine.gate.set()
    await drain
    assert running.state is RunState.SUCCEEDED
    assert waiting.state is RunState.CANCELLED


async def test_drain_cancels_what_outlasts_the_grace(engine):
    manager = RunManager(engine, Policy())
    run = manager.create(spec())
    await engine.started.wait()
    await manager.drain(timedelta(milliseconds=10))
    assert run.result.reason == "the service is stopping"


async def test_only_the_newest_ended_runs_are_kept_and_their_request_ids_with_them():
    manager = RunManager(open_engine(), Policy(keep_runs=2))
    runs = [manager.create(spec(), f"id-{number}") for number in range(4)]
    await manager.drain(timedelta(seconds=5))
    kept = [run for run in runs if run.run_id in manager._runs]
    assert len(kept) == 2
    assert sorted(manager.take_forgotten()) == sorted(run.run_id for run in runs if run not in kept)
    assert manager.take_forgotten() == []


async def test_ended_runs_are_forgotten_after_their_time():
    manager = RunManager(open_engine(), Policy(keep_for=timedelta(hours=1)))
    run = manager.create(spec())
    await manager.drain(timedelta(seconds=5))
    manager.forget_old()
    assert manager.get(run.run_id) is run
    run.end_time = datetime.now(UTC) - timedelta(hours=2)
    manager.forget_old()
    with pytest.raises(RunNotFound):
        manager.get(run.run_id)


async def test_an_ended_run_keeps_no_request_in_memory_and_its_events_are_archived():
    engine = open_engine()
    manager = RunManager(engine, Policy())
    run = manager.create(spec())
    await manager.drain(timedelta(seconds=5))
    assert run.spec is None
    assert engine.archived == [run.run_id]


def test_a_runs_id_tells_its_time():
    now = datetime(2026, 12, 1, 12, tzinfo=UTC)
    assert created_at(new_run_id(now)) == now
    assert created_at("thread-1") is None
