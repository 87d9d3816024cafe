"""The store of sessions: lives measured by a clock of the test's own, and what sessions may hold."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from support.waiting import until

from sandbox_service import sessions
from sandbox_service.domain import Entry, EntryKind
from sandbox_service.errors import ServiceDraining, SessionBusy, SessionNotFound, SessionStorageFull, TooManySessions
from sandbox_service.sessions import Capacity, SessionStore, Terms
from sandbox_service.workspace import Workspace

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
PAGE = 4096


class Store(SessionStore):
    """A store on a clock that the test moves."""

    def __init__(self, sessions=10, per_tenant=10, total_bytes=100 * PAGE):
        self.time = 1000.0
        super().__init__(Capacity(sessions, per_tenant, total_bytes), clock=lambda: self.time, now=lambda: EPOCH)

    def made(self, tenant="t", idle=10, ttl=100):
        terms = Terms(timedelta(seconds=idle), timedelta(seconds=ttl), disk_bytes=50 * PAGE)
        return self.create(tenant, terms).id


def state(pages):
    return Workspace().with_entries([Entry(b"f", EntryKind.FILE, b"x" * (pages * PAGE))])


async def keep(store, name, pages, snapshot=None):
    async with store.use("t", name) as hold:
        hold.keep(state(pages), snapshot=snapshot)


async def test_a_session_tells_its_times_sizes_and_jobs():
    store = Store()
    name = store.made(idle=10, ttl=100)
    store.time += 4
    async with store.use("t", name) as hold:
        hold.keep(state(3))
        hold.count_job()
    found = store.get("t", name)
    assert found.create_time == EPOCH
    assert found.expire_time == EPOCH + timedelta(seconds=14)
    assert found.end_time == EPOCH + timedelta(seconds=100)
    assert (found.disk_bytes, found.used_bytes, found.entries, found.jobs) == (50 * PAGE, 3 * PAGE, 1, 1)


async def test_an_idle_session_ends_when_its_idle_time_is_over():
    store = Store()
    name = store.made(idle=10)
    store.time += 9.9
    store.get("t", name)
    store.time += 0.2
    with pytest.raises(SessionNotFound):
        store.get("t", name)
    assert (store.count, store.held_bytes) == (0, 0)


async def test_each_call_gives_the_whole_idle_time_again_but_never_past_the_end():
    store = Store()
    name = store.made(idle=10, ttl=25)
    for _ in range(2):
        store.time += 9
        async with store.use("t", name):
            pass
    assert store.get("t", name).expire_time == EPOCH + timedelta(seconds=25)
    store.time += 7
    with pytest.raises(SessionNotFound):
        store.get("t", name)


async def test_a_session_at_work_is_not_idle():
    store = Store()
    name = store.made(idle=10, ttl=100)
    async with store.use("t", name) as hold:
        store.time += 50
        await store.expire()
        hold.keep(state(1))
    assert store.get("t", name).used_bytes == PAGE


async def test_the_end_of_a_session_cancels_its_work_and_waits_for_it():
    store = Store()
    name = store.made(ttl=100)
    ended = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("work")

    async def call():
        async with store.use("t", name) as hold:
            await hold.run(work())

    caller = asyncio.create_task(call())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.time += 101
    await store.expire()
    assert ended == ["work"]
    with pytest.raises(SessionNotFound):
        await caller


async def test_the_ends_of_many_sessions_are_waited_for_at_once_and_not_for_ever(monkeypatch, caplog):
    monkeypatch.setattr(sessions, "GONE_TIME", timedelta(seconds=0.2))
    store, all_told, stay = Store(), asyncio.Event(), asyncio.Event()
    begun, told = [], []

    async def work(last):
        begun.append(last)
        try:
            await asyncio.Event().wait()
        finally:
            told.append(last)
            if len(told) == 3:
                all_told.set()
            await (stay if last else all_told).wait()  # one after the other they would never be told

    async def call(last):
        async with store.use("t", store.made(ttl=100)) as hold:
            await hold.run(work(last))

    callers = [asyncio.create_task(call(last)) for last in (False, False, True)]
    await until(lambda: len(begun) == 3)
    store.time += 101
    await asyncio.wait_for(store.expire(), 5)
    assert len(told) == 3
    assert [record.jobs for record in caplog.records] == [1]
    stay.set()
    for caller in callers:
        with pytest.raises(SessionNotFound):
            await caller


async def test_work_that_ends_as_its_session_does_keeps_nothing():
    store = Store()
    name = store.made()

    async def finished():
        return 1

    async with store.use("t", name) as hold:
        assert await hold.run(finished()) == 1
        await store.delete("t", name)
        with pytest.raises(SessionNotFound):
            hold.keep(state(1))
        with pytest.raises(SessionNotFound):
            hold.reserve(1)
        with pytest.raises(SessionNotFound):
            await hold.run(finished())
    assert store.held_bytes == 0


async def test_cancelling_a_call_cancels_its_work_first():
    store = Store()
    name = store.made()
    ended = asyncio.Event()

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def call():
        async with store.use("t", name) as hold:
            await hold.run(work())

    caller = asyncio.create_task(call())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()
    async with store.use("t", name):
        pass


async def test_an_error_of_the_work_comes_out_and_frees_the_session():
    store = Store()
    name = store.made()

    async def failing():
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        async with store.use("t", name) as hold:
            await hold.run(failing())
    async with store.use("t", name):
        pass


async def test_one_at_a_time_works_in_a_session():
    store = Store()
    name = store.made()
    async with store.use("t", name):
        with pytest.raises(SessionBusy):
            async with store.use("t", name):
                pass
        store.get("t", name)


@pytest.mark.parametrize("tenant", ["", "T", "other"])
async def test_another_tenant_finds_no_session(tenant):
    store = Store()
    name = store.made("t")
    with pytest.raises(SessionNotFound):
        store.get(tenant, name)
    with pytest.raises(SessionNotFound):
        await store.delete(tenant, name)
    with pytest.raises(SessionNotFound):
        async with store.use(tenant, name):
            pass
    assert store.count == 1


async def test_numbers_are_bounded_and_an_end_makes_room():
    store = Store(sessions=3, per_tenant=2)
    store.made("a", idle=5)
    store.made("a", idle=7)
    with pytest.raises(TooManySessions) as caught:
        store.made("a")
    assert caught.value.retry_after == timedelta(seconds=5)
    store.made("b")
    with pytest.raises(TooManySessions):
        store.made("c")
    store.time += 6
    store.made("c")


async def test_bytes_of_all_sessions_are_bounded_and_an_end_makes_room():
    store = Store(total_bytes=10 * PAGE)
    one, two = store.made(), store.made()
    await keep(store, one, 6)
    with pytest.raises(SessionStorageFull):
        await keep(store, two, 5)
    await keep(store, two, 4)
    assert store.held_bytes == 10 * PAGE
    await store.delete("t", one)
    assert store.held_bytes == 4 * PAGE
    await keep(store, two, 10)


async def test_the_room_of_a_session_is_its_own_limit_or_what_all_leave_it():
    store = Store(total_bytes=60 * PAGE)
    one, two = store.made(), store.made()
    async with store.use("t", one) as hold:
        assert hold.room_bytes == 50 * PAGE
        hold.keep(state(40))
    async with store.use("t", one) as hold, store.use("t", two) as other:
        assert hold.room_bytes == 50 * PAGE
        assert other.room_bytes == 20 * PAGE
        other.reserve(15 * PAGE)
        assert (hold.room_bytes, other.room_bytes) == (45 * PAGE, 5 * PAGE)


async def test_a_snapshot_counts_with_what_it_holds_alone():
    store = Store()
    name = store.made()
    older = state(2)
    await keep(store, name, 3, snapshot=older)
    assert store.held_bytes == 5 * PAGE
    async with store.use("t", name) as hold:
        hold.keep(hold.workspace, snapshot=hold.workspace)
    assert store.held_bytes == 3 * PAGE


async def test_what_is_on_its_way_counts_until_the_call_has_ended():
    store = Store(total_bytes=10 * PAGE)
    name = store.made()
    async with store.use("t", name) as hold:
        hold.reserve(8 * PAGE)
        with pytest.raises(SessionStorageFull):
            hold.reserve(3 * PAGE)
        hold.keep(state(8))
        assert store.get("t", name).used_bytes == 8 * PAGE
    assert store.held_bytes == 8 * PAGE


async def test_a_service_that_stops_makes_no_session_and_keeps_those_that_are_there():
    store = Store()
    name = store.made()
    store.refuse_new()
    with pytest.raises(ServiceDraining):
        store.made()
    async with store.use("t", name):
        pass


async def test_sessions_end_in_the_background():
    store = Store()
    store.made(idle=0.05)
    async with store.sweeping():
        store.time += 1
        await until(lambda: not store.count)


async def test_ids_cannot_be_guessed_and_say_what_they_are():
    store = Store()
    names = {store.made() for _ in range(10)}
    assert len(names) == 10
    assert all(name.startswith("ses_") and len(name) == 28 for name in names)
