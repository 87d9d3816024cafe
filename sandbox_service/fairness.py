"""Whose turn it is: jobs that wait, taken from their tenants in turn by the time that each tenant's jobs hold places.

The algorithm is start-time fair queueing with several servers (Goyal, Vin and Cheng, SIGCOMM 1996; the form for many
servers is SFQ(D) of Jin, Chase and Kaur, SIGMETRICS 2004). Each tenant has a tag, the place-seconds that it has had in
virtual time; the least tag is served next, first in first out within a tenant. Deficit round robin needs to know what
a job costs before it starts; here nobody knows, so a start is charged the tenant's recent mean, what a job holds beyond
that is charged while it runs, and its end puts the charge right. A tenant that comes back starts at the present virtual
time: idle time earns no credit, and what was used while nobody else waited is no debt.

Virtual time counts what was held and never what is only expected: a tag less what its running jobs have been charged in
advance, its settled tag, can only grow. Whoever comes is put no later than the settled tags of all who wait, so that no
end which gives a charge back takes a tenant ahead of those who came before it. Whatever was expected of the jobs:

* a tenant that comes for the first time is next, after those alone that came before it and have had no start either;
* two tenants that both wait all the time get equal times to within 4 (places + 1) times the longest job.
"""

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

REMEMBERED_TENANTS = 1024
"""Tenants without a job whose means and tags are kept; beyond it the one that has been idle longest is forgotten."""

REMEMBERED_JOBS = 64
"""Jobs whose mean duration stands for that of a tenant without one of its own."""

UNKNOWN_COST = 0.0
"""Seconds charged for a start while no job has ended yet: what it then holds is charged while it runs."""

_WEIGHT = 0.25  # of a tenant's latest job in its mean

T = TypeVar("T")
_Entry = tuple[float, int, int, str]  # tag, number of the tenant's latest start, a unique number, tenant


@dataclass(slots=True, eq=False)
class Place:
    """A place held by one job: since when (clock seconds), what was charged for it so far, and what was expected."""

    tenant: str
    since: float
    charged: float
    expected: float


@dataclass(slots=True)
class _Tenant(Generic[T]):
    tag: float
    waiting: deque[T] = field(default_factory=deque)
    work: float = 0.0  # expected seconds of those that wait
    places: set[Place] = field(default_factory=set)
    latest_start: int = -1
    mean: float | None = None  # seconds
    entry: _Entry | None = None  # its valid one in the heap

    def in_advance(self, now: float) -> float:
        """Seconds that its running jobs have been charged and have not held yet."""
        return sum(max(place.charged - (now - place.since), 0.0) for place in self.places)


@dataclass(frozen=True, slots=True)
class Line:
    """One tenant's line for a forecast: its tag, its latest start, its jobs, the expected seconds of one."""

    tag: float
    latest_start: int
    waiting: int
    running: int
    cost: float


class FairQueue(Generic[T]):
    """Jobs that wait and places that are held, by tenant. Does not know how many places there are."""

    def __init__(self, *, running_limit: int | None, clock: Callable[[], float]) -> None:
        """Makes an empty queue; `running_limit` is the number of places that one tenant may hold, None: any."""
        self.places: set[Place] = set()
        self.waiting = 0
        self.work = 0.0  # expected seconds of all jobs that wait or run, as expected when each came
        self._running_limit = running_limit
        self._clock = clock
        self._tenants: dict[str, _Tenant[T]] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._backlogged: set[str] = set()
        self._heap: list[_Entry] = []
        self.virtual = 0.0  # highest settled tag of a start
        self._numbers = itertools.count()
        self._durations: deque[float] = deque(maxlen=REMEMBERED_JOBS)

    @property
    def tenants_waiting(self) -> int:
        """Tenants with a job that waits."""
        return len(self._backlogged)

    @property
    def tenants_remembered(self) -> int:
        """Tenants of which anything is kept."""
        return len(self._tenants)

    def mean(self) -> float | None:
        """Mean seconds that the recent jobs of all tenants held a place; None while none has ended."""
        return sum(self._durations) / len(self._durations) if self._durations else None

    def cost(self, tenant: str) -> float | None:
        """Expected seconds of a tenant's next job; None while no job has ended."""
        known = self._tenants.get(tenant)
        return known.mean if known is not None and known.mean is not None else self.mean()

    def waiting_of(self, tenant: str) -> int:
        """Jobs of one tenant that wait."""
        known = self._tenants.get(tenant)
        return len(known.waiting) if known is not None else 0

    def at_limit(self, tenant: str) -> bool:
        """Whether the tenant holds all the places that it may."""
        known = self._tenants.get(tenant)
        return self._running_limit is not None and known is not None and len(known.places) >= self._running_limit

    def begin(self, tenant: str) -> Place:
        """A place for a job that need not wait."""
        known = self._tenant(tenant)
        self._bring_up(known)
        return self._start(tenant, known)

    def join(self, tenant: str, item: T) -> None:
        """One more that waits, behind all others of its tenant."""
        known = self._tenant(tenant)
        known.waiting.append(item)
        self.waiting += 1
        self._add_work(known, self.cost(tenant) or 0.0)
        if tenant not in self._backlogged:
            self._backlogged.add(tenant)
            self._offer(tenant, known)

    def leave(self, tenant: str, item: T) -> None:
        """One that waits no more; no effect where it does not wait."""
        known = self._tenants.get(tenant)
        if known is None or item not in known.waiting:
            return
        self._add_work(known, -known.work / len(known.waiting))
        known.waiting.remove(item)
        self.waiting -= 1
        self._settle(tenant, known)

    def next(self) -> tuple[T, Place] | None:
        """Takes the one whose turn it is, with its place; None where nobody waits or may start."""
        self._charge_overruns()
        while self._heap:
            entry = heapq.heappop(self._heap)
            if not self._is_valid(entry):
                continue
            tenant = entry[3]
            known = self._tenants[tenant]
            self._add_work(known, -known.work / len(known.waiting))
            item = known.waiting.popleft()
            self.waiting -= 1
            if not known.waiting:
                self._backlogged.discard(tenant)
            return item, self._start(tenant, known)
        return None

    def end(self, place: Place, *, learn: bool = True) -> None:
        """Gives a place back. `learn`: its duration tells of later ones; not so where no job ever used it."""
        elapsed = self._clock() - place.since
        known = self._tenants[place.tenant]
        self.places.discard(place)
        self.work = self.work - place.expected if self.places or self.waiting else 0.0
        known.places.discard(place)
        known.tag += elapsed - place.charged
        if learn:
            known.mean = elapsed if known.mean is None else known.mean + _WEIGHT * (elapsed - known.mean)
            self._durations.append(elapsed)
        self._settle(place.tenant, known)

    def clear(self) -> list[T]:
        """Empties the line of all tenants, and returns those that waited."""
        left = [item for tenant in self._backlogged for item in self._tenants[tenant].waiting]
        for tenant in list(self._backlogged):
            known = self._tenants[tenant]
            self._add_work(known, -known.work)
            known.waiting.clear()
            self._settle(tenant, known)
        self.waiting = 0
        return left

    def lines(self, newcomer: str = "") -> dict[str, Line]:
        """The lines of all tenants that have a job, and that of `newcomer`, for a forecast."""
        names = {newcomer, *self._backlogged, *(place.tenant for place in self.places)}
        return {name: self._line(name) for name in names}

    def remaining(self, tenant: str | None = None) -> list[tuple[float, str]]:
        """Expected seconds until each held place is free, with its tenant; of one tenant, or of all."""
        now = self._clock()
        return [
            (max((self.cost(place.tenant) or 0.0) - (now - place.since), 0.0), place.tenant)
            for place in self.places
            if tenant is None or place.tenant == tenant
        ]

    def _present(self) -> float:
        """Virtual time for one who comes now: not beyond what any of those who wait could come down to."""
        while self._heap and not self._is_valid(self._heap[0]):
            heapq.heappop(self._heap)
        if not self._heap:
            return self.virtual
        now = self._clock()
        holders = (self._tenants[name] for name in {place.tenant for place in self.places})
        settled = (holder.tag - holder.in_advance(now) for holder in holders if holder.entry is not None)
        return min(self.virtual, self._heap[0][0], *settled)

    def _bring_up(self, tenant: _Tenant[T]) -> None:
        """Takes the credit of time in which a tenant did not wait, or could not use a turn."""
        tenant.tag = max(tenant.tag, self._present() + tenant.in_advance(self._clock()))

    def _is_valid(self, entry: _Entry) -> bool:
        """Whether no newer one took its stead."""
        known = self._tenants.get(entry[3])
        return known is not None and known.entry is entry

    def _add_work(self, tenant: _Tenant[T], seconds: float) -> None:
        tenant.work += seconds
        self.work += seconds

    def _line(self, name: str) -> Line:
        known = self._tenants.get(name)
        cost = self.cost(name) or 0.0
        if known is None:
            return Line(self._present(), -1, 0, 0, cost)
        tag = known.tag
        if not known.waiting:
            tag = max(tag, self._present() + known.in_advance(self._clock()))
        return Line(tag, known.latest_start, len(known.waiting), len(known.places), cost)

    def _tenant(self, name: str) -> _Tenant[T]:
        known = self._tenants.get(name)
        if known is None:
            known = self._tenants[name] = _Tenant(0.0)
        self._idle.pop(name, None)
        return known

    def _start(self, name: str, tenant: _Tenant[T]) -> Place:
        now = self._clock()
        self.virtual = max(self.virtual, tenant.tag - tenant.in_advance(now))
        cost = self.cost(name)
        place = Place(name, now, UNKNOWN_COST if cost is None else cost, cost or 0.0)
        self.work += place.expected
        tenant.tag += place.charged
        tenant.places.add(place)
        tenant.latest_start = next(self._numbers)
        self.places.add(place)
        self._offer(name, tenant)
        return place

    def _charge_overruns(self) -> None:
        """Charges what running jobs hold beyond what their tenants have paid, where that can change an order."""
        if len(self._backlogged) < 2:  # noqa: PLR2004 - nobody to be compared with
            return
        now = self._clock()
        for place in self.places:
            if (more := now - place.since - place.charged) > 0:
                place.charged += more
                tenant = self._tenants[place.tenant]
                tenant.tag += more
                self._offer(place.tenant, tenant)

    def _settle(self, name: str, tenant: _Tenant[T]) -> None:
        """After something of a tenant has gone: its entry anew, and its name among the idle where nothing is left."""
        if not tenant.waiting:
            self._backlogged.discard(name)
        self._offer(name, tenant)
        if not tenant.waiting and not tenant.places:
            self._idle[name] = None
            while len(self._idle) > REMEMBERED_TENANTS:
                del self._tenants[self._idle.popitem(last=False)[0]]

    def _offer(self, name: str, tenant: _Tenant[T]) -> None:
        """Puts a tenant into the heap by its present tag, where one of its jobs may start."""
        if not tenant.waiting or self.at_limit(name):
            tenant.entry = None
            return
        if tenant.entry is None:  # held back by its limit, or new
            self._bring_up(tenant)
        tenant.entry = (tenant.tag, tenant.latest_start, next(self._numbers), name)
        heapq.heappush(self._heap, tenant.entry)
        if len(self._heap) > 2 * len(self._backlogged) + REMEMBERED_JOBS:
            valid = (self._tenants[name].entry for name in self._backlogged)
            self._heap = [entry for entry in valid if entry is not None]
            heapq.heapify(self._heap)
