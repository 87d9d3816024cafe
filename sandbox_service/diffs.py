"""The difference between two states of a workspace: a list of changes, and a unified diff that `git apply` takes.

The work is bounded by rule: see `edits`. Everything is bytes; names that need it are quoted as git quotes them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sandbox_service.domain import MIB, Entry, EntryKind
from sandbox_service.edits import Budget, Span, edits
from sandbox_service.workspace import Workspace, changed_paths

DIFF_BYTES = 2 * MIB
MAXIMUM_CHANGES = 4096
CONTEXT_LINES = 3
STEPS = 10_000_000
"""For one diff: about two seconds."""
TEXT_BYTES = 32 * MIB
TEXT_LINES = 500_000
"""Of the texts that one diff compares, both sides and all files together: a line costs some hundred bytes of memory."""

_PLAIN = re.compile(rb"[A-Za-z0-9._/@+,=~-]+")
_GIT_OWN = re.compile(rb"\.git(?:[ .:\\].*)?|git~1|\.gitmodules", re.IGNORECASE | re.DOTALL)
"""Names that git never takes out of a patch, on any system."""
_ESCAPES = {0x07: b"\\a", 0x08: b"\\b", 0x09: b"\\t", 0x0A: b"\\n", 0x0B: b"\\v", 0x0C: b"\\f", 0x0D: b"\\r"}
_ESCAPES |= {ord('"'): b'\\"', ord("\\"): b"\\\\"}
_FILE, _EXECUTABLE, _LINK = b"100644", b"100755", b"120000"
_NOTHING = b"/dev/null"


class ChangeKind(StrEnum):
    """What happened to a path."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Change:
    """One changed path; sizes in bytes, 0 where there is nothing."""

    path: bytes
    kind: ChangeKind
    old_bytes: int
    new_bytes: int
    in_diff: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """What has changed. `left_out` counts changes beyond those listed."""

    diff: bytes = b""
    changes: tuple[Change, ...] = ()
    left_out: int = 0


@dataclass(slots=True)
class _Room:
    """What is left of the diff's bytes and of its work."""

    diff_bytes: int
    budget: Budget = field(default_factory=lambda: Budget(STEPS))
    text_bytes: int = TEXT_BYTES
    text_lines: int = TEXT_LINES

    def takes(self, texts: Sequence[bytes]) -> bool:
        """Whether there is room to compare these texts; what is compared is counted."""
        size = sum(len(text) for text in texts)
        if size > self.text_bytes:
            return False
        lines = sum(text.count(b"\n") + 1 for text in texts)
        if lines > self.text_lines:
            return False
        self.text_bytes -= size
        self.text_lines -= lines
        return True


def difference(
    before: Workspace,
    now: Workspace,
    is_wanted: Callable[[bytes], bool] = lambda _: True,
    *,
    diff_bytes: int = DIFF_BYTES,
    steps: int = STEPS,
) -> Difference:
    """Compares two states of a workspace.

    Args:
        before: the older one.
        now: the newer one.
        is_wanted: which paths are looked at.
        diff_bytes: the most that the diff may have; files that would go over it are told as changes only.
        steps: work for all files together; files after it are shown as replaced whole.
    """
    paths = [path for path in changed_paths(before, now) if is_wanted(path)]
    room = _Room(diff_bytes, Budget(steps))
    changes, sections = [], []
    for path in paths[:MAXIMUM_CHANGES]:
        old, new = before.entries.get(path), now.entries.get(path)
        section = _section(path, old, new, room)
        if section is not None and len(section) <= room.diff_bytes:
            room.diff_bytes -= len(section)
            sections.append(section)
        else:
            section = None
        kind = ChangeKind.ADDED if old is None else ChangeKind.DELETED if new is None else ChangeKind.MODIFIED
        changes.append(Change(path, kind, _size(old), _size(new), in_diff=section is not None))
    return Difference(b"".join(sections), tuple(changes), len(paths) - len(changes))


def _size(entry: Entry | None) -> int:
    return len(entry.content) if entry else 0


def _section(path: bytes, old: Entry | None, new: Entry | None, room: _Room) -> bytes | None:
    """What the diff says of one path; None where it cannot show it."""
    old = None if old and old.kind is EntryKind.DIRECTORY else old  # git knows of no directories
    new = None if new and new.kind is EntryKind.DIRECTORY else new
    contents = [entry.content for entry in (old, new) if entry]
    if not contents or any(b"\0" in content for content in contents) or _is_gits_own(path):
        return None
    if (new is None or old is None) and len(contents[0]) > room.diff_bytes:
        return None
    if not room.takes(contents):
        return None
    if old and new and old.kind is not new.kind:  # git shows a change of kind as an end and a beginning
        return _file_section(path, old, None, room) + _file_section(path, None, new, room)
    return _file_section(path, old, new, room)


def _is_gits_own(path: bytes) -> bool:
    return any(_GIT_OWN.fullmatch(part) for part in path.split(b"/"))


def _file_section(path: bytes, old: Entry | None, new: Entry | None, room: _Room) -> bytes:
    a, b = _quoted(b"a/" + path), _quoted(b"b/" + path)
    parts = [b"diff --git %s %s\n" % (a, b)]
    if old is None and new is not None:
        parts.append(b"new file mode %s\n" % _mode(new))
    elif old is not None and new is None:
        parts.append(b"deleted file mode %s\n" % _mode(old))
    elif old is not None and new is not None and _mode(old) != _mode(new):
        parts.append(b"old mode %s\nnew mode %s\n" % (_mode(old), _mode(new)))
    before, after = _lines(old), _lines(new)
    hunks = b"".join(_hunks(before, after, edits(before, after, room.budget)))
    if hunks:
        parts.append(b"--- %s\n+++ %s\n" % (a if old else _NOTHING, b if new else _NOTHING))
        parts.append(hunks)
    elif old is None or new is None:  # without hunks, git wants the names of the two empty contents
        empty, absent = b"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391", b"0" * 40
        parts.append(b"index %s..%s\n" % (empty if old else absent, empty if new else absent))
    return b"".join(parts)


def _mode(entry: Entry) -> bytes:
    if entry.kind is EntryKind.LINK:
        return _LINK
    return _EXECUTABLE if entry.executable else _FILE


def _lines(entry: Entry | None) -> list[bytes]:
    """Lines with their ends; a carriage return ends none, as for git."""
    if entry is None or not entry.content:
        return []
    lines = entry.content.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def _hunks(old: list[bytes], new: list[bytes], spans: list[Span]) -> Iterator[bytes]:
    for group in _groups(spans):
        start = max(group[0][0] - CONTEXT_LINES, 0)
        new_start = group[0][2] - (group[0][0] - start)
        end = min(group[-1][1] + CONTEXT_LINES, len(old))
        new_end = group[-1][3] + (end - group[-1][1])
        yield b"@@ -%s +%s @@\n" % (_range(start, end), _range(new_start, new_end))
        at = start
        for x0, x1, y0, y1 in group:
            yield from (_marked(b" ", line) for line in old[at:x0])
            yield from (_marked(b"-", line) for line in old[x0:x1])
            yield from (_marked(b"+", line) for line in new[y0:y1])
            at = x1
        yield from (_marked(b" ", line) for line in old[at:end])


def _groups(spans: list[Span]) -> Iterator[list[Span]]:
    """Edits that are shown together, since their context meets."""
    group: list[Span] = []
    for span in spans:
        if group and span[0] - group[-1][1] > 2 * CONTEXT_LINES:
            yield group
            group = []
        group.append(span)
    if group:
        yield group


def _range(start: int, end: int) -> bytes:
    count = end - start
    return b"%d,%d" % (start + 1 if count else start, count)


def _marked(mark: bytes, line: bytes) -> bytes:
    return mark + line if line.endswith(b"\n") else mark + line + b"\n\\ No newline at end of file\n"


def _quoted(name: bytes) -> bytes:
    if _PLAIN.fullmatch(name):
        return name
    return b'"' + b"".join(_escaped(byte) for byte in name) + b'"'


def _escaped(byte: int) -> bytes:
    if byte in _ESCAPES:
        return _ESCAPES[byte]
    return bytes((byte,)) if 0x20 <= byte < 0x7F else b"\\%03o" % byte  # noqa: PLR2004 - printable ASCII
