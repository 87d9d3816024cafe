"""Brings changed files out of a finished job's working directory.

Regular files only, by pattern, within caps, never through a link.
"""

import fnmatch
import json
import os
import stat
import struct
from collections.abc import Iterator

from sandbox_service.guest.confinement import rootfs

MAX_FILES = 256
MAX_TOTAL_BYTES = 1024 * 1024
MAX_PATH_BYTES = 1024
MAX_VISITED = 50_000
"""Directory entries looked at; a job with more has its further files left out."""

Stamp = tuple[int, int, int]


def _visit(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Paths relative to `root` with what lstat says. Links are neither followed nor entered; depth does not matter."""
    seen, folders = 0, [root]
    while folders:
        try:
            entries = sorted(os.scandir(folders.pop()), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            seen += 1
            if seen > MAX_VISITED:
                return
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            else:
                yield entry.path[len(root) + 1 :], entry.stat(follow_symlinks=False)


def snapshot() -> dict[str, Stamp]:
    """What lies in the working directory before the program starts."""
    return {path: _stamp(state) for path, state in _visit(rootfs.WORK)}


def _stamp(state: os.stat_result) -> Stamp:
    return state.st_ino, state.st_size, state.st_mtime_ns


def holds_file_of(size: int) -> bool:
    """Whether a file has grown to `size` bytes, the limit of one file, anywhere that the job may write to."""
    places = (state for place in rootfs.WRITABLE.values() for _path, state in _visit(place))
    return any(stat.S_ISREG(state.st_mode) and state.st_size >= size for state in places)


def matches(path: str, patterns: list[str]) -> bool:
    """Fnmatch on a path, where `*` stays within a directory and `**` does not."""
    return any(_match(path.split("/"), pattern.split("/")) for pattern in patterns)


def _match(parts: list[str], patterns: list[str]) -> bool:
    """Part by part: which prefixes of `patterns` fit the parts so far. The work is at most parts times patterns."""
    fitting = _past_stars({0}, patterns)
    for part in parts:
        after = {at for at in fitting if at < len(patterns) and patterns[at] == "**"}
        after |= {
            at + 1
            for at in fitting
            if at < len(patterns) and patterns[at] != "**" and fnmatch.fnmatchcase(part, patterns[at])
        }
        fitting = _past_stars(after, patterns)
    return len(patterns) in fitting


def _past_stars(places: set[int], patterns: list[str]) -> set[int]:
    """The places, and those that follow by letting a `**` stand for nothing."""
    found = set(places)
    for at in sorted(places):
        following = at
        while following < len(patterns) and patterns[following] == "**":
            following += 1
            found.add(following)
    return found


def bring(target: int, patterns: list[str], before: dict[str, Stamp]) -> None:
    """Writes what is new or changed and matches to `target`: length of a JSON header, the header, the contents.

    The header holds `files` ([path, size, executable]) and `left_out` (paths).
    """
    files: list[tuple[str, bytes, bool]] = []
    left_out: list[str] = []
    total = 0
    for path, state in sorted(_visit(rootfs.WORK), key=lambda found: found[0]):
        if not matches(path, patterns) or before.get(path) == _stamp(state):
            continue
        fits = len(files) < MAX_FILES and _has_good_name(path) and total + state.st_size <= MAX_TOTAL_BYTES
        content = _read(path) if fits and stat.S_ISREG(state.st_mode) else None
        if content is None or total + len(content) > MAX_TOTAL_BYTES:
            left_out.append(path[:MAX_PATH_BYTES].encode("utf-8", "replace").decode())
            continue
        total += len(content)
        files.append((path, content, bool(state.st_mode & stat.S_IXUSR)))
    listed = [[path, len(content), executable] for path, content, executable in files]
    header = json.dumps({"files": listed, "left_out": left_out[:MAX_FILES]}).encode()
    with os.fdopen(target, "wb") as stream:
        stream.write(struct.pack("!I", len(header)) + header)
        stream.writelines(content for _path, content, _executable in files)


def _has_good_name(path: str) -> bool:
    """Whether a path is one that the contract allows: UTF-8, and not too long."""
    try:
        return len(path.encode()) <= MAX_PATH_BYTES
    except UnicodeEncodeError:
        return False


def _read(path: str) -> bytes | None:
    try:
        descriptor = os.open(f"{rootfs.WORK}/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read(MAX_TOTAL_BYTES + 1)
