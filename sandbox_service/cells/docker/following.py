"""Follows one job in a container by the frames that come out of it: output, limits, kill, and how it ended.

For containers what `cells.supervision` is for processes. Nothing that a frame says is taken without a look at its form.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sandbox_service.cells import words
from sandbox_service.cells.base import OutputSink
from sandbox_service.cells.cgroups import GroupUsage
from sandbox_service.cells.changes import ChangesReader
from sandbox_service.cells.docker.container import Container
from sandbox_service.cells.order import MAX_BROUGHT_BYTES
from sandbox_service.cells.output import LimitedOutput
from sandbox_service.cells.report import ReportBuilder
from sandbox_service.cells.verdict import Kill
from sandbox_service.domain import Limits
from sandbox_service.errors import CellFailure, CellUnavailable
from sandbox_service.guest.exchange import frames
from sandbox_service.guest.exchange.frames import FromGuest, ToGuest

_SET_UP_TIMEOUT_S = 15.0
_SOFT_KILL_S = 0.8
"""What the guest gets to end its job and report, before the container is killed: gVisor is slow when it is busy."""
_COLLECT_S = 10.0
_PROCESS_LIMIT_WORDS = (b"Resource temporarily unavailable", b"can't start new thread", b"Cannot fork")
"""Last words of programs that may not start a process: inside a container no control group counts the refusals."""
_LAST_WORDS_BYTES = 2048
_MOST_UNREAD_BYTES = 64 * 1024 * 1024


class Following:
    """One job. `run` may be awaited once.

    Attributes:
        streams: names of the streams that the guest is asked for.
        answer: gets what the program sends over its channel to another cell; None: it has none.
    """

    def __init__(
        self,
        container: Container,
        limits: Limits,
        *,
        sink: OutputSink | None,
        report: ReportBuilder | None,
        changes: ChangesReader | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._container, self._limits = container, limits
        self._report, self._changes = report, changes
        output = LimitedOutput(limits.output_bytes, sink, lambda: self.end_job(Kill.OUTPUT))
        self.stdout, self.stderr = output.stdout, output.stderr
        takers: dict[str, Callable[[bytes], None]] = {"stdout": output.take_stdout, "stderr": output.take_stderr}
        takers |= {"report": report.feed} if report else {}
        takers |= {"changes": changes.feed} if changes else {}
        self.streams, self._takers = tuple(takers), tuple(takers.values())
        self.answer: asyncio.StreamWriter | None = None
        self.kill: Kill | None = None
        self.started_ns = self._guest_ended_ns = 0
        self._ordered = self._seen_started = time.monotonic()
        self.end: dict[str, Any] = {}
        self.files = bytearray()
        self.is_done = self.may_be_reused = False
        self._fault = ""
        self._unconfined = False
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._timers: list[asyncio.TimerHandle] = []

    async def run(self, order: Iterable[bytes]) -> None:
        """Gives the order and waits until the job is over, or the container is lost or killed.

        Raises:
            CellUnavailable: the program never started.
            CellFailure: the container spoke nonsense.
        """
        lost = self._container.lost
        self._container.listen(self._take)
        for frame in order:
            self._container.send(frame)
        waiting = asyncio.FIRST_COMPLETED
        try:
            async with asyncio.timeout(_SET_UP_TIMEOUT_S):
                await asyncio.wait((self._started, self._over, lost), return_when=waiting)
            await asyncio.wait((self._over, lost), return_when=waiting)
        except TimeoutError:
            raise CellUnavailable(f"the job was not set up within {_SET_UP_TIMEOUT_S:g} s") from None
        finally:
            self._stop_timers()
        if self._container.fault:
            raise CellFailure(f"a container broke its protocol: {self._container.fault}")
        if not self.started_ns or self._unconfined:
            raise CellUnavailable(self._fault or "the container ended before the program started")

    @property
    def ended_ns(self) -> int:
        """The program's end, by the guest's clock; where it does not tell, by ours."""
        if self._guest_ended_ns:
            return self._guest_ended_ns
        return self.started_ns + int((time.monotonic() - self._seen_started) * 1e9)

    def usage(self, *, out_of_memory: bool) -> GroupUsage:
        """What the job used and met.

        Args:
            out_of_memory: the engine says that the whole container was killed for its memory.
        """
        words = self.stderr.output()
        last = (words.tail or words.head)[-_LAST_WORDS_BYTES:]
        refused = any(text in last for text in _PROCESS_LIMIT_WORDS)
        return GroupUsage(
            cpu_seconds=self.end.get("cpu", 0.0),
            peak_memory_bytes=self.end.get("peak_kib", 0) * 1024,
            out_of_memory_kills=int(out_of_memory),
            process_limit_hits=int(refused),
        )

    def put(self, chunk: bytes) -> None:
        """Sends bytes to the program's channel; none: the other end is closed."""
        self._container.send(frames.pack(ToGuest.CHANNEL, chunk))

    def end_job(self, reason: Kill) -> None:
        """Ends the job for a limit: first by the guest, which can still report, then with its container."""
        if self.kill is None:
            self.kill = reason
            self._container.send(frames.pack(ToGuest.END))
            self._after(_SOFT_KILL_S, self._give_up)

    def _give_up(self) -> None:
        self._container.begin_destroying()
        _resolve(self._over)

    def _after(self, seconds: float, what: Callable[..., None], *arguments: object) -> None:
        self._timers.append(self._loop.call_later(seconds, what, *arguments))

    def _stop_timers(self) -> None:
        while self._timers:
            self._timers.pop().cancel()

    def _take(self, kind: int, body: bytes) -> None:
        """Raises ValueError, TypeError or KeyError for what no honest guest sends; the stream is closed then."""
        if self._over.done():
            raise ValueError("a frame after the end")
        match kind:
            case FromGuest.STREAM:
                self._takers[body[0]](body[1:])
            case FromGuest.CONTROL:
                self._take_message(words.message(body))
            case FromGuest.FILES:
                self.files += body
                if len(self.files) > MAX_BROUGHT_BYTES:
                    raise ValueError("more files than a cell may bring")
            case FromGuest.CHANNEL:
                self._take_answer(body)
            case FromGuest.DONE:
                self._take_done(words.message(body))
            case _:
                raise ValueError(f"a frame of kind {kind} during a job")

    def _take_message(self, message: Mapping[str, Any]) -> None:
        if "fault" in message:
            self._fault = words.fault(message)
            self._unconfined = self._unconfined or "unconfined" in message  # then nothing of the program has run
        elif "started" in message and not self.started_ns:
            self.started_ns, self._seen_started = words.start(message), time.monotonic()
            self._after(self._limits.wall_time.total_seconds(), self.end_job, Kill.WALL_TIME)
            _resolve(self._started)
        elif "status" in message and "status" not in self.end:
            self._take_status(message)
        elif "cpu" in message and "status" in self.end:
            self.end |= words.usage(message)

    def _take_status(self, message: Mapping[str, Any]) -> None:
        end = words.ending(message)
        seen_ns = (time.monotonic() - self._ordered) * 1e9
        self._guest_ended_ns = min(max(end.pop("ended"), self.started_ns), self.started_ns + int(seen_ns) + 1)
        self.end = end
        self._stop_timers()
        self._after(_COLLECT_S + (self._changes.seconds if self._changes else 0.0), self._give_up)

    def _take_done(self, message: Mapping[str, Any]) -> None:
        self.is_done, self.may_be_reused = True, message["left"] is False
        _resolve(self._over)

    def _take_answer(self, body: bytes) -> None:
        answer = self.answer
        if answer is None or answer.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            raise ValueError("more on the channel than the other cell reads")
        if body:
            answer.write(body)
        elif answer.can_write_eof() and not answer.is_closing():
            answer.write_eof()


def _resolve(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
