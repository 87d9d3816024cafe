"""Runs many cases, some at a time: played from their tapes, or made anew as runs of their own."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from orchestrator.errors import QueueFull
from orchestrator.runs.cases.body import load_body
from orchestrator.runs.cases.judging import CaseResult, judge_live, judge_replay
from orchestrator.runs.cases.playing import play
from orchestrator.runs.manager import RunManager
from orchestrator.runs.records import RunRecord
from orchestrator.runs.store import CaseRow
from orchestrator.workflows import RunOptions, RunSpec

C = TypeVar("C")
Change = Callable[[RunOptions], RunOptions]
"""Gives options back as a suite wants them."""


async def replayed(case: CaseRow, change: Change) -> CaseResult:
    """Plays a case from its tape, without a model and a sandbox."""
    started = time.monotonic()
    body = load_body(case.body)
    played = await play(body, replace(body.spec, options=change(body.spec.options)))
    return judge_replay(case, body, played, _since(started))


class LivePlayer:
    """Runs cases anew, with the model and the sandbox.

    Args:
        manager: makes the runs.
        suite: what the runs' label `suite` says.
    """

    def __init__(self, manager: RunManager, suite: str) -> None:
        self._manager = manager
        self._suite = suite

    async def __call__(self, case: CaseRow, change: Change) -> CaseResult:
        """Makes a run of the case and waits for its end; whoever leaves takes the run with it."""
        started = time.monotonic()
        body = load_body(case.body)
        labels = {**body.spec.labels, "suite": self._suite, "case": case.name}
        spec = replace(body.spec, tenant=case.tenant, labels=labels, options=change(body.spec.options))
        record = await self._created(spec)
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
