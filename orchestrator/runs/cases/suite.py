"""Runs many cases, some at a time: played from their tapes, or made anew as runs of their own."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from orchestrator.errors import InvalidRun, QueueFull
from orchestrator.runs.cases.body import load_body
from orchestrator.runs.cases.judging import CaseResult, judge_live, judge_replay, judge_unmade
from orchestrator.runs.cases.playing import play
from orchestrator.runs.manager import RunManager
from orchestrator.runs.records import RunRecord
from orchestrator.runs.store import CaseRow
from orchestrator.workflows import RunOptions, RunSpec

C = TypeVar("C")
Change = Callable[[RunOptions], RunOptions]
"""Gives options back as a suite wants them."""
Check = Callable[[RunSpec], Awaitable[None]]
"""Raises InvalidRun where no run can be made of a request, by today's limits or by what the sandbox offers."""


class ReplayPlayer:
    """Plays cases from their tapes, without a model and a sandbox, all of them in one thread beside the event loop.

    A play is tens of milliseconds of work for the CPU, or a minute's where a case was made up; more than one thread
    would not make it faster, and each would make the loop wait longer for its turn.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="codemend-replays")

    async def __call__(self, case: CaseRow, change: Change) -> CaseResult:
        """Plays a case once those before it have ended; whoever leaves ends it."""
        playing = _Playing(case, change)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, playing.run)
        except asyncio.CancelledError:
            playing.cancel()
            raise


class _Playing:
    """One case, played on an event loop of its own, which another thread can tell to stop."""

    def __init__(self, case: CaseRow, change: Change) -> None:
        self._case = case
        self._change = change
        self._lock = threading.Lock()  # of the two below: a task is told to stop only while its loop is there
        self._is_cancelled = False
        self._task: asyncio.Task[CaseResult] | None = None

    def run(self) -> CaseResult:
        """Plays it. Raises asyncio.CancelledError once it was told to stop."""
        return asyncio.run(self._main())

    def cancel(self) -> None:
        """Tells it to stop, from any thread."""
        with self._lock:
            self._is_cancelled = True
            if self._task is not None:
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def _main(self) -> CaseResult:
        with self._lock:
            if self._is_cancelled:
                raise asyncio.CancelledError
            self._task = asyncio.current_task()
        try:
            return await _played(self._case, self._change)
        finally:
            with self._lock:
                self._task = None


async def _played(case: CaseRow, change: Change) -> CaseResult:
    started = time.monotonic()
    try:
        body = load_body(case.body)
        spec = replace(body.spec, options=change(body.spec.options))
    except InvalidRun as error:
        return judge_unmade(case, str(error), _since(started))
    return judge_replay(case, body, await play(body, spec), _since(started))


class LivePlayer:
    """Runs cases anew, with the model and the sandbox.

    Args:
        manager: makes the runs.
        suite: what the runs' label `suite` says.
        check: holds each case's request against what is offered, as any request to make a run is.
    """

    def __init__(self, manager: RunManager, suite: str, check: Check) -> None:
        self._manager = manager
        self._suite = suite
        self._check = check

    async def __call__(self, case: CaseRow, change: Change) -> CaseResult:
        """Makes a run of the case, if one can be made, and waits for its end; whoever leaves takes the run with it."""
        started = time.monotonic()
        try:
            body = await asyncio.to_thread(load_body, case.body)
            # An imported case may have breakpoints, at which its run would wait for somebody to go on with it.
            options = replace(change(body.spec.options), interrupt_before=(), interrupt_after=())
            spec = replace(body.spec, tenant=case.tenant, options=options)
            await self._check(spec)
        except InvalidRun as error:
            return judge_unmade(case, str(error), _since(started))
        labels = {**spec.labels, "suite": self._suite, "case": case.name}
        record = await self._created(replace(spec, labels=labels))
        try:
            record = await self._manager.wait_until(record.run_id)
        except asyncio.CancelledError:
            await asyncio.shield(self._manager.request_cancel(record.run_id, "whoever ran the suite has left"))
            raise
        return judge_live(case, body.expectation, record, _since(started))

    async def _created(self, spec: RunSpec) -> RunRecord:
        while True:
            try:
                return await self._manager.create(spec)
            except QueueFull as full:
                await asyncio.sleep(full.retry_after.total_seconds())


async def in_turn(
    cases: Iterable[C], work: Callable[[C], Awaitable[CaseResult]], concurrency: int
) -> AsyncGenerator[CaseResult]:
    """Results in the order in which the cases end; closing this ends those at work.

    Args:
        cases: what to do.
        work: does one.
        concurrency: so many at one time.
    """
    waiting = iter(cases)
    ended: asyncio.Queue[CaseResult | None] = asyncio.Queue(maxsize=concurrency)

    async def serve() -> None:
        for case in waiting:
            await ended.put(await work(case))

    async def serve_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(serve())
        except ExceptionGroup as errors:  # the first error ends the suite, as itself
            raise errors.exceptions[0] from None

    serving = asyncio.ensure_future(serve_all())
    serving.add_done_callback(lambda _: _end(ended))
    try:
        while not (serving.done() and ended.empty()):
            if (result := await ended.get()) is not None:
                yield result
        serving.result()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def _end(queue: "asyncio.Queue[CaseResult | None]") -> None:
    """Wakes whoever waits for a result that will not come; a full queue has woken it already."""
    if not queue.full():
        queue.put_nowait(None)


def _since(started: float) -> timedelta:
    return timedelta(seconds=time.monotonic() - started)
