"""Carries one job out: makes what the guest needs, gives the order, follows it and puts the outcome together."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from sandbox_service.cells.base import OutputSink
from sandbox_service.cells.cgroups import Group
from sandbox_service.cells.order import collected, header, memory_file
from sandbox_service.cells.report import ReportBuilder
from sandbox_service.cells.result import result
from sandbox_service.cells.supervision import Supervision
from sandbox_service.cells.template import TemplateProcess
from sandbox_service.domain import Isolation, Job, JobOutcome, Program, TestRun
from sandbox_service.errors import CellUnavailable
from sandbox_service.guest import wire

_DEATH_FOLLOWS_S = 0.2
"""A cell that ended without a word was mostly killed with its template, whose own end is seen a little later."""


@dataclass(frozen=True, slots=True)
class Order:
    """A job with all that is decided about it: how it starts, as whom, and in which control group."""

    job: Job
    start: Mapping[str, Any]
    uid: int
    group: Group | None
    memory_counted: bool
    """Whether the group limits memory; where it does not, the address space is limited."""


async def carry_out(
    order: Order, template: TemplateProcess, isolation: Isolation, sink: OutputSink | None
) -> JobOutcome:
    """Runs one job in a cell that `template` forks, and returns when the cell is gone.

    Raises:
        CellUnavailable: the program did not start, or the template died with it.
        CellFailure: the cell broke its protocol, or could not be ended.
    """
    job = order.job
    report = ReportBuilder() if isinstance(job, TestRun) else None
    with ExitStack() as stack:
        supervision = Supervision(job.limits, order.group, sink, report)
        stack.callback(supervision.close)
        brought = -1
        if job.collect:
            brought = os.memfd_create("codemend-files", os.MFD_CLOEXEC)
            stack.callback(os.close, brought)
        await _give(order, template, supervision, brought)
        await supervision.run()
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
        return JobOutcome(execution, report.report(execution.status) if report else None)


async def _give(order: Order, template: TemplateProcess, supervision: Supervision, brought: int) -> None:
    """Hands the template everything in the sequence of `wire.ORDER_FDS`, and closes the service's own copies."""
    job = order.job
    tests = isinstance(job, TestRun)
    with ExitStack() as given:
        given.callback(supervision.guest_control.close)
        opened = [memory_file(wire.pack_job(*header(job, order.start, order.uid, memory_counted=order.memory_counted)))]
        given.callback(os.close, opened[0])
        stdin = job.stdin if isinstance(job, Program) else b""
        opened.append(memory_file(stdin) if stdin else os.open(os.devnull, os.O_RDONLY))
        given.callback(os.close, opened[-1])
        for use in ("stdout", "stderr", "report") if tests else ("stdout", "stderr"):
            opened.append(supervision.pipe(use))
            given.callback(os.close, opened[-1])
        optional = [brought] if brought >= 0 else []
        groups = order.group.descriptors if order.group else []
        descriptors = [supervision.guest_control.fileno(), *opened, *optional, *groups]
        await template.order({"report": tests, "collect": brought >= 0}, descriptors)
    if order.group is not None:
        order.group.close_descriptors()
