"""How the two sides are timed: one call at a time in pairs, then many callers at once; each phase is bounded."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

CALLERS = 16
WARM_UP = 5
"""Calls of each side before anything is counted."""

Call = Callable[[], Awaitable[None]]
BlockingCall = Callable[[], None]


@dataclass(frozen=True)
class Side:
    """One side of one job: milliseconds of a call, and calls a second with many callers."""

    samples: int
    median_ms: float
    p99_ms: float
    per_second: float


@dataclass(frozen=True)
class Comparison:
    """One job on both sides. `ratio` is the median of cell/bare over pairs that were measured one after the other."""

    job: str
    cell: Side
    bare: Side
    ratio: float


async def compare(
    job: str, cell: Call, bare: BlockingCall, *, paired_seconds: float, many_seconds: float
) -> Comparison:
    """Measures one job: pairs for `paired_seconds`, then CALLERS callers on each side for `many_seconds`."""
    for _ in range(WARM_UP):
        await cell()
        bare()
    pairs = await _pairs(cell, bare, paired_seconds)
    cell_rate = await _rate(cell, many_seconds)
    bare_rate = await asyncio.to_thread(_blocking_rate, bare, many_seconds)
    return Comparison(
        job,
        _side([pair[0] for pair in pairs], cell_rate),
        _side([pair[1] for pair in pairs], bare_rate),
        ratio=round(statistics.median(cell_time / bare_time for cell_time, bare_time in pairs), 3),
    )


async def _pairs(cell: Call, bare: BlockingCall, seconds: float) -> list[tuple[float, float]]:
    """Times of both sides in turn, so that what else the machine does falls on both; who goes first alternates."""
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(pairs) < WARM_UP:
        if len(pairs) % 2:
            bare_time, cell_time = _timed(bare), await _timed_call(cell)
        else:
            cell_time, bare_time = await _timed_call(cell), _timed(bare)
        pairs.append((cell_time, bare_time))
    return pairs


async def _timed_call(call: Call) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


def _timed(call: BlockingCall) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


async def _rate(call: Call, seconds: float) -> float:
    """Calls a second that CALLERS callers get done."""
    began = time.perf_counter()

    async def caller() -> int:
        done = 0
        while time.perf_counter() - began < seconds:
            await call()
            done += 1
        return done

    done = sum(await asyncio.gather(*(caller() for _ in range(CALLERS))))
    return done / (time.perf_counter() - began)


def _blocking_rate(call: BlockingCall, seconds: float) -> float:
    began = time.perf_counter()

    def caller(_number: int) -> int:
        done = 0
        while time.perf_counter() - began < seconds:
            call()
            done += 1
        return done

    with ThreadPoolExecutor(CALLERS) as pool:
        done = sum(pool.map(caller, range(CALLERS)))
    return done / (time.perf_counter() - began)


def _side(times: list[float], per_second: float) -> Side:
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return Side(len(times), round(statistics.median(times) * 1000, 2), round(p99 * 1000, 2), round(per_second, 1))
