"""Follows one job from its order to the end of its cell: output, limits, kill, and the evidence of how it ended.

Everything is driven by descriptors on the event loop; no wait here is without a bound.
"""

import array
import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from sandbox_service.cells import handle, words
from sandbox_service.cells.base import OutputSink
from sandbox_service.cells.cgroups import Group
from sandbox_service.cells.changes import ChangesReader
from sandbox_service.cells.output import LimitedOutput
from sandbox_service.cells.ready import ReadyCell
from sandbox_service.cells.report import ReportBuilder
from sandbox_service.cells.verdict import Kill
from sandbox_service.domain import Limits
from sandbox_service.errors import CellFailure, CellUnavailable
from sandbox_service.guest.exchange import wire

_SET_UP_TIMEOUT_S = 15.0
_SOFT_KILL_S = 0.4
"""What process 1 of a cell gets to end its job, bring out files and report, before the whole cell is killed."""
_COLLECT_S = 5.0
"""What process 1 gets after its program's end to reap, look at the disk and bring out files."""
_GONE_TIMEOUT_S = 5.0
_READ_BYTES = 256 * 1024
_MIN_CPU_POLL_S = 0.02


class Supervision:
    """One job. `run` may be awaited once; `close` releases every descriptor."""

    def __init__(
        self,
        limits: Limits,
        group: Group | None,
        sink: OutputSink | None,
        report: ReportBuilder | None,
        *,
        changes: ChangesReader | None = None,
        ready: ReadyCell | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits, self._group, self._report = limits, group, report
        self._changes = changes
        self._workspace_s = changes.seconds if changes else 0.0
        self._output = LimitedOutput(limits.output_bytes, sink, lambda: self.end_job(Kill.OUTPUT))
        self.stdout, self.stderr = self._output.stdout, self._output.stderr
        self.kill: Kill | None = None
        self.started_ns = 0
        self.end: dict[str, Any] = {}
        self._fault = ""
        self._broken = ""
        self._unconfined = False
        self._handle = -1
        self._must_die = False
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._pipes: dict[int, Callable[[bytes], None]] = {}
        self._timers: list[asyncio.TimerHandle] = []
        self.guest_control: socket.socket | None = None
        if ready is None:
            self.control, self.guest_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.control.setblocking(False)  # noqa: FBT003 - the socket API's own signature
        else:
            self.control = ready.control
            self._watch_handle(ready.handle)
            for use in list(ready.pipes):
                self._read_from(ready.pipes.pop(use), use)
            ready.handle = -1
        self._descriptor = self.control.fileno()  # for the loop, which would describe a socket by system calls
        self._loop.add_reader(self._descriptor, self._on_control)

    def pipe(self, use: str) -> int:
        """Makes the pipe for "stdout", "stderr", "report" or "changes" and returns the end that the guest gets.

        The caller closes it.
        """
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        self._read_from(ours, use)
        return theirs

    def _read_from(self, ours: int, use: str) -> None:
        takers = {"stdout": self._output.take_stdout, "stderr": self._output.take_stderr, "report": self._take_report}
        self._pipes[ours] = takers.get(use, self._take_changes)
        self._loop.add_reader(ours, self._on_pipe, ours)

    async def run(self) -> None:
        """Waits until the cell is gone.

        Raises:
            CellUnavailable: the program never started.
            CellFailure: the cell could not be killed, or broke its protocol.
        """
        try:
            async with asyncio.timeout(_SET_UP_TIMEOUT_S + self._workspace_s):
                await asyncio.wait((self._started, self._gone), return_when=asyncio.FIRST_COMPLETED)
            if not self._gone.done():
                await self._gone
        except TimeoutError:
            self._fault = f"the cell was not set up within {_SET_UP_TIMEOUT_S + self._workspace_s:g} s"
            await self._destroy()
        except asyncio.CancelledError:
            await asyncio.shield(self._destroy())
            raise
        if self._broken:
            raise CellFailure(self._broken)
        if not self.started_ns or self._unconfined:
            raise CellUnavailable(self._fault or "the cell ended before its program started")

    async def _destroy(self) -> None:
        self._kill_now()
        done, _pending = await asyncio.wait((self._gone,), timeout=_GONE_TIMEOUT_S)
        if not done:
            raise CellFailure(f"the cell did not end within {_GONE_TIMEOUT_S:g} s of its kill")

    def close(self) -> None:
        """Releases every descriptor and timer."""
        self._stop_timers()
        for descriptor in list(self._pipes):
            self._close_pipe(descriptor)
        del self._output  # which refers back to this: what it keeps must not wait for the garbage collector
        self._loop.remove_reader(self._descriptor)
        self.control.close()
        if self.guest_control is not None:
            self.guest_control.close()
        if self._handle >= 0:
            self._loop.remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1

    def _stop_timers(self) -> None:
        while self._timers:
            self._timers.pop().cancel()

    @property
    def ended_ns(self) -> int:
        """CLOCK_MONOTONIC at the program's end."""
        ended: int | None = self.end.get("ended")
        return time.monotonic_ns() if ended is None else ended

    def end_job(self, reason: Kill) -> None:
        """Ends the job for a limit: first by its own process 1, which can still report, then by force."""
        if self.kill is not None:
            return
        self.kill = reason
        with contextlib.suppress(OSError):
            self.control.send(b"end")
        self._timers.append(self._loop.call_later(_SOFT_KILL_S + self._workspace_s, self._kill_now))

    def _kill_now(self) -> None:
        self._must_die = True
        if self._handle >= 0:
            handle.kill(self._handle)

    def _on_control(self) -> None:
        """Takes all packets that are there."""
        while True:
            try:
                packet, ancillary, _flags, _address = self.control.recvmsg(wire.MAX_PACKET_BYTES, socket.CMSG_SPACE(4))
            except BlockingIOError:
                return
            except OSError:
                packet, ancillary = b"", []
            if ancillary:
                self._take_handle(ancillary[0][2])
            if not packet:
                break
            try:
                self._take_message(words.message(packet))
            except (ValueError, TypeError, KeyError) as error:
                self._broken = f"the cell told what no cell tells: {error}"[:256]
                self._kill_now()
        self._loop.remove_reader(self._descriptor)
        if self._handle < 0:  # nobody is left who could send it
            self._finish()

    def _take_handle(self, content: bytes) -> None:
        numbers = array.array("i", content[:4])
        self._watch_handle(numbers[0])

    def _watch_handle(self, handle: int) -> None:
        self._handle = handle
        self._loop.add_reader(self._handle, self._on_gone)
        if self._must_die:
            self._kill_now()

    def _take_message(self, message: Mapping[str, Any]) -> None:
        if "fault" in message:
            self._fault = words.fault(message)
            self._unconfined = self._unconfined or "unconfined" in message  # then nothing of the program has run
        elif "started" in message and not self.started_ns:
            self.started_ns = min(words.start(message), time.monotonic_ns())
            _resolve(self._started)
            passed = (time.monotonic_ns() - self.started_ns) / 1e9
            left = self._limits.wall_time.total_seconds() - passed
            self._timers.append(self._loop.call_later(max(left, 0), self.end_job, Kill.WALL_TIME))
            self._watch_cpu()
        elif "status" in message and "status" not in self.end:
            self.end = words.ending(message)
            self.end["ended"] = min(max(self.end["ended"], self.started_ns), time.monotonic_ns())
            self._stop_timers()
            self._timers.append(self._loop.call_later(_COLLECT_S + self._workspace_s, self._kill_now))
        elif "cpu" in message and "status" in self.end:
            self.end |= words.usage(message)

    def _watch_cpu(self) -> None:
        """Looks at the group's processor time no more often than it could have reached its limit."""
        if self._group is None or not self._group.counts_cpu:
            return
        left = self._limits.cpu_time.total_seconds() - self._group.cpu_seconds()
        if left <= 0:
            self.end_job(Kill.CPU_TIME)
            return
        pause = max(left / (os.cpu_count() or 1), _MIN_CPU_POLL_S)
        self._timers.append(self._loop.call_later(pause, self._watch_cpu))

    def _on_gone(self) -> None:
        """Process 1 is gone, and the kernel has ended all others before it.

        What is in the pipes is all there will be.
        """
        self._loop.remove_reader(self._handle)
        self._on_control()
        for descriptor in list(self._pipes):
            while self._read(descriptor):
                pass
            self._close_pipe(descriptor)
        self._finish()

    def _finish(self) -> None:
        _resolve(self._gone)

    def _on_pipe(self, descriptor: int) -> None:
        if self._read(descriptor) == 0:
            self._close_pipe(descriptor)

    def _read(self, descriptor: int) -> int | None:
        """Takes the next bytes of a pipe; their number, 0 at its end, None where there is nothing yet."""
        try:
            chunk = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return None
        self._pipes[descriptor](chunk)
        return len(chunk)

    def _close_pipe(self, descriptor: int) -> None:
        if self._pipes.pop(descriptor, None) is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)

    def _take_report(self, chunk: bytes) -> None:
        if self._report is not None:
            self._report.feed(chunk)

    def _take_changes(self, chunk: bytes) -> None:
        if self._changes is not None:
            self._changes.feed(chunk)


def _resolve(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
