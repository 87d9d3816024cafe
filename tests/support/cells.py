"""Cells that run nothing: each job waits until the test ends it. For tests of the layers above the cells."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta

from sandbox_service.cells import OutputSink
from sandbox_service.domain import NO_LEASE, Isolation, Job, JobOutcome, Lease, Protection, Result, Status


class HeldCells:
    """A CellKind whose jobs run until `release`, `fail` or a cancellation ends them."""

    name = "held"

    def __init__(self) -> None:
        self.started: list[Job] = []
        self.leases: list[Lease] = []
        self.killed: list[Job] = []
        self.sinks: list[OutputSink | None] = []
        self.kill_takes: asyncio.Event | None = None
        self._ends: list[asyncio.Future[JobOutcome]] = []
        self._changed = asyncio.Condition()

    async def start(self) -> None:
        """Nothing to start."""

    async def run(self, job: Job, sink: OutputSink | None = None, *, lease: Lease = NO_LEASE) -> JobOutcome:
        """Holds the job."""
        end: asyncio.Future[JobOutcome] = asyncio.get_running_loop().create_future()
        self.started.append(job)
        self.leases.append(lease)
        self.sinks.append(sink)
        self._ends.append(end)
        async with self._changed:
            self._changed.notify_all()
        try:
            return await end
        except asyncio.CancelledError:
            if self.kill_takes is not None:
                await self.kill_takes.wait()
            self.killed.append(job)
            raise

    async def stop(self) -> None:
        """Nothing to stop."""

    def protections(self) -> Sequence[Protection]:
        """One that holds and one that does not."""
        return (
            Protection("rlimits", in_force=True, detail=""),
            Protection("own_uid", in_force=False, detail="no root"),
        )

    def degrade(self, missing: Mapping[str, str]) -> None:
        """Nothing to take back."""

    def forget(self, lease) -> None:
        """Nothing is kept for a lease."""

    def language_versions(self) -> dict[str, str]:
        """Python alone."""
        return {"python": "3.11.7"}

    def release(self, index: int, outcome: JobOutcome | None = None) -> None:
        """Ends a job, by the order of starting."""
        self._ends[index].set_result(outcome or succeeded())

    def fail(self, index: int, error: Exception) -> None:
        """Makes the cell of a job fail."""
        self._ends[index].set_exception(error)

    async def running(self, number: int) -> None:
        """Waits until so many jobs have started."""
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(lambda: len(self.started) >= number)


def succeeded(wall_time: timedelta = timedelta()) -> JobOutcome:
    """The outcome of a program that ended well."""
    return JobOutcome(Result(Status.SUCCEEDED, Isolation("held", ()), exit_code=0, wall_time=wall_time))
