"""Jobs in sessions: what a job is given of its session's workspace, and what becomes of that when it has ended."""

import asyncio
from dataclasses import dataclass, replace
from typing import TypeVar

from sandbox_service.domain import JobOutcome, Program, TestRun, WorkspaceChanges
from sandbox_service.errors import InvalidJob, SessionStorageFull
from sandbox_service.sessions import Hold
from sandbox_service.validation import LEAST_MEMORY_BYTES
from sandbox_service.workspace import MisplacedError, Workspace

_MANY_ENTRIES = 2000
"""A workspace with more is put together in a thread: it would hold up other calls."""
AnyJob = TypeVar("AnyJob", Program, TestRun)


@dataclass(frozen=True, slots=True)
class WorkspaceUpdate:
    """What a job did to its session: counts of paths, and why nothing of it was kept, if so."""

    kept: bool
    reason: str = ""
    written: int = 0
    removed: int = 0
    left_out: tuple[bytes, ...] = ()


def in_workspace(job: AnyJob, hold: Hold, prefix: str = "") -> AnyJob:
    """The job with the session's workspace below its own files.

    Args:
        job: a checked job.
        hold: the session.
        prefix: of the names of its fields in the request, such as "program.".

    Raises:
        InvalidJob: its files do not fit into the workspace, or its limits are below what lies there already.
    """
    try:
        entries = hold.workspace.under(job.files)
    except MisplacedError as error:
        raise InvalidJob((f"{prefix}files", str(error))) from error
    replaced = (hold.workspace.entries.get(file.path.encode()) for file in job.files)
    taken = hold.workspace.used_bytes - sum(entry.disk_bytes for entry in replaced if entry)
    taken += sum(file.disk_bytes for file in job.files)
    for name, least in (("disk_bytes", taken), ("memory_bytes", taken + LEAST_MEMORY_BYTES)):
        if (limit := getattr(job.limits, name)) < least:
            text = f"is {limit}; the session's files and those of the call need {least}"
            raise InvalidJob((f"{prefix}limits.{name}", text))
    return replace(job, workspace=entries, workspace_bytes=hold.room_bytes, reserve=hold.reserve)


async def settle(job: Program | TestRun, outcome: JobOutcome, hold: Hold) -> WorkspaceUpdate:
    """Gives the session what its job left, as a whole or not at all.

    Raises:
        CellFailure: the cell has told what cannot be.
        SessionNotFound: the session has ended.
    """
    hold.count_job()
    changes = outcome.changes
    if changes is None:
        return WorkspaceUpdate(kept=False, reason="the cell ended as a whole, before it could tell what had changed")
    if changes.refusal:
        return WorkspaceUpdate(kept=False, reason=changes.refusal)
    if changes.oversize_bytes:
        return WorkspaceUpdate(kept=False, reason=_too_large(changes.oversize_bytes, job.workspace_bytes, hold))
    before = hold.workspace
    if max(len(before.entries), len(changes.written)) > _MANY_ENTRIES:
        after, written, removed = await asyncio.to_thread(_applied, job, before, changes)
    else:
        after, written, removed = _applied(job, before, changes)
    if after.used_bytes > hold.disk_bytes:
        return WorkspaceUpdate(kept=False, reason=_too_large(after.used_bytes, hold.disk_bytes, hold))
    try:
        hold.keep(after)
    except SessionStorageFull as error:
        return WorkspaceUpdate(kept=False, reason=str(error))
    return WorkspaceUpdate(kept=True, written=written, removed=removed, left_out=changes.left_out)


def _too_large(found_bytes: int, room_bytes: int, hold: Hold) -> str:
    text = f"the job left files of {found_bytes} bytes; "
    if room_bytes < hold.disk_bytes:
        return f"{text}all sessions together leave room for {room_bytes}"
    return f"{text}the session may hold {hold.disk_bytes}"


def _applied(job: Program | TestRun, before: Workspace, changes: WorkspaceChanges) -> tuple[Workspace, int, int]:
    """The workspace after the job, the number of paths that are new or changed, and of those that are gone."""
    laid = before.with_files(job.files)
    after = laid.with_changes(changes)
    old = before.entries
    written = sum(1 for path, entry in after.entries.items() if (was := old.get(path)) is not entry and was != entry)
    return after, written, len(old.keys() - after.entries.keys())
