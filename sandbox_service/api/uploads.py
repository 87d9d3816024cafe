"""Puts an upload together: the parts of a client's stream become entries of a workspace, within bounds and by rule."""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

from codemend.sandbox.v1 import sessions_pb2 as pb

from sandbox_service import archives
from sandbox_service.domain import MIB, PAGE_BYTES, Entry, EntryKind
from sandbox_service.errors import InvalidJob, UploadStalled
from sandbox_service.sessions import Hold
from sandbox_service.validation import path_fault
from sandbox_service.workspace import MisplacedError, Workspace

MAXIMUM_CHUNK_BYTES = MIB
STALL_TIME = timedelta(seconds=30)
"""A caller that sends nothing for so long has given up, or means harm: the session waits for it."""
ENTRY_OVERHEAD_BYTES = 512
"""Of memory, for a file on its way beside its bytes."""

Parts = AsyncIterator[pb.UploadFilesRequest]
InThread = Callable[..., Awaitable[Any]]
"""Runs a function with arguments in a thread."""


async def next_part(parts: Parts) -> pb.UploadFilesRequest | None:
    """The next part of an upload; None at its end.

    Raises:
        UploadStalled: nothing came for STALL_TIME.
        InvalidJob: a part is empty or too large.
    """
    try:
        async with asyncio.timeout(STALL_TIME.total_seconds()):
            part = await anext(parts, None)
    except TimeoutError as error:
        raise UploadStalled(f"nothing came for {STALL_TIME.total_seconds():g} s") from error
    if part is not None and len(part.chunk) > MAXIMUM_CHUNK_BYTES:
        raise InvalidJob(("chunk", f"holds {len(part.chunk)} bytes; at most {MAXIMUM_CHUNK_BYTES}"))
    return part


async def start_of(parts: Parts) -> pb.UploadStart:
    """The first part, which says what comes.

    Raises:
        InvalidJob: it is another part, or breaks a rule.
    """
    part = await next_part(parts)
    if part is None or part.WhichOneof("part") != "start":
        raise InvalidJob(("start", "required: the first part"))
    if part.start.format not in (pb.TRANSFER_FORMAT_FILES, pb.TRANSFER_FORMAT_TAR):
        raise InvalidJob(("start.format", "required: FILES or TAR"))
    return part.start


async def receive(
    start: pb.UploadStart, parts: Parts, hold: Hold, in_thread: InThread
) -> tuple[Workspace, list[Entry]]:
    """The workspace as the upload makes it, and what the upload wrote.

    Raises:
        InvalidJob: a part or a member of the archive breaks a rule; nothing has changed.
        SessionStorageFull: all sessions together would hold too much.
    """
    received: tuple[Workspace, list[Entry]]
    base = Workspace() if start.replace else hold.workspace
    if start.format == pb.TRANSFER_FORMAT_TAR:
        archive = await _archive(parts, hold)
        hold.reserve(await in_thread(_unpacked_bytes, archive, hold.disk_bytes))
        received = await in_thread(_unpacked, archive, base, hold.disk_bytes)
    else:
        received = await in_thread(_merged, base, await _files(parts, hold), hold.disk_bytes, "file.path", "file.size")
    return received


def _unpacked_bytes(archive: io.BytesIO, limit_bytes: int) -> int:
    try:
        return archives.unpacked_bytes(archive, limit_bytes)
    except archives.ArchiveError as error:
        raise InvalidJob(("archive", str(error))) from error


def _unpacked(archive: io.BytesIO, base: Workspace, limit_bytes: int) -> tuple[Workspace, list[Entry]]:
    try:
        entries = archives.read(archive, limit_bytes, base.entries.get)
    except archives.ArchiveError as error:
        raise InvalidJob(("archive", str(error))) from error
    return _merged(base, entries, limit_bytes, "archive", "archive")


def _merged(
    base: Workspace, entries: list[Entry], limit_bytes: int, place: str, size: str
) -> tuple[Workspace, list[Entry]]:
    """The workspace with the entries. `place` and `size` are the fields that are wrong where something does not fit."""
    try:
        merged = base.with_entries(entries, limit_bytes)
    except MisplacedError as error:
        raise InvalidJob((place, str(error))) from error
    if merged.used_bytes > limit_bytes:
        text = f"the workspace would take {merged.used_bytes} bytes; this session may hold {limit_bytes}"
        raise InvalidJob((size, text))
    return merged, [entry for entry in entries if merged.entries.get(entry.path) is entry]


async def _archive(parts: Parts, hold: Hold) -> io.BytesIO:
    """The bytes of an archive, which is read when all of it is there: no caller can make a thread wait."""
    archive = io.BytesIO()
    limit = archives.largest_archive(hold.disk_bytes)
    while (part := await next_part(parts)) is not None:
        if part.WhichOneof("part") != "chunk":
            raise InvalidJob(("part", "an archive comes in chunks alone"))
        if archive.tell() + len(part.chunk) > limit:
            raise InvalidJob(("archive", f"is larger than the {hold.disk_bytes} bytes of the session allow"))
        hold.reserve(len(part.chunk))
        archive.write(part.chunk)
    archive.seek(0)
    return archive


async def _files(parts: Parts, hold: Hold) -> list[Entry]:
    """The files of an upload, each with as many bytes as its header said."""
    files = _Files(hold)
    while (part := await next_part(parts)) is not None:
        match part.WhichOneof("part"):
            case "file":
                files.begin(part.file)
            case "chunk":
                files.add(part.chunk)
            case _:
                raise InvalidJob(("part", "after the start come files and chunks"))
    return files.entries()


class _Files:
    """Files on their way."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._entries: dict[str, Entry] = {}
        self._header: pb.FileHeader | None = None
        self._content = bytearray()
        self._used = 0

    def begin(self, header: pb.FileHeader) -> None:
        self._end()
        if fault := path_fault(header.path):
            raise InvalidJob(("file.path", fault))
        if header.path in self._entries:
            raise InvalidJob(("file.path", f"{header.path!r} comes twice"))
        if header.size < 0:
            raise InvalidJob(("file.size", f"is {header.size}; must not be negative"))
        self._used += PAGE_BYTES
        if self._used + max(header.size - PAGE_BYTES, 0) > self._hold.disk_bytes:
            text = f"with {header.path!r} the files take more than the {self._hold.disk_bytes} bytes of the session"
            raise InvalidJob(("file.size", text))
        self._hold.reserve(ENTRY_OVERHEAD_BYTES)
        self._header = header

    def add(self, chunk: bytes) -> None:
        if self._header is None:
            raise InvalidJob(("chunk", "comes before any file"))
        if len(self._content) + len(chunk) > self._header.size:
            raise InvalidJob(("chunk", f"{self._header.path!r} is longer than its header says"))
        self._hold.reserve(len(chunk))
        self._content += chunk

    def _end(self) -> None:
        """Closes the file that came last."""
        header = self._header
        if header is None:
            return
        if len(self._content) < header.size:
            text = f"{header.path!r} has {header.size} bytes by its header, and {len(self._content)} came"
            raise InvalidJob(("file.size", text))
        entry = Entry(header.path.encode(), EntryKind.FILE, bytes(self._content), header.executable)
        self._used += entry.disk_bytes - PAGE_BYTES  # its first page was counted as it began
        self._entries[header.path] = entry
        self._header, self._content = None, bytearray()

    def entries(self) -> list[Entry]:
        self._end()
        return list(self._entries.values())
