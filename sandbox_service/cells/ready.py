"""Cells that are made ahead of their jobs, so that nobody waits for what is the same for every job.

One pool a template. Such a cell has walls, a user id and a control group already and holds nothing of any job; each
serves one job and is gone with it. Where a template cannot make cells ahead, or one was not made, there is none to be
had, and the job's cell is made when the job comes.
"""

import array
import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sandbox_service.cells import words
from sandbox_service.cells.cgroups import Group
from sandbox_service.cells.template import TemplateProcess
from sandbox_service.guest.exchange import wire

_log = logging.getLogger(__name__)
_MAKE_TIMEOUT_S = 15.0
OUTPUTS = ("stdout", "stderr")


class LostCell(Exception):  # noqa: N818 - the domain's name reads better without "Error"
    """A cell that was made ahead ended before its program started; another one may have the job."""


@dataclass(slots=True)
class Claim:
    """What a cell is made with: the host's user id that its job will have, and its control group."""

    uid: int
    group: Group | None


@dataclass(slots=True)
class ReadyCell:
    """One cell; whoever takes it owns all of this, and closes the descriptors."""

    claim: Claim
    control: socket.socket
    pipes: dict[str, int]
    handle: int = -1
    """Of its process 1."""

    def is_alive(self) -> bool:
        """Whether its process 1 has not ended."""
        poller = select.poll()
        poller.register(self.handle, select.POLLIN)
        return not poller.poll(0)

    def close(self) -> None:
        """Ends it where it lives, and closes all descriptors."""
        if self.handle >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
            os.close(self.handle)
            self.handle = -1
        self.control.close()
        while self.pipes:
            os.close(self.pipes.popitem()[1])


class ReadyCells:
    """The pool of one template. `close` once the template is stopped."""

    def __init__(
        self,
        template: TemplateProcess,
        claim: Callable[[], Claim],
        forget: Callable[[Claim], None],
        *,
        size: int,
    ) -> None:
        """Makes an empty pool, which fills at the first `take`.

        Args:
            template: forks the cells.
            claim: what the next cell is made with.
            forget: gets back what an unused cell was made with, once that is closed.
            size: cells that wait for jobs.
        """
        self._template, self._claim, self._forget, self._size = template, claim, forget, size
        self._idle: deque[ReadyCell] = deque()
        self._waiting: deque[asyncio.Future[ReadyCell | None]] = deque()
        self._making: set[asyncio.Task[None]] = set()

    async def take(self) -> ReadyCell | None:
        """The next cell, as soon as there is one; None where none can be made."""
        if not self._template.alive:  # and so are all that it forked; whoever makes a cell now starts it again
            while self._idle:
                self._drop(self._idle.popleft())
            return None
        if not self._size:
            return None
        while self._idle:
            first = self._idle.popleft()
            if first.is_alive():
                self._fill()
                return first
            self._drop(first)
        place: asyncio.Future[ReadyCell | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._fill()
        try:
            return await place
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
            elif place.done() and not place.cancelled() and (cell := place.result()):
                self._put(cell)
            raise

    async def close(self) -> None:
        """Ends all cells that wait, and those that are being made."""
        self._size = 0
        for task in self._making:
            task.cancel()
        await asyncio.gather(*self._making, return_exceptions=True)
        while self._idle:
            self._drop(self._idle.popleft())
        while self._answer(None):
            pass

    def _fill(self) -> None:
        missing = self._size + len(self._waiting) - len(self._idle) - len(self._making)
        for _ in range(missing):
            task = asyncio.create_task(self._make())
            self._making.add(task)
            task.add_done_callback(self._making.discard)

    async def _make(self) -> None:
        cell: ReadyCell | None = None
        try:
            async with asyncio.timeout(_MAKE_TIMEOUT_S):
                cell = await self._made()
        except Exception as error:  # noqa: BLE001 - of whatever kind: those who wait for it must go on
            _log.warning("no cell was made ahead by template %s: %r", self._template.name, error)
        if cell is not None and not self._size:
            self._drop(cell)
        elif cell is not None:
            self._put(cell)
        else:
            self._answer(None)

    async def _made(self) -> ReadyCell:
        claim = self._claim()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)  # noqa: FBT003 - the socket API's own signature
        cell = ReadyCell(claim, ours, {})
        try:
            with theirs, contextlib.ExitStack() as given:
                ends = []
                for use in OUTPUTS:
                    cell.pipes[use], end = os.pipe2(os.O_CLOEXEC)
                    os.set_blocking(cell.pipes[use], False)
                    given.callback(os.close, end)
                    ends.append(end)
                groups = claim.group.descriptors if claim.group else []
                await self._template.order({"prepare": claim.uid}, [theirs.fileno(), *ends, *groups])
            if claim.group:
                claim.group.close_descriptors()
            await _prepared(cell)
        except BaseException:
            self._drop(cell)
            raise
        return cell

    def _put(self, cell: ReadyCell) -> None:
        if self._answer(cell):
            return
        if len(self._idle) < self._size:
            self._idle.append(cell)
        else:  # whoever it was made for wants it no more
            self._drop(cell)

    def _answer(self, cell: ReadyCell | None) -> bool:
        """Gives the first who waits what there is; False where nobody waits."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(cell)
                return True
        return False

    def _drop(self, cell: ReadyCell) -> None:
        cell.close()
        self._forget(cell.claim)


async def _prepared(cell: ReadyCell) -> None:
    """Waits for the handle of the cell's process 1 and for its word that the cell is prepared, in any order.

    Raises:
        OSError: it ended, or says what went wrong.
        ValueError: it says what it never says.
    """
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    descriptor = (
        cell.control.fileno()
    )  # the loop would describe a socket, by four system calls, where it knows none yet
    loop.add_reader(descriptor, came.set)
    try:
        is_prepared = False
        while cell.handle < 0 or not is_prepared:
            await came.wait()
            came.clear()
            with contextlib.suppress(BlockingIOError):
                while True:
                    is_prepared = _took(cell) or is_prepared
    finally:
        loop.remove_reader(descriptor)


def _took(cell: ReadyCell) -> bool:
    """Takes one packet. Returns whether it says that the cell is prepared; raises as `_prepared`."""
    packet, ancillary, _flags, _address = cell.control.recvmsg(wire.MAX_PACKET_BYTES, socket.CMSG_SPACE(4))
    for _level, _kind, content in ancillary:
        cell.handle = array.array("i", content[:4])[0]
    if not packet:
        raise OSError("it ended before it was prepared")
    message = words.message(packet)
    if "fault" in message:
        raise OSError(words.fault(message))
    return "prepared" in message
