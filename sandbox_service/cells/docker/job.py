"""Carries one job out in a container: packs the order, follows it and puts the outcome together."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from sandbox_service.cells.base import OutputSink
from sandbox_service.cells.changes import ChangesReader
from sandbox_service.cells.docker.container import Container
from sandbox_service.cells.docker.following import Following
from sandbox_service.cells.judging import Part
from sandbox_service.cells.order import header, read_collected
from sandbox_service.cells.result import result
from sandbox_service.cells.verdict import Kill
from sandbox_service.domain import Isolation, JobOutcome, Program, TestRun
from sandbox_service.errors import CellFailure, CellUnavailable
from sandbox_service.guest.confinement.rootfs import JOB_UID
from sandbox_service.guest.exchange import frames, wire

_CHANNEL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Carried:
    """A job's outcome, and whether its container is as clean as before."""

    outcome: JobOutcome
    is_clean: bool


async def carry_out(
    part: Part, container: Container, isolation: Isolation, sink: OutputSink | None, *, keep: bool
) -> Carried:
    """Runs a part of a job in a container that nobody else uses. Where this raises, it is not to be used again.

    Args:
        part: what is to be run.
        container: where.
        isolation: what the reply says of it.
        sink: gets the output as it appears.
        keep: whether the container is to be wiped afterwards, for another job.

    Raises:
        CellUnavailable: the program did not start, or the engine went away with it.
        CellFailure: the container broke its protocol.
    """
    job = part.job
    changes = None if job.workspace is None else ChangesReader(job.workspace_bytes, job.reserve)
    following = Following(container, job.limits, sink=sink, report=part.report, changes=changes)
    order = pack(part, following.streams, keep=keep)
    async with _connected(part, following):
        await following.run(order)
    out_of_memory = False
    if not following.is_done and following.kill is None:
        out_of_memory = await _was_out_of_memory(container)
    files, left_out = read_collected(bytes(following.files)) if following.is_done and following.files else ((), ())
    execution = result(
        following,
        job.limits,
        following.usage(out_of_memory=out_of_memory),
        isolation,
        files=files,
        left_out=left_out,
        memory_counted=False,
    )
    outcome = JobOutcome(execution, changes=changes.changes() if changes else None)
    return Carried(outcome, following.is_done and following.may_be_reused)


@asynccontextmanager
async def _connected(part: Part, following: Following) -> AsyncIterator[None]:
    """Passes on what another cell's program sends to this one, and ends this one when nobody waits for it."""
    tasks = []
    if part.over is not None:
        tasks.append(asyncio.create_task(_end_when(part.over, following)))
    if part.channel is not None:
        reader, writer = await asyncio.open_connection(sock=part.channel)
        following.answer = writer
        tasks.append(asyncio.create_task(_pass_on(reader, following)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        if following.answer is not None:
            following.answer.close()


async def _end_when(over: asyncio.Event, following: Following) -> None:
    await over.wait()
    following.end_job(Kill.WALL_TIME)


async def _pass_on(reader: asyncio.StreamReader, following: Following) -> None:
    """Until the other cell's program closes its end, which is passed on too."""
    chunk = b"-"
    while chunk:
        try:
            chunk = await reader.read(_CHANNEL_BYTES)
        except ConnectionError:
            chunk = b""
        following.put(chunk)


async def _was_out_of_memory(container: Container) -> bool:
    """Why a container has ended under its job."""
    try:
        found = await container.was_out_of_memory()
    except CellUnavailable as error:
        raise CellUnavailable(f"the engine went away during the job: {error}") from error
    if found is None:
        raise CellFailure(f"the channel to a container broke during its job: {container.words}")
    return found


def pack(part: Part, streams: Sequence[str], *, keep: bool) -> Iterator[bytes]:
    """The frames of an order: the job without its tests, its stdin, and the tests, which another user lays out."""
    job = part.job
    bare = replace(job, tests=()) if isinstance(job, TestRun) else job
    described, blobs = header(bare, part.start, JOB_UID, memory_counted=False)
    described["limits"]["rlimit_processes"] += 1  # process 1 has the job's user
    tests = b""
    if isinstance(job, TestRun):
        only = replace(job, files=(), workspace=None)
        tests_described, tests_blobs = header(
            only, {"links": part.start.get("links", {})}, JOB_UID, memory_counted=False
        )
        tests = wire.pack_job(tests_described, tests_blobs)
    order = {
        "streams": list(streams),
        "channel": part.channel is not None,
        "collect": bool(job.collect),
        "reused": keep,
        "output_bytes": job.limits.output_bytes,
    }
    stdin = job.stdin if isinstance(job, Program) else b""
    return frames.pack_order(order, [wire.pack_job(described, blobs), stdin, tests])
