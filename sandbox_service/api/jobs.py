"""Carries jobs from requests to the scheduler and back, in a fresh workspace or in a session's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from codemend.sandbox.v1 import sandbox_pb2 as pb

from sandbox_service.api.once import Time
from sandbox_service.cells import OutputSink
from sandbox_service.domain import Entry, JobOutcome, Lease, Program, TestRun
from sandbox_service.replies import result_to, update_to
from sandbox_service.scheduler import Scheduler
from sandbox_service.session_jobs import WorkspaceUpdate, in_workspace, settle
from sandbox_service.sessions import SessionStore
from sandbox_service.validation import Rules

AnyJob = TypeVar("AnyJob", Program, TestRun)
Read = Callable[[Rules, Sequence[Entry] | None], AnyJob]
"""Makes the job of a request, given the rules that hold for it and the workspace that it runs in, if any."""


@dataclass(frozen=True, slots=True)
class Done:
    """A job that has ended, and what became of its session's workspace."""

    outcome: JobOutcome
    update: WorkspaceUpdate | None = None

    def result(self) -> pb.ExecutionResult:
        """The execution as its message."""
        message = result_to(self.outcome.result)
        if self.update is not None:
            message.workspace.CopyFrom(update_to(self.update))
        return message


class JobRunner:
    """Runs the jobs of calls."""

    def __init__(self, scheduler: Scheduler, rules: Rules, sessions: SessionStore) -> None:
        self._scheduler = scheduler
        self._rules = rules
        self._sessions = sessions

    async def run(
        self, read: Read[AnyJob], lease: Lease, time: Time, *, prefix: str = "", sink: OutputSink | None = None
    ) -> Done:
        """Reads a job and runs it, in the lease's session where it names one.

        Args:
            read: makes the job.
            lease: for whom it runs.
            time: how long it may take.
            prefix: of its fields' names in the request.
            sink: gets the output as it appears.

        Raises:
            SessionNotFound, SessionBusy: as the sessions say.
            SandboxError: as the reader and the scheduler say.
        """
        if not lease.session:
            return Done(await self._submit(read(self._rules, None), lease, time, sink))
        async with self._sessions.use(lease.tenant, lease.session) as hold:
            defaults = replace(self._rules.defaults, disk_bytes=hold.disk_bytes)
            rules = replace(self._rules, defaults=defaults)
            job = in_workspace(read(rules, tuple(hold.workspace.entries.values())), hold, prefix)
            outcome = await hold.run(self._submit(job, lease, time, sink))
            return Done(outcome, await settle(job, outcome, hold))

    async def _submit(self, job: Program | TestRun, lease: Lease, time: Time, sink: OutputSink | None) -> JobOutcome:
        return await self._scheduler.submit(job, deadline=time.deadline, patience=time.patience, sink=sink, lease=lease)
