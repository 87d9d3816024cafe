"""Whose turn it is: the fair queue alone, played through on a clock that the test turns."""

import heapq
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandbox_service import fairness
from sandbox_service.fairness import FairQueue, Line
from sandbox_service.forecast import MOST_STARTS, expected_wait


class Machine:
    """Places and a clock around a fair queue. Each job is a pair of tenant and seconds."""

    def __init__(self, places=1, limit=None):
        self.now = 0.0
        self.queue = FairQueue(running_limit=limit, clock=lambda: self.now)
        self.number = places
        self.ends = []
        self.order = []
        self.served = Counter()
        self.most = Counter()

    def submit(self, tenant, seconds):
        self.queue.join(tenant, (tenant, seconds))

    def start_all(self):
        while len(self.queue.places) < self.number and (granted := self.queue.next()) is not None:
            (tenant, seconds), place = granted
            assert place.tenant == tenant
            heapq.heappush(self.ends, (self.now + seconds, tenant, id(place), place))  # by name, as in a forecast
            self.order.append(tenant)
            running = Counter(held.tenant for held in self.queue.places)
            self.most[tenant] = max(self.most[tenant], running[tenant])

    def step(self):
        """Lets the next job end, after starting all that may."""
        self.start_all()
        if not self.ends:
            return False
        self.now, _, _, place = heapq.heappop(self.ends)
        self.served[place.tenant] += self.now - place.since
        self.queue.end(place)
        return True

    def run(self, steps=10**6):
        for _ in range(steps):
            if not self.step():
                return


def test_jobs_of_one_tenant_start_in_the_order_of_their_coming():
    queue = FairQueue(running_limit=None, clock=lambda: 0.0)
    for number in range(5):
        queue.join("a", number)
    assert [queue.next()[0] for _ in range(5)] == [0, 1, 2, 3, 4]
    assert queue.next() is None


def test_tenants_with_equal_jobs_take_turns():
    machine = Machine()
    for tenant in "abc":
        for _ in range(4):
            machine.submit(tenant, 1)
    machine.run()
    assert "".join(machine.order) == "abcabcabcabc"


def test_a_newcomer_s_first_job_is_next_however_many_others_wait():
    machine = Machine()
    for _ in range(500):
        machine.submit("flood", 1)
    machine.run(20)
    machine.submit("quiet", 1)
    machine.start_all()
    assert machine.order[-1] == "quiet"


def test_places_are_shared_by_time_and_not_by_jobs():
    machine = Machine(places=2)
    for _ in range(100):
        machine.submit("long", 10)
    for _ in range(4000):
        machine.submit("short", 0.5)
    while machine.now < 500:
        machine.step()
    assert machine.served["long"] == pytest.approx(machine.served["short"], rel=0.06)


def test_a_job_that_runs_longer_than_its_tenant_s_jobs_use_to_is_charged_while_it_runs():
    machine = Machine(places=3)
    for _ in range(4):
        machine.submit("liar", 0.1)
    machine.run()
    for _ in range(2):
        machine.submit("liar", 1000)
    machine.start_all()
    for _ in range(10):
        machine.submit("liar", 1000)
        machine.submit("other", 1)
    while machine.now < 15:
        machine.step()
    assert machine.order[6:16] == ["other"] * 10


def test_what_was_used_while_nobody_else_waited_is_no_debt():
    machine = Machine()
    for _ in range(100):
        machine.submit("a", 10)
    machine.run()
    for _ in range(10):
        machine.submit("b", 10)
        machine.submit("a", 10)
    machine.run()
    assert "".join(machine.order[100:]) == "ba" * 10


def test_idle_time_earns_no_credit():
    machine = Machine()
    machine.submit("idle", 1)
    machine.run()
    for _ in range(200):
        machine.submit("busy", 1)
    machine.run(100)
    for _ in range(10):
        machine.submit("idle", 1)
    machine.run(20)
    assert machine.order[101:].count("idle") == 10
    assert "idleidle" not in "".join(machine.order[101:])


def test_a_tenant_never_holds_more_places_than_its_limit_and_the_others_use_the_rest():
    machine = Machine(places=4, limit=1)
    for _ in range(50):
        machine.submit("a", 1)
        machine.submit("b", 1)
    machine.run()
    assert machine.most == {"a": 1, "b": 1}
    assert machine.now == 50


def test_time_that_a_limit_kept_from_a_tenant_earns_no_credit():
    machine = Machine(places=2, limit=1)
    for _ in range(40):
        machine.submit("limited", 10)
    for _ in range(400):
        machine.submit("other", 1)
    machine.run(300)
    assert machine.most == {"limited": 1, "other": 1}


def test_a_job_that_leaves_leaves_the_others_in_their_order():
    queue = FairQueue(running_limit=None, clock=lambda: 0.0)
    for number in range(3):
        queue.join("a", number)
    queue.join("b", 9)
    queue.leave("a", 1)
    queue.leave("a", 77)
    queue.leave("nobody", 0)
    queue.leave("b", 9)
    assert queue.waiting == 2
    assert [queue.next()[0] for _ in range(2)] == [0, 2]
    assert queue.next() is None


def test_a_place_that_no_job_used_costs_nothing_and_teaches_nothing():
    queue = FairQueue(running_limit=None, clock=lambda: 0.0)
    for _ in range(10):
        queue.end(queue.begin("a"), learn=False)
    assert queue.mean() is None
    for tenant in "aabb":
        queue.join(tenant, tenant)
    assert [queue.next()[0] for _ in range(4)] == ["b", "a", "b", "a"]


def test_of_many_tenants_only_so_many_are_remembered(monkeypatch):
    monkeypatch.setattr(fairness, "REMEMBERED_TENANTS", 5)
    machine = Machine(places=3)
    for number in range(200):
        machine.submit(f"t{number}", 1)
    machine.run()
    assert machine.queue.tenants_remembered == 5
    assert len(machine.queue._heap) <= 200


def test_the_heap_holds_little_more_than_the_tenants_that_wait():
    machine = Machine(places=2)
    for _ in range(3000):
        machine.submit("a", 1)
        machine.submit("b", 0.1)
    largest = 0
    while machine.step():
        largest = max(largest, len(machine.queue._heap))
    assert largest < 100


def test_clearing_gives_back_everyone_who_waits():
    queue = FairQueue(running_limit=None, clock=lambda: 0.0)
    for number in range(4):
        queue.join("ab"[number % 2], number)
    assert sorted(queue.clear()) == [0, 1, 2, 3]
    assert queue.waiting == queue.tenants_waiting == 0
    assert queue.next() is None


JOBS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.floats(0.01, 20), st.floats(0, 5)), min_size=1, max_size=60
)  # tenant, seconds, time until it comes after the one before


@given(JOBS, st.integers(1, 4), st.sampled_from([None, 1, 2]))
def test_every_job_runs_once_no_limit_is_passed_and_no_place_idles_that_could_be_used(jobs, places, limit):
    machine = Machine(places, limit)
    pending = []
    arrival = 0.0
    for tenant, seconds, gap in jobs:
        arrival += gap
        pending.append((arrival, tenant, seconds))
    pending.reverse()
    while True:
        while pending and (not machine.ends or pending[-1][0] <= machine.ends[0][0]):
            at, tenant, seconds = pending.pop()
            machine.now = max(machine.now, at)
            machine.submit(tenant, seconds)
            machine.start_all()
        machine.start_all()
        waiting = {tenant for tenant in "abcd" if machine.queue.waiting_of(tenant)}
        if len(machine.queue.places) < places:
            assert all(machine.queue.at_limit(tenant) for tenant in waiting)
        if not machine.step():
            break
    assert Counter(machine.order) == Counter(tenant for tenant, _, _ in jobs)
    assert machine.queue.waiting == 0
    assert not machine.queue.places
    assert limit is None or all(most <= limit for most in machine.most.values())


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=5), st.integers(1, 3))
def test_tenants_that_always_wait_get_equal_time_to_within_a_few_jobs(durations, places):
    machine = Machine(places)
    for number, seconds in enumerate(durations):
        for _ in range(int(400 / seconds)):
            machine.submit(str(number), seconds)
    longest = max(durations)
    while machine.now < 100 * len(durations) / places and machine.queue.tenants_waiting == len(durations):
        machine.step()
    shares = [machine.served[str(number)] for number in range(len(durations))]
    assert max(shares) - min(shares) <= 3 * (places + 1) * longest


PHASES = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(1, 800), st.integers(1, 12)), min_size=1),
    min_size=1,
    max_size=4,
)  # one after the other: tenants with the eighths of a second that each of their jobs takes, and the number of these


@example([{"a": (800, 8)}, {"a": (8, 400)}], 4, None, 8)  # jobs of a hundred seconds, then of one
@settings(deadline=None)
@given(PHASES, st.integers(1, 4), st.sampled_from([None, 1, 2]), st.integers(0, 30))
def test_a_newcomer_is_next_however_wrong_the_expectations_of_the_running_jobs_are(phases, places, limit, steps):
    machine = Machine(places, limit)
    for phase in phases:
        machine.run(steps)
        for tenant, (eighths, number) in phase.items():
            for _ in range(number):
                machine.submit(tenant, eighths / 8)
    machine.start_all()
    known = Counter(machine.order)
    machine.submit("new", 1)
    for tenant in "abcd":  # others come after it
        machine.submit(tenant, 1)
    began = len(machine.order)
    while "new" not in machine.order:
        assert machine.step()
        machine.start_all()
    earlier = machine.order[began : machine.order.index("new")]
    assert all(tenant not in known for tenant in earlier)
    assert len(set(earlier)) == len(earlier)


@example([{"a": (800, 8), "b": (8, 8)}, {"a": (8, 400), "b": (8, 400)}], 4)
@settings(deadline=None)
@given(PHASES, st.integers(1, 4))
def test_tenants_that_always_wait_get_equal_time_however_their_jobs_change(phases, places):
    machine = Machine(places)
    tenants = sorted({tenant for phase in phases for tenant in phase})
    longest = max(8, *(eighths for phase in phases for eighths, _ in phase.values())) / 8
    for phase in phases * 4:
        for tenant in tenants:
            eighths, number = phase.get(tenant, (8, 8))
            for _ in range(number):
                machine.submit(tenant, eighths / 8)
    while machine.step() and machine.queue.tenants_waiting == len(tenants):
        shares = [machine.served[tenant] for tenant in tenants]
        assert max(shares) - min(shares) <= 4 * (places + 1) * longest


def test_a_tenant_whose_jobs_become_short_is_not_served_ahead_of_one_that_came_meanwhile():
    machine = Machine(places=4)
    for _ in range(8):
        machine.submit("changing", 100)
    machine.run()
    for _ in range(400):
        machine.submit("changing", 1)
    machine.start_all()
    for _ in range(40):
        machine.submit("newcomer", 1)
    before = len(machine.order)
    machine.run(60)
    machine.start_all()
    order = machine.order[before:]
    assert order[0] == "newcomer"
    assert order.count("newcomer") >= len(order) // 4  # one place of four at least, while it is charged too much itself


def test_a_tenant_that_comes_back_while_its_jobs_are_charged_too_much_comes_behind_those_that_waited():
    machine = Machine(places=4)
    for _ in range(4):
        machine.submit("changing", 100)
    machine.run()
    for _ in range(4):
        machine.submit("changing", 1)
    machine.start_all()
    machine.submit("first", 1)
    for _ in range(50):
        machine.submit("changing", 1)
        machine.submit("second", 1)
    machine.run(4)
    machine.start_all()
    assert set(machine.order[8:10]) == {"first", "second"}


def test_a_newcomer_is_not_behind_a_flood_of_which_nothing_was_known():
    machine = Machine(places=2)
    for _ in range(100):
        machine.submit("flood", 1 / 64)
    machine.run(4)
    machine.submit("quiet", 1 / 64)
    machine.run(3)
    assert "quiet" in machine.order


def line(tag=0.0, waiting=0, running=0, cost=1.0, latest_start=-1):
    return Line(tag, latest_start, waiting, running, cost)


def wait(lines, remaining, places=1, limit=None, *, newcomer="new", virtual=0.0):
    return expected_wait(lines, remaining, newcomer=newcomer, places=places, limit=limit, virtual=virtual)


def test_a_newcomer_is_expected_before_the_rest_of_a_flood():
    lines = {"flood": line(tag=5, waiting=100, running=1, cost=2, latest_start=3), "new": line(tag=3)}
    assert wait(lines, [(1.5, "flood")]) == 1.5


def test_a_flood_s_next_job_is_expected_after_all_of_its_own():
    lines = {"flood": line(tag=5, waiting=100, running=1, cost=2, latest_start=3)}
    assert wait(lines, [(1.5, "flood")], newcomer="flood") == 201.5


def test_a_wait_counts_the_places_and_the_tenant_s_limit():
    lines = {"a": line(waiting=8, running=2, cost=1, latest_start=2)}
    assert wait(lines, [(1.0, "a"), (1.0, "a")], places=2, newcomer="a") == 5
    assert wait(lines, [(1.0, "a"), (1.0, "a")], places=4, limit=2, newcomer="a") == 5


def test_what_a_limit_holds_back_is_not_in_a_newcomer_s_way():
    lines = {"a": line(waiting=50, running=1, cost=10, latest_start=2), "new": line(tag=100)}
    assert wait(lines, [(10.0, "a")], places=2, limit=1) == 0


def test_a_forecast_that_is_too_long_to_play_is_cut_off_and_never_too_high():
    lines = {"a": line(waiting=10**6, running=1, cost=1)}
    assert 0 < wait(lines, [(1.0, "a")], newcomer="a") <= MOST_STARTS + 1


EIGHTHS = st.integers(1, 72).map(lambda number: number / 8)
"""Durations that add up exactly: two tags that are equal but for rounding would be served in either order."""


@example({"a": (2.0, 1), "b": (0.5, 2)}, 2, 1, 0, "c")  # what its limit held back has earned nothing meanwhile
@given(
    st.dictionaries(st.sampled_from("abcd"), st.tuples(EIGHTHS, st.integers(1, 15)), min_size=1),
    st.integers(1, 3),
    st.sampled_from([None, 1, 2]),
    st.integers(0, 20),
    st.sampled_from("abcde"),
)
def test_a_forecast_is_when_the_job_really_starts_if_nobody_comes_after_it(tenants, places, limit, steps, newcomer):
    machine = Machine(places, limit)
    for tenant, (seconds, _) in tenants.items():  # each tenant's jobs take the same time, which is known by now
        machine.submit(tenant, seconds)
    machine.run()
    for tenant, (seconds, number) in tenants.items():
        for _ in range(number):
            machine.submit(tenant, seconds)
    machine.run(steps)
    machine.start_all()
    if len(machine.queue.places) < places and not machine.queue.at_limit(newcomer):
        return  # it need not wait
    lines, remaining = machine.queue.lines(newcomer), machine.queue.remaining()
    virtual = machine.queue.virtual
    assert (
        wait(lines, remaining, places, limit, newcomer=newcomer, virtual=virtual)
        <= machine.queue.work / min(places, limit or places) + 1e-6
    )
    told = machine.now + wait(lines, remaining, places, limit, newcomer=newcomer, virtual=virtual)
    seconds, _ = tenants.get(newcomer, (1.0, 0))
    before = machine.order.count(newcomer) + machine.queue.waiting_of(newcomer)
    machine.submit(newcomer, seconds)
    while machine.order.count(newcomer) <= before:
        assert machine.step()
        machine.start_all()
    assert machine.now == pytest.approx(told, abs=1e-6)
    machine.run()
    assert machine.queue.work == 0
