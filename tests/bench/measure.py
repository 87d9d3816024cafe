"""How contestants are timed: in short slices in turn, so that a busy minute falls on all; then with many callers."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

SLICE_SECONDS = 0.25
"""Calls of one contestant follow each other for so long in every round, and at least one is made."""
CALL_SECONDS = 60.0

Call = Callable[[], Awaitable[None]]
"""Does one job; raises where the answer is wrong."""


@dataclass(frozen=True)
class Blocking:
    """A job that is done in the calling thread."""

    call: Callable[[], None]


@dataclass(frozen=True)
class Contestant:
    """One way to run jobs: what keeps them in, and how each job is done (by the job's name)."""

    name: str
    isolation: str
    jobs: Mapping[str, Call | Blocking]


@dataclass
class Figures:
    """What was measured of one contestant at one job. Times in milliseconds; `error` where it could not do it."""

    times: list[float] = field(default_factory=list)
    slices: dict[int, float] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)
    error: str = ""

    @property
    def p50(self) -> float:
        """Median."""
        return statistics.median(self.times)

    @property
    def p99(self) -> float:
        """99th percentile; the highest where there are fewer than a hundred."""
        return sorted(self.times)[min(len(self.times) - 1, int(len(self.times) * 0.99))]

    def ratio(self, other: "Figures") -> float:
        """Median over the rounds of this one's median to the other's in the same round; 0 without a common round."""
        both = [self.slices[number] / other.slices[number] for number in self.slices if number in other.slices]
        return statistics.median(both) if both else 0.0


async def alone(contestants: Sequence[Contestant], job: str, *, seconds: float) -> dict[str, Figures]:
    """One call at a time, all contestants in turn, for about `seconds`; at least three rounds."""
    figures = {each.name: Figures() for each in contestants if job in each.jobs}
    able = [each for each in contestants if job in each.jobs]
    for each in able:
        await _slice(each, job, figures[each.name], number=-1)
        figures[each.name].times.clear()
        figures[each.name].slices.clear()
    end = time.perf_counter() + seconds
    number = 0
    while number < 3 or time.perf_counter() < end:
        for offset in range(len(able)):
            each = able[(number + offset) % len(able)]
            await _slice(each, job, figures[each.name], number)
        number += 1
    return figures


async def _slice(contestant: Contestant, job: str, figures: Figures, number: int) -> None:
    if figures.error:
        return
    times: list[float] = []
    end = time.perf_counter() + SLICE_SECONDS
    call = contestant.jobs[job]
    try:
        while not times or time.perf_counter() < end:
            began = time.perf_counter()
            if isinstance(call, Blocking):
                call.call()
            else:
                await asyncio.wait_for(call(), CALL_SECONDS)
            times.append((time.perf_counter() - began) * 1000)
    except Exception as error:  # noqa: BLE001 - whatever a contestant raises is its result
        figures.error = _in_short(error)
        return
    figures.times += times
    figures.slices[number] = statistics.median(times)


async def together(contestant: Contestant, job: str, figures: Figures, callers: int, *, seconds: float) -> None:
    """Jobs a second that `callers` get done at once; those that are under way at the end are waited for, and count."""
    call = contestant.jobs[job]
    began = time.perf_counter()
    end = began + seconds
    try:
        if isinstance(call, Blocking):
            done = await asyncio.to_thread(_in_threads, call.call, callers, end)
        else:
            done = sum(await asyncio.gather(*(_one_caller(call, end) for _ in range(callers))))
    except Exception as error:  # noqa: BLE001 - whatever a contestant raises is its result
        figures.error = f"with {callers} callers: {_in_short(error)}"
        return
    figures.rates[callers] = done / (time.perf_counter() - began)


async def _one_caller(call: Call, end: float) -> int:
    done = 0
    while not done or time.perf_counter() < end:
        await asyncio.wait_for(call(), CALL_SECONDS)
        done += 1
    return done


def _in_threads(call: Callable[[], None], callers: int, end: float) -> int:
    def caller(_number: int) -> int:
        done = 0
        while not done or time.perf_counter() < end:
            call()
            done += 1
        return done

    with ThreadPoolExecutor(callers) as pool:
        return sum(pool.map(caller, range(callers)))


def _in_short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:200]
