"""What a kind of cell is: the contract that the scheduler and the servicer rely on, whatever the kind."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sandbox_service.domain import NO_LEASE, Job, JobOutcome, Lease, Protection

OutputSink = Callable[[int, bytes], None]
"""Called with 1 (stdout) or 2 (stderr) and the next bytes, on the event loop, as they are read. Must not block."""


class CellKind(Protocol):
    """Makes cells of one kind and runs jobs in them.

    `start` and `stop` are a pair: `stop` leaves no process, mount, cgroup or file behind, also after a failed `start`.
    """

    name: str
    """Kind, as callers see it, such as "process"."""

    async def start(self) -> None:
        """Brings the kind up; whether it can be believed is shown by the start-up proof, which runs jobs in it.

        Raises:
            CellUnavailable: this machine cannot run such cells; the message says what is missing and how to mend it.
        """

    async def run(self, job: Job, sink: OutputSink | None = None, *, lease: Lease = NO_LEASE) -> JobOutcome:
        """Runs one job in a cell and returns when nothing of the job is left.

        The cell is fresh, unless the kind is set to reuse cells within one lease.

        Cancelling the task that awaits this kills the job; nothing of it is left when the cancellation comes out.

        Raises:
            InvalidJob: the job asks for something this kind cannot give.
            CellUnavailable: no cell could be made; the job has not started.
            CellFailure: the cell died or broke its protocol; what the job did is unknown.
        """

    async def stop(self) -> None:
        """Kills what runs and removes everything that the kind made."""

    def protections(self) -> Sequence[Protection]:
        """Every protection that the service knows, and whether it is in force here. Valid after `start`."""

    def degrade(self, missing: Mapping[str, str]) -> None:
        """Takes back protections that failed the start-up proof: name -> why. From now on every reply says so.

        Raises:
            CellUnavailable: one of them is required.
        """

    def forget(self, lease: Lease) -> None:
        """A lease is over: nothing is kept for it any more."""

    def language_versions(self) -> dict[str, str]:
        """Interpreter or toolchain version of each language. Valid after `start`."""
