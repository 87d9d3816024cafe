"""A session's files inside a cell: laid out before the job, compared and brought out after its last process is gone.

Bytes are compared with bytes: no time stamp of a file tells of what was written to it through a memory mapping.
What comes out is a stream of records, whose form is defined here and read by `cells.changes`.
"""

import mmap
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

RECORD = struct.Struct("!BBHQ")
"""Kind, execute bit, bytes of the path and bytes of the content; then path and content follow."""
FILE, DIRECTORY, LINK, REMOVED, LEFT_OUT, TOO_LARGE, END = range(1, 8)
"""Kinds of record. TOO_LARGE has no path and the number of bytes in the place of the content's size, and ends the
stream as END does."""
KINDS = {"FILE": FILE, "DIRECTORY": DIRECTORY, "LINK": LINK}

MAX_PATH_BYTES = 1024
"""Longer paths are left out, and what lies below them too."""
MAX_LEFT_OUT = 256
BYTECODE = b"__pycache__"
"""Never kept: compiled code that belongs to another state of its source would be run instead of it."""
_PAGE_BYTES = 4096
_CHUNK_BYTES = 256 * 1024
_ALL_OF_OWNER = 0o700

Write = Callable[[bytes], object]
Laid = dict[bytes, dict[str, Any]]


def lay(place: str, entries: Iterable[dict[str, Any]]) -> None:
    """Writes a workspace below `place`; each directory comes before what lies in it.

    Args:
        place: an empty directory.
        entries: `path` (with surrogates for bytes that are not UTF-8), `kind`, `content` and `executable`.
    """
    for entry in entries:
        path = f"{place}/{entry['path']}"
        kind = KINDS[entry["kind"]]
        if kind == DIRECTORY:
            os.mkdir(path)
        elif kind == LINK:
            os.symlink(bytes(entry["content"]), os.fsencode(path))
        else:
            _make(path, 0o777 if entry["executable"] else 0o666, entry["content"])


def _make(path: str, mode: int, content: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)  # less the umask of 022
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    finally:
        os.close(descriptor)


def laid(job: dict[str, Any]) -> Laid:
    """What a job with a workspace finds in its working directory, by path: without bytes, but with their place."""
    known: Laid = {}
    for entry in (*job["workspace"], *job["files"]):
        kind = entry.get("kind", "FILE")
        path = os.fsencode(entry["path"])
        known[path] = {**{name: entry[name] for name in ("size", "offset", "executable")}, "kind": KINDS[kind]}
        parent = path.rpartition(b"/")[0]
        while parent and parent not in known and BYTECODE not in path.split(b"/"):
            known[parent] = {"kind": DIRECTORY}
            parent = parent.rpartition(b"/")[0]
    return known


def bring(place: str, known: Laid, original: int, limit_bytes: int, write: Write) -> None:
    """Tells what changed below `place`. No other process may be at work there.

    Args:
        place: the working directory.
        known: what `laid` gave before the job.
        original: descriptor of the job's memory file, which still has the bytes that were laid.
        limit_bytes: what the workspace may take, in whole pages of 4,096 bytes, at least one for each path.
        write: takes the next bytes of the stream.
    """
    left_out: list[bytes] = []
    found: list[tuple[bytes, os.stat_result]] = []
    taken = 0
    for path, state in _visit(os.fsencode(place), left_out):
        taken += max(-(-state.st_size // _PAGE_BYTES), 1) * _PAGE_BYTES if _is_sized(state) else _PAGE_BYTES
        found.append((path, state))
        if taken > limit_bytes and len(found) * _PAGE_BYTES > limit_bytes:
            break  # the paths alone are too many: their true number does not matter
    if taken > limit_bytes:
        write(RECORD.pack(TOO_LARGE, 0, 0, taken))
        return
    with mmap.mmap(original, os.fstat(original).st_size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as laid_bytes:
        bringer = _Bringer(os.fsencode(place), known, laid_bytes, write)
        bringer.removed(known.keys() - {path for path, _state in found})
        for path, state in sorted(found, key=lambda one: one[0]):
            bringer.bring(path, state)
    for path in left_out:
        write(RECORD.pack(LEFT_OUT, 0, len(path), 0) + path)
    write(RECORD.pack(END, 0, 0, 0))


def _is_sized(state: os.stat_result) -> bool:
    return not stat.S_ISDIR(state.st_mode)  # a directory's own size differs from one file system to the next


def _visit(root: bytes, left_out: list[bytes]) -> Iterator[tuple[bytes, os.stat_result]]:
    """Paths below `root` that a workspace keeps; the others go to `left_out`. Links are not followed."""
    folders = [root]
    while folders:
        folder = folders.pop()
        _open_up(folder)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == BYTECODE:
                    continue
                path = entry.path[len(root) + 1 :]
                state = entry.stat(follow_symlinks=False)
                if len(path) > MAX_PATH_BYTES or not _is_kept(state.st_mode):
                    if len(left_out) < MAX_LEFT_OUT:
                        left_out.append(path[:MAX_PATH_BYTES])
                    continue
                if stat.S_ISDIR(state.st_mode):
                    folders.append(entry.path)
                yield path, state


def _is_kept(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def _open_up(folder: bytes) -> None:
    """Gives its owner the rights to a directory that a job took away."""
    if os.lstat(folder).st_mode & _ALL_OF_OWNER != _ALL_OF_OWNER:
        os.chmod(folder, _ALL_OF_OWNER)


@dataclass(frozen=True, slots=True)
class _Bringer:
    """Writes records; the attributes are those of `bring`."""

    place: bytes
    known: Laid
    original: mmap.mmap
    write: Write

    def removed(self, paths: Iterable[bytes]) -> None:
        for path in sorted(paths, reverse=True):
            if BYTECODE not in path.split(b"/"):
                self.write(RECORD.pack(REMOVED, 0, len(path), 0) + path)

    def bring(self, path: bytes, state: os.stat_result) -> None:
        before = self.known.get(path)
        if stat.S_ISREG(state.st_mode):
            self._bring_file(path, state, before if before and before["kind"] == FILE else None)
        elif stat.S_ISLNK(state.st_mode):
            target = os.readlink(self.place + b"/" + path)
            if not before or before["kind"] != LINK or self._original(before) != target:
                self.write(RECORD.pack(LINK, 0, len(path), len(target)) + path + target)
        elif not before or before["kind"] != DIRECTORY:
            self.write(RECORD.pack(DIRECTORY, 0, len(path), 0) + path)

    def _original(self, before: dict[str, Any]) -> bytes:
        return self.original[before["offset"] : before["offset"] + before["size"]]

    def _bring_file(self, path: bytes, state: os.stat_result, before: dict[str, Any] | None) -> None:
        executable = bool(state.st_mode & stat.S_IXUSR)
        descriptor = _open(self.place + b"/" + path, state.st_mode)
        try:
            if (
                before is not None
                and (before["executable"], before["size"]) == (executable, state.st_size)
                and _equal(descriptor, self.original, before["offset"], state.st_size)
            ):
                return
            self.write(RECORD.pack(FILE, executable, len(path), state.st_size) + path)
            _send(descriptor, state.st_size, self.write)
        finally:
            os.close(descriptor)


def _open(full: bytes, mode: int) -> int:
    if not mode & stat.S_IRUSR:
        os.chmod(full, stat.S_IRUSR | stat.S_IWUSR)
    return os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _equal(descriptor: int, original: mmap.mmap, offset: int, size: int) -> bool:
    at = 0
    while at < size:
        chunk = os.pread(descriptor, min(size - at, _CHUNK_BYTES), at)
        if chunk != original[offset + at : offset + at + len(chunk)] or not chunk:
            return False
        at += len(chunk)
    return True


def _send(descriptor: int, size: int, write: Write) -> None:
    at = 0
    while at < size:
        chunk = os.pread(descriptor, min(size - at, _CHUNK_BYTES), at)
        if not chunk:
            raise OSError("a file became shorter while it was read")
        write(chunk)
        at += len(chunk)
