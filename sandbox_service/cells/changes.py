"""Reads what a cell tells of a session's workspace: the stream that `guest.exchange.workspace.bring` writes.

It is parsed as it comes, in bounded memory, and as strictly as anything that a stranger sends. Whether the changes fit
the workspace that they are for is decided where the workspace is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from sandbox_service.domain import PAGE_BYTES, Entry, EntryKind, WorkspaceChanges
from sandbox_service.errors import CellFailure, SessionNotFound, SessionStorageFull
from sandbox_service.guest.exchange import workspace as records

_KINDS = {records.FILE: EntryKind.FILE, records.DIRECTORY: EntryKind.DIRECTORY, records.LINK: EntryKind.LINK}
_MAX_TARGET_BYTES = 4096
_BYTES_PER_SECOND = 64 * 1024 * 1024
"""What a cell lays out or brings out in a second at the very least; small files cost a page each."""


@dataclass(frozen=True, slots=True)
class _Header:
    kind: int
    executable: bool
    path_bytes: int
    content_bytes: int

    @property
    def body_bytes(self) -> int:
        return self.path_bytes + (0 if self.kind == records.TOO_LARGE else self.content_bytes)


@dataclass(slots=True)
class ChangesReader:
    """Takes the bytes of one job's stream as they come and gives the changes at its end.

    Attributes:
        limit_bytes: what the workspace may take; a stream that carries more is broken.
        reserve: is asked before the bytes of a record are held, and raises where they may not be; None: they may.
    """

    limit_bytes: int
    reserve: Callable[[int], None] | None = None
    _written: list[Entry] = field(default_factory=list)
    _removed: list[bytes] = field(default_factory=list)
    _left_out: list[bytes] = field(default_factory=list)
    _header: _Header | None = None
    _pending: bytearray = field(default_factory=bytearray)
    _taken_bytes: int = 0
    _too_large: int | None = None
    _is_ended: bool = False
    _fault: str = ""
    _refusal: str = ""

    @property
    def seconds(self) -> float:
        """Time that a cell gets, beside what every cell gets, to lay a workspace out, and again to bring it out."""
        return self.limit_bytes / _BYTES_PER_SECOND

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes; after nonsense, or a refusal, it holds no more, and `changes` says so."""
        if self._fault or self._refusal:
            return
        self._pending += chunk
        try:
            self._cut()
        except ValueError as error:
            self._fault = str(error)
            self._let_go()
        except (SessionStorageFull, SessionNotFound) as error:
            self._refusal = str(error)
            self._let_go()

    def changes(self) -> WorkspaceChanges | None:
        """What the job changed; None where the cell died before it had told everything.

        Raises:
            CellFailure: the stream is not of the agreed form.
        """
        if self._fault:
            raise CellFailure(f"the cell told of its workspace what cannot be: {self._fault}")
        if self._refusal:
            return WorkspaceChanges(refusal=self._refusal)
        if not self._is_ended:
            return None
        if self._too_large is not None:
            return WorkspaceChanges(oversize_bytes=self._too_large)
        return WorkspaceChanges(tuple(self._written), tuple(self._removed), tuple(self._left_out))

    def _let_go(self) -> None:
        self._written.clear()
        self._removed.clear()
        self._left_out.clear()
        self._pending = bytearray()

    def _cut(self) -> None:
        """Takes all complete records off the front of what has come."""
        start = 0
        size = records.RECORD.size
        while True:
            if self._header is None:
                if len(self._pending) - start < size:
                    break
                self._header = self._checked(*records.RECORD.unpack_from(self._pending, start))
                if self.reserve is not None and self._header.kind in _KINDS:  # a path that is gone takes nothing
                    self.reserve(_disk_bytes(self._header.content_bytes))
                start += size
            if len(self._pending) - start < self._header.body_bytes:
                break
            with memoryview(self._pending) as view:
                body = bytes(view[start : start + self._header.body_bytes])
            start += self._header.body_bytes
            self._take(self._header, body)
            self._header = None
        del self._pending[:start]

    def _checked(self, kind: int, executable: int, path_bytes: int, content_bytes: int) -> _Header:
        if self._is_ended:
            raise ValueError("a record after the end")
        if kind not in (*_KINDS, records.REMOVED, records.LEFT_OUT, records.TOO_LARGE, records.END):
            raise ValueError(f"a record of kind {kind}")
        if executable > (kind == records.FILE) or path_bytes > records.MAX_PATH_BYTES:
            raise ValueError("a record out of its bounds")
        if kind in (records.END, records.TOO_LARGE):
            if path_bytes or (content_bytes and kind == records.END):
                raise ValueError("an end with a body")
        elif not path_bytes:
            raise ValueError("a record without a path")
        elif kind in (records.FILE, records.LINK):
            self._count(content_bytes)
            if kind == records.LINK and not 0 < content_bytes <= _MAX_TARGET_BYTES:
                raise ValueError("a link's target out of its bounds")
        elif content_bytes:
            raise ValueError("a record with a content that it cannot have")
        else:
            self._count(0)
        return _Header(kind, bool(executable), path_bytes, content_bytes)

    def _count(self, content_bytes: int) -> None:
        self._taken_bytes += _disk_bytes(content_bytes)
        if self._taken_bytes > 2 * self.limit_bytes + records.MAX_LEFT_OUT * PAGE_BYTES:  # all removed, all written
            raise ValueError(f"more than the {self.limit_bytes} bytes that it may hold")

    def _take(self, header: _Header, body: bytes) -> None:
        path, content = body[: header.path_bytes], body[header.path_bytes :]
        if header.kind == records.END:
            self._is_ended = True
        elif header.kind == records.TOO_LARGE:
            self._is_ended, self._too_large = True, header.content_bytes
        elif header.kind == records.REMOVED:
            self._removed.append(path)
        elif header.kind == records.LEFT_OUT:
            self._left_out.append(path)
        else:
            self._written.append(Entry(path, _KINDS[header.kind], content, header.executable))


def _disk_bytes(content_bytes: int) -> int:
    """What an entry takes of a session's disk: whole pages, at least one."""
    return max(-(-content_bytes // PAGE_BYTES), 1) * PAGE_BYTES
