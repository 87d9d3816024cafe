import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from support.cells import HeldCells, succeeded

from sandbox_service import scheduler as module
from sandbox_service.domain import DEFAULT_LIMITS, Lease, Program
from sandbox_service.errors import (
    CellFailure,
    CellUnavailable,
    DeadlineTooShort,
    QueueFull,
    ServiceDraining,
    TenantQueueFull,
)
from sandbox_service.scheduler import Scheduler

SECOND = timedelta(seconds=1)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Heard:
    """An observer that keeps what it hears."""

    def __init__(self):
        self.refusals = []
        self.waits = []
        self.ends = []

    def refused(self, error):
        self.refusals.append(type(error))

    def started(self, job, waited):
        self.waits.append((job.argv[0], waited))

    def ended(self, job, held, outcome, error):
        self.ends.append((job.argv[0], held, outcome and outcome.result.status.value, type(error)))


class Bench:
    """A scheduler over held cells, with a clock that the test turns."""

    def __init__(self, concurrency=1, queue_size=10, **options):
        self.cells = HeldCells()
        self.clock = Clock()
        self.heard = Heard()
        self.scheduler = Scheduler(
            self.cells,
            concurrency=concurrency,
            queue_size=queue_size,
            clock=self.clock,
            observer=self.heard,
            **options,
        )
        self.tasks = []

    async def submit(self, name, tenant="", **options):
        """Submits a job and lets it go as far as it can."""
        task = asyncio.create_task(self.scheduler.submit(job(name), lease=Lease(tenant), **options))
        self.tasks.append(task)
        for _ in range(5):
            await asyncio.sleep(0)
        return task

    async def teach(self, seconds):
        """Lets one job take so long, so that the scheduler knows a mean."""
        task = await self.submit("teacher")
        self.clock.now += seconds
        self.cells.release(-1)
        await task

    def names(self):
        return [started.argv[0] for started in self.cells.started]


@pytest.fixture
async def bench():
    benches = []

    def make(**options):
        benches.append(Bench(**options))
        return benches[-1]

    yield make
    for one in benches:
        await asyncio.wait_for(one.scheduler.stop(), 5)
        await asyncio.gather(*one.tasks, return_exceptions=True)


def job(name, limits=DEFAULT_LIMITS):
    return Program(limits, argv=(name,))


async def test_no_more_jobs_run_than_there_are_places(bench):
    one = bench(concurrency=2)
    for name in "abc":
        await one.submit(name)
    assert one.names() == ["a", "b"]
    stats = one.scheduler.stats()
    assert (stats.running, stats.waiting) == (2, 1)
    one.cells.release(0)
    await one.cells.running(3)
    assert one.scheduler.stats().waiting == 0


async def test_jobs_start_in_the_order_of_their_arrival(bench):
    one = bench()
    for name in "abcd":
        await one.submit(name)
    for index in range(4):
        await one.cells.running(index + 1)
        one.cells.release(index)
    await asyncio.gather(*one.tasks)
    assert one.names() == ["a", "b", "c", "d"]


async def test_a_full_queue_refuses_at_once_and_says_when_a_place_should_be_free(bench):
    one = bench(queue_size=1)
    await one.teach(8)
    await one.submit("a")
    await one.submit("b")
    one.clock.now += 5
    with pytest.raises(QueueFull) as caught:
        await one.scheduler.submit(job("c"))
    assert caught.value.retry_after == 3 * SECOND
    assert str(caught.value) == "1 jobs run and 1 wait"


async def test_without_a_queue_a_job_runs_or_is_refused(bench):
    one = bench(queue_size=0)
    await one.submit("a")
    with pytest.raises(QueueFull) as caught:
        await one.scheduler.submit(job("b"))
    assert caught.value.retry_after == SECOND


async def test_a_deadline_that_the_queue_cannot_meet_is_refused_at_once(bench):
    one = bench()
    await one.teach(10)
    await one.submit("a")
    await one.submit("b")
    with pytest.raises(DeadlineTooShort, match=r"20\.0 s, after the deadline in 19\.0 s"):
        await one.scheduler.submit(job("c"), deadline=19 * SECOND)
    await one.submit("d", deadline=21 * SECOND)
    assert one.scheduler.stats().waiting == 2


async def test_with_a_free_place_no_deadline_is_refused_for_what_others_took(bench):
    one = bench()
    await one.teach(1000)
    task = await one.submit("a", deadline=5 * SECOND)
    one.cells.release(-1)
    assert await task


async def test_a_job_whose_deadline_passes_in_the_queue_never_starts(bench):
    one = bench()
    await one.submit("a")
    with pytest.raises(DeadlineTooShort):
        await one.scheduler.submit(job("late"), deadline=timedelta(milliseconds=20))
    one.cells.release(0)
    await one.tasks[0]
    last = await one.submit("last")
    one.cells.release(-1)
    await last
    assert one.names() == ["a", "last"]


async def test_a_deadline_that_has_passed_starts_nothing(bench):
    one = bench()
    with pytest.raises(DeadlineTooShort):
        await one.scheduler.submit(job("a"), deadline=timedelta())
    assert one.names() == []


async def test_a_deadline_kills_the_running_job(bench):
    one = bench()
    with pytest.raises(DeadlineTooShort):
        await one.scheduler.submit(job("a"), deadline=timedelta(milliseconds=20))
    assert len(one.cells.killed) == 1
    assert one.scheduler.stats().running == 0


async def test_a_caller_that_cancels_kills_its_job_before_the_cancellation_comes_out(bench):
    one = bench()
    task = await one.submit("a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(one.cells.killed) == 1


async def test_a_caller_that_leaves_the_queue_leaves_no_hole(bench):
    one = bench(concurrency=1, queue_size=2)
    await one.submit("a")
    leaver = await one.submit("b")
    await one.submit("c")
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    assert one.scheduler.stats().waiting == 1
    one.cells.release(0)
    await one.cells.running(2)
    assert one.names() == ["a", "c"]


async def test_a_place_granted_to_a_caller_that_leaves_in_that_moment_goes_to_the_next(bench):
    one = bench()
    await one.submit("a")
    leaver = await one.submit("b")
    await one.submit("c")
    # Called after the scheduler's own callback, so between the grant and its taking.
    next(iter(one.scheduler._running)).add_done_callback(lambda _: leaver.cancel())
    one.cells.release(0)
    await one.cells.running(2)
    await asyncio.gather(leaver, return_exceptions=True)
    assert one.names() == ["a", "c"]
    assert one.scheduler.stats().running == 1


async def test_a_place_is_not_free_until_the_killed_job_is_gone_even_when_its_caller_has_left(bench):
    one = bench()
    one.cells.kill_takes = asyncio.Event()
    task = await one.submit("a")
    await one.submit("b")
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # impatient
    with pytest.raises(asyncio.CancelledError):
        await task
    assert one.scheduler.stats().running == 1
    assert one.names() == ["a"]
    one.cells.kill_takes.set()
    await one.cells.running(2)


async def test_the_time_before_the_program_started_is_told(bench):
    one = bench()
    await one.submit("a")
    task = await one.submit("b")
    one.clock.now += 5
    one.cells.release(0)
    await one.cells.running(2)
    one.clock.now += 3
    one.cells.release(1, succeeded(wall_time=2 * SECOND))
    result = (await task).result
    assert (result.queue_time, result.wall_time) == (6 * SECOND, 2 * SECOND)


async def test_the_sink_reaches_the_cell(bench):
    one = bench()
    sink = print
    await one.submit("a", sink=sink)
    assert one.cells.sinks == [sink]


@pytest.mark.parametrize("error", [CellUnavailable("no cell"), CellFailure("it died")])
async def test_what_a_cell_fails_with_comes_out_and_its_place_is_free_again(bench, error):
    one = bench()
    task = await one.submit("a")
    one.cells.fail(0, error)
    with pytest.raises(type(error)):
        await task
    assert one.scheduler.stats().running == 0


async def test_a_cell_that_cancels_itself_is_a_failure_and_no_cancellation(bench):
    one = bench()
    task = await one.submit("a")
    one.cells._ends[0].cancel()
    with pytest.raises(CellFailure, match="gave the job up"):
        await task


async def test_a_cell_that_outlives_its_job_s_limit_by_far_is_given_up(bench, monkeypatch):
    monkeypatch.setattr(module, "CELL_ALLOWANCE", timedelta(milliseconds=10))
    one = bench()
    limits = replace(DEFAULT_LIMITS, wall_time=timedelta(milliseconds=10))
    with pytest.raises(CellFailure, match="still there"):
        await one.scheduler.submit(job("a", limits))
    assert len(one.cells.killed) == 1


async def test_a_time_limit_of_the_cell_s_own_is_not_told_as_the_job_s(bench):
    one = bench()
    task = await one.submit("a")
    one.cells._ends[0].set_exception(TimeoutError("the engine did not answer in 60 s"))
    with pytest.raises(CellFailure, match="a step of the cell took too long: the engine did not answer in 60 s"):
        await task


async def test_a_drain_refuses_what_waits_and_what_comes_and_lets_end_what_runs(bench):
    one = bench()
    running = await one.submit("a")
    waiting = await one.submit("b")
    one.scheduler.refuse_new()
    with pytest.raises(ServiceDraining):
        await waiting
    with pytest.raises(ServiceDraining):
        await one.scheduler.submit(job("c"))
    drained = asyncio.create_task(one.scheduler.drained())
    await asyncio.sleep(0)
    assert not drained.done()
    one.cells.release(0)
    assert (await running).result.exit_code == 0
    await asyncio.wait_for(drained, 5)
    assert one.names() == ["a"]


async def test_a_stop_kills_what_runs_and_its_caller_hears_why(bench):
    one = bench()
    running = await one.submit("a")
    await asyncio.wait_for(one.scheduler.stop(), 5)
    with pytest.raises(ServiceDraining):
        await running
    assert len(one.cells.killed) == 1


async def test_an_idle_scheduler_is_drained(bench):
    one = bench()
    await asyncio.wait_for(one.scheduler.drained(), 5)
    assert one.scheduler.stats().running == 0


async def test_the_statistics_tell_the_recent_mean(bench):
    one = bench()
    await one.teach(2)
    await one.teach(4)
    stats = one.scheduler.stats()
    assert (stats.ended, stats.mean_duration) == (2, 3 * SECOND)


async def run_all(bench, count):
    """Ends jobs in the order of their starting, each after one second, until so many have started."""
    for index in range(count):
        await bench.cells.running(index + 1)
        bench.clock.now += 1
        bench.cells.release(index)
    await asyncio.gather(*bench.tasks)


async def test_waiting_jobs_are_taken_from_their_tenants_in_turn(bench):
    one = bench(queue_size=100)
    for number in range(4):
        await one.submit(f"a{number}", "a")
    for tenant in "bc":
        for number in range(2):
            await one.submit(f"{tenant}{number}", tenant)
    await run_all(one, 8)
    assert one.names() == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "a3"]
    assert one.cells.leases[1] == Lease("b")


async def test_a_tenant_alone_leaves_a_part_of_the_queue_to_others_and_each_newcomer_finds_room(bench):
    one = bench(queue_size=40)
    await one.submit("first", "flood")
    while True:
        try:
            one.scheduler._check_room("flood")
        except TenantQueueFull as error:
            full = error
            break
        await one.submit("more", "flood")
    assert one.scheduler.stats().waiting == 30
    assert (full.tenant, full.limit) == ("flood", "30 waiting, a share of the 40 places")
    for number in range(10):
        await one.submit("quiet", f"t{number}")
    assert one.scheduler.stats().waiting == 40
    with pytest.raises(QueueFull) as caught:
        await one.scheduler.submit(job("late"), lease=Lease("t99"))
    assert type(caught.value) is QueueFull


async def test_a_number_of_waiting_jobs_can_be_set_for_every_tenant(bench):
    one = bench(queue_size=40, tenant_waiting=1)
    await one.submit("a", "t")
    await one.submit("b", "t")
    with pytest.raises(TenantQueueFull, match="the limit of the tenant 't' is reached: 1 waiting"):
        await one.scheduler.submit(job("c"), lease=Lease("t"))
    await one.submit("d", "u")
    assert one.scheduler.stats().waiting == 2
    assert one.heard.refusals == [TenantQueueFull]


async def test_a_tenant_at_its_running_limit_waits_while_others_use_the_free_places(bench):
    one = bench(concurrency=3, tenant_running=1)
    for name in ("a0", "a1"):
        await one.submit(name, "a")
    await one.submit("b0", "b")
    assert one.names() == ["a0", "b0"]
    one.cells.release(0)
    await one.cells.running(3)
    assert one.names() == ["a0", "b0", "a1"]


async def test_without_a_queue_a_tenant_at_its_running_limit_is_told_so(bench):
    one = bench(concurrency=3, queue_size=0, tenant_running=1)
    await one.submit("a0", "a")
    with pytest.raises(TenantQueueFull, match="1 running at one time"):
        await one.scheduler.submit(job("a1"), lease=Lease("a"))
    await one.submit("b0", "b")
    assert one.names() == ["a0", "b0"]


async def test_callers_refused_one_after_the_other_are_told_later_and_later_times_up_to_a_minute(bench):
    one = bench(queue_size=1)
    await one.teach(8)
    await one.submit("a")
    await one.submit("b")
    told = []
    for _ in range(12):
        with pytest.raises(QueueFull) as caught:
            await one.scheduler.submit(job("c"))
        told.append(caught.value.retry_after.total_seconds())
    assert told == [8, 16, 24, 32, 40, 48, 56, 60, 60, 60, 60, 60]


async def test_a_deadline_is_held_against_the_tenant_s_own_turn(bench):
    one = bench(queue_size=100)
    await one.teach(10)
    await one.submit("flood", "flood")
    for _ in range(9):
        await one.submit("more", "flood")
    with pytest.raises(DeadlineTooShort, match=r"100\.0 s"):
        await one.scheduler.submit(job("late"), lease=Lease("flood"), deadline=99 * SECOND)
    await one.submit("quiet", "quiet", deadline=11 * SECOND)
    with pytest.raises(DeadlineTooShort, match=r"30\.0 s"):
        await one.scheduler.submit(job("quiet"), lease=Lease("quiet"), deadline=29 * SECOND)


async def test_a_deadline_is_held_against_what_the_tenant_s_own_jobs_take(bench):
    one = bench(queue_size=100)
    for seconds, tenant in ((10, "slow"), (1, "fast")):
        task = await one.submit("teacher", tenant)
        one.clock.now += seconds
        one.cells.release(-1)
        await task
    await one.submit("running", "fast")
    await one.submit("waiting", "fast")
    await one.submit("fine", "fast", deadline=2.5 * SECOND)
    await one.submit("fine too", "slow", deadline=3.5 * SECOND)
    assert one.scheduler.stats().waiting == 3


async def test_patience_refuses_at_once_and_ends_nothing_later(bench):
    one = bench()
    await one.teach(10)
    await one.submit("a")
    with pytest.raises(DeadlineTooShort, match="a turn is expected"):
        await one.scheduler.submit(job("b"), patience=9 * SECOND)
    task = await one.submit("c", patience=11 * SECOND)
    one.clock.now += 3600
    one.cells.release(-1)
    await one.cells.running(3)
    one.clock.now += 3600
    one.cells.release(-1)
    assert (await task).result.exit_code == 0


async def test_an_observer_hears_of_waits_ends_and_refusals(bench):
    one = bench(queue_size=1)
    await one.submit("a")
    waiting = await one.submit("b")
    with pytest.raises(QueueFull):
        await one.scheduler.submit(job("c"))
    one.clock.now += 2
    one.cells.release(0)
    await one.cells.running(2)
    one.cells.fail(1, CellFailure("it died"))
    await asyncio.wait({waiting})
    killed = await one.submit("d")
    killed.cancel()
    await asyncio.wait({killed})
    with pytest.raises(DeadlineTooShort):
        await one.scheduler.submit(job("e"), deadline=timedelta())
    assert one.heard.waits == [("a", timedelta()), ("b", 2 * SECOND), ("d", timedelta())]
    assert one.heard.ends == [
        ("a", 2 * SECOND, "SUCCEEDED", type(None)),
        ("b", timedelta(), None, CellFailure),
        ("d", timedelta(), None, type(None)),
    ]
    assert one.heard.refusals == [QueueFull, DeadlineTooShort]


@pytest.mark.parametrize("limit", ["deadline", "patience"])
@pytest.mark.parametrize(("waited", "refusals"), [(5, []), (9.9, [DeadlineTooShort]), (11, [DeadlineTooShort])])
async def test_a_waiting_job_that_is_cancelled_at_its_deadline_counts_as_refused_for_it(bench, limit, waited, refusals):
    one = bench()
    await one.submit("a")
    leaver = await one.submit("b", **{limit: 10 * SECOND})
    one.clock.now += waited
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    assert one.heard.refusals == refusals


async def test_a_job_that_runs_and_one_without_a_deadline_are_no_refusals_when_cancelled(bench):
    one = bench()
    tasks = await one.submit("a", deadline=10 * SECOND), await one.submit("b")
    one.clock.now += 10
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert one.heard.refusals == []


async def test_a_drain_refuses_the_waiting_jobs_of_every_tenant(bench):
    one = bench()
    await one.submit("a", "a")
    waiting = [await one.submit(tenant, tenant) for tenant in "bcd"]
    one.scheduler.refuse_new()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(end) for end in ends} == {ServiceDraining}
    assert one.scheduler.stats().waiting == 0
