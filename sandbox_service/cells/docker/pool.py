"""Keeps warm containers and gives each to one job at a time; what is taken is made anew in the background.

A container belongs to nobody (warm), to one job (claimed), or waits for the next job of the lease that it was first
claimed for (kept). It goes from one state to the next in one place, by compare-and-swap: no two claims get one.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum, auto

from sandbox_service.cells.docker.container import Container
from sandbox_service.errors import CellFailure, CellUnavailable

_log = logging.getLogger(__name__)
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.5, 30.0
_KEPT_S = 300.0
"""A kept container that has had no job for this long is removed."""
_STARTS, _REMOVALS = 4, 4
"""At one time; an engine does more of them slower."""

Make = Callable[[Hashable], Awaitable[Container]]


class State(Enum):
    """What a container in the pool is doing."""

    WARM = auto()
    CLAIMED = auto()
    KEPT = auto()
    GONE = auto()


@dataclass(eq=False, slots=True)
class Slot:
    """One container in the pool.

    Attributes:
        container: it.
        kind: what kind of container it is; those of one kind can stand in for each other.
        lease: for whom it is reused; None: for nobody.
    """

    container: Container
    kind: Hashable
    state: State = State.WARM
    lease: Hashable | None = None
    used: float = field(default_factory=time.monotonic)

    def move(self, expected: State, wanted: State) -> bool:
        """Compare-and-swap of the state; False where it was not the expected one."""
        if self.state is not expected:
            return False
        self.state, self.used = wanted, time.monotonic()
        return True


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Containers by what they are doing, and how many could not be made since the start."""

    warm: int
    claimed: int
    kept: int
    being_made: int
    failures: int


class Pool:
    """Containers of several kinds: `size` warm ones of each kind in `kinds`, others when they are asked for."""

    def __init__(self, make: Make, kinds: tuple[Hashable, ...], *, size: int, most_kept: int) -> None:
        self._make, self._kinds, self._size, self._most_kept = make, kinds, size, most_kept
        self._slots: set[Slot] = set()
        self._making: dict[Hashable, int] = {}
        self._refills: dict[Hashable, asyncio.Task[None]] = {}
        self._removals: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Semaphore(_STARTS)  # these two guard the engine
        self._removing = asyncio.Semaphore(_REMOVALS)
        self._failures = 0
        self._is_filling = self._is_stopped = False

    def stats(self) -> PoolStats:
        """What it holds now."""
        states = [slot.state for slot in self._slots]
        return PoolStats(
            warm=states.count(State.WARM),
            claimed=states.count(State.CLAIMED),
            kept=states.count(State.KEPT),
            being_made=sum(self._making.values()),
            failures=self._failures,
        )

    def names(self) -> set[str]:
        """Names of its containers."""
        return {slot.container.name for slot in self._slots}

    async def start(self) -> None:
        """Makes one container of each kind.

        Raises:
            CellUnavailable: one could not be made.
        """
        if self._size:
            made = await asyncio.gather(*map(self._made, self._kinds), return_exceptions=True)
            for container, kind in zip(made, self._kinds, strict=True):
                if isinstance(container, Container):
                    self._slots.add(Slot(container, kind))
            for failure in made:
                if isinstance(failure, BaseException):
                    raise failure

    def fill(self) -> None:
        """From now on containers are made ahead, in the background."""
        self._is_filling = True
        self._refill_all()

    async def stop(self) -> None:
        """Removes all containers, those included that jobs still run in."""
        self._is_stopped = True
        refills = list(self._refills.values())
        for task in refills:
            task.cancel()
        await asyncio.gather(*refills, return_exceptions=True)
        for slot in list(self._slots):
            self.drop(slot)
        while self._removals:
            await asyncio.wait(self._removals)

    async def claim(self, kind: Hashable, lease: Hashable | None = None) -> Slot:
        """A container for one job: one that its lease kept, a warm one, or a new one.

        Raises:
            CellUnavailable: none is there and none can be made.
        """
        self.tend()
        kept = [slot for slot in self._slots if lease is not None and (slot.lease, slot.kind) == (lease, kind)]
        for slot, state in [(slot, State.KEPT) for slot in kept] + [(slot, State.WARM) for slot in self._slots]:
            if slot.kind == kind and slot.move(state, State.CLAIMED):
                slot.lease = lease
                self._refill_all()
                return slot
        slot = Slot(await self._made(kind), kind, State.CLAIMED, lease)
        self._slots.add(slot)
        if self._is_stopped:
            self.drop(slot)
            raise CellUnavailable("the service is stopping")
        return slot

    def give_back(self, slot: Slot) -> None:
        """A job is over and its container is clean: kept for its lease, or removed."""
        if slot.lease is None or not slot.container.is_alive or not slot.move(State.CLAIMED, State.KEPT):
            self.drop(slot)
            return
        kept = sorted((slot for slot in self._slots if slot.state is State.KEPT), key=lambda slot: slot.used)
        for oldest in kept[: max(len(kept) - self._most_kept, 0)]:
            self.drop(oldest)

    def drop(self, slot: Slot) -> "asyncio.Task[None]":
        """Removes a container, in the background; awaiting the task waits until it is gone."""
        slot.state = State.GONE
        self._slots.discard(slot)
        task = asyncio.create_task(self._remove(slot.container))
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)
        self._refill_all()
        return task

    def release(self, lease: Hashable) -> None:
        """Drops what is kept for a lease."""
        for slot in [slot for slot in self._slots if slot.lease == lease and slot.state is State.KEPT]:
            self.drop(slot)

    def tend(self) -> None:
        """Drops warm and kept containers that have died, and kept ones that nobody has used for long."""
        now = time.monotonic()
        for slot in list(self._slots):
            is_idle = slot.state is State.KEPT and now - slot.used > _KEPT_S
            if slot.state is not State.CLAIMED and (is_idle or not slot.container.is_alive):
                self.drop(slot)

    async def _remove(self, container: Container) -> None:
        async with self._removing:
            try:
                await container.destroy()
            except CellUnavailable as error:
                _log.warning("a container could not be removed yet: %s", error, extra={"container": container.name})

    async def _made(self, kind: Hashable) -> Container:
        self._making[kind] = self._making.get(kind, 0) + 1
        try:
            async with self._starting:
                container = await self._make(kind)
        except CellFailure:
            self._failures += 1
            raise
        finally:
            self._making[kind] -= 1
        container.lost.add_done_callback(lambda _lost: self.tend())
        return container

    def _refill_all(self) -> None:
        for kind in self._kinds:
            running = self._refills.get(kind)
            if (
                self._is_filling
                and not self._is_stopped
                and self._missing(kind)
                and (running is None or running.done())
            ):
                self._refills[kind] = asyncio.create_task(self._refill(kind))

    def _missing(self, kind: Hashable) -> int:
        return self._size - sum(slot.state is State.WARM and slot.kind == kind for slot in self._slots)

    async def _refill(self, kind: Hashable) -> None:
        """Makes one after the other until none is missing; after a failure it waits, longer each time."""
        backoff = _FIRST_BACKOFF_S
        while self._missing(kind) > 0:
            try:
                self._slots.add(Slot(await self._made(kind), kind))
                backoff = _FIRST_BACKOFF_S
            except CellFailure as error:
                _log.warning("no warm container could be made, trying again in %g s: %s", backoff, error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.sleep(backoff)
                backoff = min(backoff * 2, _LONGEST_BACKOFF_S)
