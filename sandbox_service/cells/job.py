"""Carries one job out: makes what the guest needs, gives the order, follows it and puts the outcome together."""

import asyncio
import json
import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass

from sandbox_service.cells.base import OutputSink
from sandbox_service.cells.cgroups import Group
from sandbox_service.cells.changes import ChangesReader
from sandbox_service.cells.judging import Part
from sandbox_service.cells.order import collected, header, memory_file
from sandbox_service.cells.ready import OUTPUTS, LostCell, ReadyCell
from sandbox_service.cells.result import result
from sandbox_service.cells.supervision import Supervision
from sandbox_service.cells.template import TemplateProcess
from sandbox_service.cells.verdict import Kill
from sandbox_service.domain import Isolation, JobOutcome, Program
from sandbox_service.errors import CellUnavailable
from sandbox_service.guest.exchange import wire

_DEATH_FOLLOWS_S = 0.2
"""A cell that ended without a word was mostly killed with its template, whose own end is seen a little later."""
_LARGE_ENTRIES, _LARGE_BYTES = 500, 4 * 1024 * 1024
"""A workspace above one of these is written out in a thread: it would hold up all other jobs."""


@dataclass(frozen=True, slots=True)
class Order:
    """A cell's part of a job with all that is decided about it: as whom it runs, and in which control group."""

    part: Part
    uid: int
    group: Group | None
    memory_counted: bool
    """Whether the group limits memory; where it does not, the address space is limited."""
    ready: ReadyCell | None = None
    """The cell, where it is made already."""


async def carry_out(
    order: Order, template: TemplateProcess, isolation: Isolation, sink: OutputSink | None
) -> JobOutcome:
    """Runs one job in a cell that `template` forks, and returns when the cell is gone.

    Raises:
        LostCell: the cell was made ahead, and its program did not start.
        CellUnavailable: the program did not start, or the template died with it.
        CellFailure: the cell broke its protocol, or could not be ended.
    """
    job = order.part.job
    with ExitStack() as stack:
        changes = None if job.workspace is None else ChangesReader(job.workspace_bytes, job.reserve)
        supervision = Supervision(job.limits, order.group, sink, order.part.report, changes=changes, ready=order.ready)
        stack.callback(supervision.close)
        brought = -1
        if job.collect:
            brought = os.memfd_create("codemend-files", os.MFD_CLOEXEC)
            stack.callback(os.close, brought)
        await _give(order, template, supervision, brought)
        if order.part.over is not None:
            ending = asyncio.ensure_future(_end_when(order.part.over, supervision))
            stack.callback(ending.cancel)
        try:
            await supervision.run()
        except CellUnavailable as error:
            if order.ready is None:
                raise
            raise LostCell(str(error)) from error
        if not supervision.end and supervision.kill is None and await template.has_died(within=_DEATH_FOLLOWS_S):
            raise CellUnavailable("the template died during the job")
        is_brought = brought >= 0 and "cpu" in supervision.end  # the last word of process 1: all files are there
        files, left_out = collected(brought) if is_brought else ((), ())
        execution = result(
            supervision,
            job.limits,
            order.group.usage() if order.group else None,
            isolation,
            files=files,
            left_out=left_out,
            memory_counted=order.memory_counted,
        )
        return JobOutcome(execution, changes=changes.changes() if changes else None)


async def _end_when(over: asyncio.Event, supervision: Supervision) -> None:
    """Ends a program that nobody waits for any more; what its status then says is not looked at."""
    await over.wait()
    supervision.end_job(Kill.WALL_TIME)


async def _give(order: Order, template: TemplateProcess, supervision: Supervision, brought: int) -> None:
    """Hands the template everything in the sequence of `wire.ORDER_FDS`, and closes the service's own copies."""
    job, channel = order.part.job, order.part.channel
    with ExitStack() as given:
        fds = {"spec": await _job_file(order)}
        given.callback(os.close, fds["spec"])
        stdin = job.stdin if isinstance(job, Program) else b""
        fds["stdin"] = memory_file(stdin) if stdin else os.open(os.devnull, os.O_RDONLY)
        given.callback(os.close, fds["stdin"])
        piped = [] if order.ready else list(OUTPUTS)
        piped += ["report"] if order.part.report is not None else []
        piped += ["changes"] if job.workspace is not None else []
        for use in piped:
            fds[use] = supervision.pipe(use)
            given.callback(os.close, fds[use])
        if brought >= 0:
            fds["collect"] = brought
        if channel is not None:
            fds["channel"] = channel.fileno()
            given.callback(channel.close)
        if supervision.guest_control is None:
            _give_ready(supervision.control, fds)
        else:
            given.callback(supervision.guest_control.close)
            optional = [name for name in wire.OPTIONAL_FDS if name in fds]
            groups = order.group.descriptors if order.group else []
            descriptors = [fds[name] for name in (*wire.ORDER_FDS[1:], *optional)]
            descriptors = [supervision.guest_control.fileno(), *descriptors, *groups]
            await template.order(dict.fromkeys(optional, True), descriptors)
    if order.group is not None:
        order.group.close_descriptors()


def _give_ready(control: socket.socket, fds: dict[str, int]) -> None:
    """Gives a cell that is made already its job."""
    try:
        socket.send_fds(control, [json.dumps(list(fds)).encode()], list(fds.values()))
    except OSError as error:
        raise LostCell(f"the cell ended before its job came: {error}") from error


async def _job_file(order: Order) -> int:
    """The job's memory file; a cancellation that comes while a thread writes it closes it afterwards."""
    workspace = order.part.job.workspace or ()
    if len(workspace) < _LARGE_ENTRIES and sum(len(entry.content) for entry in workspace) < _LARGE_BYTES:
        return _write_job(order)
    writing = asyncio.get_running_loop().run_in_executor(None, _write_job, order)
    try:
        return await asyncio.shield(writing)
    except asyncio.CancelledError:
        writing.add_done_callback(lambda done: None if done.exception() else os.close(done.result()))
        raise


def _write_job(order: Order) -> int:
    described, blobs = header(order.part.job, order.part.start, order.uid, memory_counted=order.memory_counted)
    return memory_file(*wire.job_parts(described, blobs))
