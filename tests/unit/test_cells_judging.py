"""When judge and candidate start, and what becomes of a candidate's cell that the plan has no use for."""

import asyncio

import pytest
from support.cells import succeeded

from sandbox_service.cells.expectations import Expectations
from sandbox_service.cells.judging import Part, run_tests
from sandbox_service.domain import DEFAULT_LIMITS, File, JobOutcome, TestIsolation, TestRun
from sandbox_service.errors import CellUnavailable
from sandbox_service.guest.exchange.wire import Seal, frame
from sandbox_service.languages import LANGUAGES

SEPARATE, SHARED, AUTO = TestIsolation.SEPARATE, TestIsolation.SHARED, TestIsolation.AUTO
RUN = TestRun(files=(File("solution.py", b""),), tests=(File("test_a.py", b""),), limits=DEFAULT_LIMITS, isolation=AUTO)


class Cells:
    """A RunCell: the judge plans when the test lets it, the candidate's cell is lost, or runs until it is over."""

    def __init__(self, planned: TestIsolation, *, refused: str = "", lost: bool = False) -> None:
        self._planned, self._refused, self._lost = planned, refused, lost
        self.started: list[str] = []
        self.may_plan, self.may_end = asyncio.Event(), asyncio.Event()
        self.cleaning, self.may_be_gone = asyncio.Event(), asyncio.Event()
        self.gone = False
        self.candidate: Part | None = None

    async def run(self, part: Part) -> JobOutcome:
        if part.start["kind"] == "serve":
            return await self._serve(part)
        self.started.append("judge")
        await self.may_plan.wait()
        plan = {"kind": "plan", "isolation": self._planned, "reason": "", "refused": self._refused, "open": ""}
        assert part.report
        part.report.feed(frame({**plan, "read_only": True}, Seal(bytes.fromhex(part.start["key"]))))
        await self.may_end.wait()
        return succeeded()

    async def _serve(self, part: Part) -> JobOutcome:
        self.started.append("candidate")
        self.candidate = part
        if self._lost:
            raise CellUnavailable("its template died")
        try:
            assert part.over
            await part.over.wait()
        except asyncio.CancelledError:
            self.cleaning.set()
            await self.may_be_gone.wait()
            raise
        finally:
            self.gone = True
        return succeeded()


def started(cells: Cells, expectations: Expectations) -> asyncio.Task[JobOutcome]:
    return asyncio.create_task(run_tests(RUN, LANGUAGES["python"], cells.run, expectations))


async def settle() -> None:
    """Lets every task go on as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_both_start_at_once_where_the_code_is_expected_apart():
    cells = Cells(SEPARATE)
    call = started(cells, Expectations(SEPARATE))
    await settle()
    assert cells.started == ["judge", "candidate"]
    assert cells.candidate
    assert not cells.candidate.job.tests
    assert cells.candidate.job.limits.wall_time > RUN.limits.wall_time, "the judge's clock is the run's"
    for event in (cells.may_plan, cells.may_end):
        event.set()
        await settle()
    await call
    assert cells.gone


async def test_the_candidate_waits_for_the_plan_where_tests_beside_it_are_expected_and_no_longer_the_next_time():
    expectations = Expectations(SHARED)
    for before_the_plan in (["judge"], ["judge", "candidate"]):
        cells = Cells(SEPARATE)
        call = started(cells, expectations)
        await settle()
        assert cells.started == before_the_plan
        cells.may_plan.set()
        await settle()
        assert cells.started == ["judge", "candidate"]
        cells.may_end.set()
        await call


@pytest.mark.parametrize(("planned", "refused"), [(SHARED, ""), (SEPARATE, "needs a function")])
async def test_a_cell_without_use_is_ended_at_the_plan_and_gone_before_the_run_is_over(planned, refused):
    cells = Cells(planned, refused=refused)
    expectations = Expectations(SEPARATE)
    call = started(cells, expectations)
    await settle()
    cells.may_plan.set()
    await asyncio.wait_for(cells.cleaning.wait(), 5)
    cells.may_end.set()
    await settle()
    assert not call.done()
    call.cancel()  # cuts no cell's cleaning short
    await settle()
    assert not cells.gone
    cells.may_be_gone.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert cells.gone
    assert expectations.of(RUN) is SHARED


@pytest.mark.parametrize("planned", [SHARED, SEPARATE])
async def test_a_candidate_s_cell_that_is_lost_costs_those_runs_that_need_it(planned):
    cells = Cells(planned, lost=True)
    call = started(cells, Expectations(SEPARATE))
    await settle()
    for event in (cells.may_plan, cells.may_end):
        event.set()
        await settle()
    if planned is SHARED:
        assert (await call).report
    else:
        with pytest.raises(CellUnavailable, match="its template died"):
            await call
