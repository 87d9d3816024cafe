"""Tar archives as uploads bring them and downloads send them. Nothing is ever unpacked: members become entries.

Reading is stricter than tarfile's "data" filter: regular files, directories, symbolic and hard links alone, under
plain relative UTF-8 names. Where links lead is judged where the whole tree is known, in `workspace`.
"""

import gzip
import io
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import BinaryIO

from sandbox_service.domain import PAGE_BYTES, Entry, EntryKind
from sandbox_service.validation import path_fault

BLOCK_BYTES = tarfile.BLOCKSIZE
MAXIMUM_EXTENSION_BYTES = 64 * 1024
"""Of one extended header: long names and nothing else are taken from there."""
MAXIMUM_LINKS = 4096
_WORK_PER_PAGE = 32
"""For each page that a session may hold, so many records of extended headers are read, a header counting as four: an
archive that packs to nothing can have millions of members that take no page."""
_GZIP_MAGIC = b"\x1f\x8b"
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_KINDS = {
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}
_CHUNK_BYTES = 256 * 1024

Lookup = Callable[[bytes], Entry | None]


class ArchiveError(Exception):
    """An archive that is refused; the text says which member and why."""


def largest_archive(limit_bytes: int) -> int:
    """Bytes that an archive may have, packed and unpacked, whose files may take `limit_bytes`.

    Headers of a member are smaller than the page that it takes at least.
    """
    return 2 * limit_bytes + MAXIMUM_EXTENSION_BYTES


def unpacked_bytes(archive: BinaryIO, limit_bytes: int) -> int:
    """What a gzip archive becomes in memory; 0 for a plain one, which is there already.

    Args:
        archive: at its beginning; left there.
        limit_bytes: what its entries may take; of an archive that is too large for it nothing more is unpacked.

    Raises:
        ArchiveError: it is damaged or too large.
    """
    if not _is_packed(archive):
        return 0
    size, most = 0, largest_archive(limit_bytes)
    with _reading_packed(archive) as unpacked:
        while piece := unpacked.read(_CHUNK_BYTES):
            size += len(piece)
            if size > most:
                raise ArchiveError(f"it is larger than the {limit_bytes} bytes of the session allow")
    archive.seek(0)
    return size


def _is_packed(archive: BinaryIO) -> bool:
    magic = archive.read(2)
    archive.seek(0)
    return magic == _GZIP_MAGIC


@contextmanager
def _reading_packed(archive: BinaryIO) -> Iterator[gzip.GzipFile]:
    try:
        with gzip.GzipFile(fileobj=archive, mode="rb") as unpacked:
            yield unpacked
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ArchiveError(f"the gzip stream is damaged: {error}") from error


def read(archive: BinaryIO, limit_bytes: int, existing: Lookup = lambda _: None) -> list[Entry]:
    """Reads an archive, plain or gzip; of two members with one name the later one stays.

    Args:
        archive: at its beginning.
        limit_bytes: what its entries may take together, in whole pages.
        existing: finds what hard links may lead to beside the archive's own members.

    Raises:
        ArchiveError: it is damaged, over a bound, or has a member that no workspace keeps.
    """
    if not _is_packed(archive):
        return _Reader(archive, limit_bytes, existing).entries()
    with _reading_packed(archive) as unpacked:
        return _Reader(unpacked, limit_bytes, existing).entries()


class _Reader:
    """Reads one archive, in order and without a step back."""

    def __init__(self, stream: BinaryIO | gzip.GzipFile, limit_bytes: int, existing: Lookup) -> None:
        self._stream = stream
        self._limit = limit_bytes
        self._room = largest_archive(limit_bytes)
        self._existing = existing
        self._entries: dict[bytes, Entry] = {}
        self._used = self._links = 0
        self._number = 0
        self._work = _WORK_PER_PAGE * (limit_bytes // PAGE_BYTES + 64)

    def entries(self) -> list[Entry]:
        names: dict[str, str] = {}
        while (header := self._header()) is not None:
            if header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                names |= self._records(header)
            elif header.type == tarfile.XGLTYPE:
                _refuse_global(self._records(header))
            elif header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
                field = "path" if header.type == tarfile.GNUTYPE_LONGNAME else "linkpath"
                names[field] = _text(self._extension(header).partition(b"\0")[0])
            else:
                self._member(header, names)
                names = {}
        if names:
            raise ArchiveError("it ends after the header of a member that never comes")
        return list(self._entries.values())

    def _header(self) -> tarfile.TarInfo | None:
        """The next header; None at the end that an archive marks by a block of zeros."""
        self._number += 1
        self._spend(4)
        block = self._bytes(BLOCK_BYTES)
        if not block.strip(b"\0"):
            return None
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as error:
            raise ArchiveError(f"header {self._number} is no tar header: {error}") from error

    def _spend(self, work: int) -> None:
        self._work -= work
        if self._work < 0:
            raise ArchiveError(f"it has more headers than the {self._limit} bytes of the session allow")

    def _records(self, header: tarfile.TarInfo) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, value in _records(self._extension(header)):
            self._spend(1)
            found[key] = value
        return found

    def _bytes(self, count: int) -> bytes:
        if not 0 <= count <= self._room:
            raise ArchiveError(f"it is larger than the {self._limit} bytes of the session allow")
        self._room -= count
        found = self._stream.read(count)
        if len(found) < count:
            raise ArchiveError("it ends before its end mark")
        return found

    def _body(self, size: int) -> bytes:
        return self._bytes(size + -size % BLOCK_BYTES)[:size] if size else b""

    def _extension(self, header: tarfile.TarInfo) -> bytes:
        if not 0 <= header.size <= MAXIMUM_EXTENSION_BYTES:
            raise ArchiveError(f"an extended header of {header.size} bytes; at most {MAXIMUM_EXTENSION_BYTES}")
        return self._body(header.size)

    def _member(self, header: tarfile.TarInfo, names: dict[str, str]) -> None:
        if any(name.startswith("GNU.sparse") for name in names):
            raise ArchiveError(f"{header.name!r} is a sparse file")
        path = _path(names.get("path", header.name))
        entry = self._entry(path, header, names)
        if path:
            self._used += entry.disk_bytes
            if self._used > self._limit:
                raise ArchiveError(f"its files take more than the {self._limit} bytes of the session")
            earlier = self._entries.pop(path, entry)
            if (earlier.kind is EntryKind.DIRECTORY) != (entry.kind is EntryKind.DIRECTORY):
                raise ArchiveError(f"{header.name!r} is a {earlier.kind.lower()} and then a {entry.kind.lower()}")
            self._entries[path] = entry

    def _entry(self, path: bytes, header: tarfile.TarInfo, names: dict[str, str]) -> Entry:
        size = _number(names["size"]) if "size" in names else header.size
        shown = names.get("path", header.name)
        if header.type == tarfile.DIRTYPE:
            self._body(size)
            return Entry(path, EntryKind.DIRECTORY)
        if not path:
            raise ArchiveError(f"{shown!r} is no directory")
        if header.type in _FILES:
            return Entry(path, EntryKind.FILE, self._body(size), bool(header.mode & 0o100))
        target = names.get("linkpath", header.linkname)
        if header.type == tarfile.SYMTYPE:
            return self._link(path, shown, target)
        if header.type == tarfile.LNKTYPE:
            self._body(size)
            return self._hard_link(path, shown, target)
        raise ArchiveError(f"{shown!r} is {_KINDS.get(header.type, f'a member of the unknown type {header.type!r}')}")

    def _link(self, path: bytes, shown: str, target: str) -> Entry:
        self._links += 1
        if self._links > MAXIMUM_LINKS:
            raise ArchiveError(f"it has more than {MAXIMUM_LINKS} links")
        raw = target.encode("utf-8", "surrogateescape")
        if not raw or b"\0" in raw or len(raw) >= PAGE_BYTES or raw.startswith(b"/"):
            raise ArchiveError(f"{shown!r} is a link to {target[:256]!r}; it must lead to a relative path")
        return Entry(path, EntryKind.LINK, raw)

    def _hard_link(self, path: bytes, shown: str, target: str) -> Entry:
        name = _path(target)
        found = self._entries.get(name) or self._existing(name)
        if found is None or found.kind is not EntryKind.FILE:
            raise ArchiveError(f"{shown!r} is a hard link to {target[:256]!r}, which is no file")
        return replace(found, path=path)


def _path(name: str) -> bytes:
    """The plain form of a member's name: without `./` before and `/` behind; empty for the root itself."""
    plain = name
    while plain.startswith("./"):
        plain = plain[2:].lstrip("/")
    plain = plain.rstrip("/") if plain.strip("/") else plain
    if plain in ("", "."):
        if name.startswith("/") or not name:
            raise ArchiveError(f"{name!r} is no relative path")
        return b""
    if fault := path_fault(plain):
        raise ArchiveError(f"the name {name[:256]!r} {fault}" if not fault.startswith("'") else f"the name {fault}")
    return plain.encode()


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 20:  # noqa: PLR2004 - digits of 2**64
        raise ArchiveError(f"{text[:64]!r} is no size")
    return int(text)


def _records(raw: bytes) -> Iterator[tuple[str, str]]:
    """Records of a pax header: each is its own length in decimal, a space, `key=value` and a line end."""
    start, end = 0, len(raw.rstrip(b"\0"))
    while start < end:
        digits, _, _ = raw[start : start + 8].partition(b" ")
        length = _number(_text(digits))
        record = raw[start : start + length]
        if length <= len(digits) + 2 or len(record) < length or not record.endswith(b"\n"):
            raise ArchiveError("an extended header is damaged")
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals:
            raise ArchiveError("an extended header is damaged")
        yield _text(key), _text(value)
        start += length


def _refuse_global(records: dict[str, str]) -> None:
    if named := records.keys() & {"path", "linkpath", "size"}:
        raise ArchiveError(f"a global header sets {', '.join(sorted(named))}")


def write(entries: Iterable[Entry]) -> Iterator[bytes]:
    """An archive of entries with UTF-8 paths, in pieces of at least 256 KiB but for the last, of at most 512 KiB."""
    held = io.BytesIO()
    for entry in entries:
        for piece in _packed(entry):
            held.write(piece)
            if held.tell() >= _CHUNK_BYTES:
                yield held.getvalue()
                held = io.BytesIO()
    held.write(bytes(2 * BLOCK_BYTES))
    yield held.getvalue()


def _packed(entry: Entry) -> Iterator[bytes]:
    info = tarfile.TarInfo(entry.path.decode())
    info.mode = 0o755 if entry.executable or entry.kind is EntryKind.DIRECTORY else 0o644
    if entry.kind is EntryKind.FILE:
        info.size = len(entry.content)
    elif entry.kind is EntryKind.DIRECTORY:
        info.type = tarfile.DIRTYPE
    else:
        info.type, info.linkname = tarfile.SYMTYPE, entry.content.decode("utf-8", "surrogateescape")
    yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    if entry.kind is EntryKind.FILE:
        for start in range(0, len(entry.content), _CHUNK_BYTES):
            yield entry.content[start : start + _CHUNK_BYTES]
        yield bytes(-len(entry.content) % BLOCK_BYTES)
