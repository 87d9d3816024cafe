"""A session's files as a value: paths mapped to entries, and the rules by which they change.

Nothing here is ever a file of the host's: a path or a link that a job made is data, which only a cell resolves. A
workspace does not change; what changes it gives a new one, which shares the entries that stayed.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sandbox_service.domain import PAGE_BYTES, Entry, EntryKind, File, WorkspaceChanges
from sandbox_service.errors import CellFailure
from sandbox_service.guest.exchange.workspace import BYTECODE

MAXIMUM_PATH_BYTES = 1024
MAXIMUM_NAME_BYTES = 255
MAXIMUM_LINKS_FOLLOWED = 40
"""As many as Linux follows in one path."""
MAXIMUM_STEPS = 4096
"""Parts of paths looked at for one link: what takes more is taken for a circle."""
MAXIMUM_ALL_STEPS = 2_000_000
"""The same for all links of one call, which take a second then: those that come after it are taken for circles."""

_SHOWN = 128  # characters of a path in a message, which has an end


class MisplacedError(Exception):
    """An entry cannot lie where it shall.

    Attributes:
        path: its path.
        reason: what is wrong, as the end of a sentence that begins with the path.
    """

    def __init__(self, path: bytes, reason: str) -> None:
        shown = show(path)
        super().__init__(f"{shown if len(shown) <= _SHOWN else f'{shown[:_SHOWN]}…'} {reason}")
        self.path, self.reason = path, reason


@dataclass(slots=True)
class Steps:
    """Parts of paths that the links of one call may still take together."""

    left: int = MAXIMUM_ALL_STEPS


@dataclass(frozen=True, slots=True)
class Workspace:
    """Entries by path, in order of path, so that each directory comes before what lies in it.

    Attributes:
        entries: every path but the workspace's own root.
        used_bytes: what they take together, in whole pages.
    """

    entries: Mapping[bytes, Entry] = field(default_factory=lambda: MappingProxyType({}))
    used_bytes: int = 0

    def with_entries(self, added: Iterable[Entry], limit_bytes: int | None = None) -> "Workspace":
        """This workspace with more entries, as an upload gives them; missing parents are made.

        A file, a link or a directory replaces what has the same path and the same place in the tree: a directory is
        never replaced by something else, nor anything by a directory. Nothing is put through a link. Where the added
        links lead is judged in the tree as it will be; later changes may lead them elsewhere, so that a download
        judges again.

        Args:
            added: entries with checked paths; of two with one path the later one stays.
            limit_bytes: what all may take. A path of a kilobyte makes hundreds of directories, so that there is an
                end before there are millions; whether the files' bytes fit too, the caller sees in the result.

        Raises:
            MisplacedError: an entry does not fit into the tree, or a link leads out of it.
        """
        most = math.inf if limit_bytes is None else limit_bytes // PAGE_BYTES
        merged = dict(self.entries)
        links = []
        for entry in added:
            if is_bytecode(entry.path):
                continue
            _make_parents(merged, entry.path)
            there = merged.get(entry.path)
            if there is not None and (there.kind is EntryKind.DIRECTORY) != (entry.kind is EntryKind.DIRECTORY):
                raise MisplacedError(entry.path, f"is there already, as a {there.kind.lower()}")
            merged[entry.path] = entry
            if len(merged) > most:
                raise MisplacedError(entry.path, f"is one too many: {limit_bytes} bytes hold {most} entries")
            if entry.kind is EntryKind.LINK:
                links.append(entry.path)
        result, steps = _ordered(merged), Steps()
        for path in links:
            if result.entries[path].kind is EntryKind.LINK and result.leads_out(path, steps):
                raise MisplacedError(path, "is a link that leads out of the workspace")
        return result

    def under(self, files: Iterable[File]) -> tuple[Entry, ...]:
        """What a job finds before its own files are laid over this workspace: all that they do not replace.

        Raises:
            MisplacedError: a file does not fit into the tree.
        """
        paths = {file.path.encode() for file in files}
        for path in paths:
            there = self.entries.get(path)
            if there is not None and there.kind is EntryKind.DIRECTORY:
                raise MisplacedError(path, "is there already, as a directory")
            for parent in parents(path):
                above = self.entries.get(parent)
                if above is not None and above.kind is not EntryKind.DIRECTORY:
                    raise MisplacedError(path, f"needs a directory where {show(parent)} is a {above.kind.lower()}")
        return tuple(entry for path, entry in self.entries.items() if path not in paths)

    def with_files(self, files: Iterable[File]) -> "Workspace":
        """This workspace with a job's own files in it. Raises as `with_entries`."""
        return self.with_entries(
            Entry(file.path.encode(), EntryKind.FILE, file.content, file.executable) for file in files
        )

    def with_changes(self, changes: WorkspaceChanges) -> "Workspace":
        """This workspace as a job left it.

        Raises:
            CellFailure: no job could have left it so; the cell has not told the truth.
        """
        merged = dict(self.entries)
        for path in changes.removed:
            if merged.pop(path, None) is None:
                raise CellFailure(f"the cell removed {show(path)}, which was not there")
        for entry in changes.written:
            if fault := _cell_path_fault(entry.path):
                raise CellFailure(f"the cell brought {show(entry.path)}, which {fault}")
            merged[entry.path] = entry
        for path in merged:
            parent = path.rpartition(b"/")[0]
            if parent and (parent not in merged or merged[parent].kind is not EntryKind.DIRECTORY):
                raise CellFailure(f"the cell brought {show(path)}, which lies in no directory")
        return _ordered(merged)

    def held_bytes(self, snapshot: "Workspace") -> int:
        """What this workspace and an earlier state of it take together."""
        if snapshot is self:
            return self.used_bytes
        older = (entry for path, entry in snapshot.entries.items() if self.entries.get(path) is not entry)
        return self.used_bytes + sum(entry.disk_bytes for entry in older)

    def leads_out(self, path: bytes, steps: Steps) -> bool:
        """Whether the link at `path`, or one that it leads through, names a place outside; so does a circle."""
        least = steps.left - MAXIMUM_STEPS
        followed = beyond = 0  # links; parts below the last place where something lies
        places: list[bytes] = []
        waiting = path.split(b"/")[::-1]
        while waiting:
            steps.left -= 1
            if steps.left < max(least, 0):
                return True
            part = waiting.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                if beyond:
                    beyond -= 1
                elif places:
                    places.pop()
                else:
                    return True
                continue
            here = b"%s/%s" % (places[-1], part) if places else part
            entry = None if beyond else self.entries.get(here)
            if entry is None:
                beyond += 1
            elif entry.kind is not EntryKind.LINK:
                places.append(here)
            else:
                followed += 1
                if followed > MAXIMUM_LINKS_FOLLOWED or entry.content.startswith(b"/"):
                    return True
                waiting.extend(entry.content.split(b"/")[::-1])
        return False


def show(path: bytes) -> str:
    """A path for people: bytes that are not UTF-8 are escaped."""
    return path.decode("utf-8", "backslashreplace")


def is_text(path: bytes) -> bool:
    """Whether a path is UTF-8, as the contract's paths are."""
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_bytecode(path: bytes) -> bool:
    """Whether it lies in a cache of compiled code, which no workspace keeps."""
    return BYTECODE in path.split(b"/")


def parents(path: bytes) -> list[bytes]:
    """Paths of the directories that it lies in, the outermost first."""
    parts = path.split(b"/")[:-1]
    return [b"/".join(parts[: count + 1]) for count in range(len(parts))]


def changed_paths(before: Workspace, now: Workspace) -> list[bytes]:
    """Paths that are not the same in both, in order. Directories are told only where nothing below them is."""
    paths: Collection[bytes] = {
        path
        for path in before.entries.keys() | now.entries.keys()
        if (one := before.entries.get(path)) is not (other := now.entries.get(path)) and one != other
    }
    told = {parent for path in paths for parent in parents(path)}
    return sorted(path for path in paths if path not in told or not _is_directory_or_none(path, before, now))


def _is_directory_or_none(path: bytes, before: Workspace, now: Workspace) -> bool:
    entries = (before.entries.get(path), now.entries.get(path))
    return all(entry is None or entry.kind is EntryKind.DIRECTORY for entry in entries)


def _make_parents(merged: dict[bytes, Entry], path: bytes) -> None:
    parent = path.rpartition(b"/")[0]
    there = merged.get(parent)
    if not parent or (there is not None and there.kind is EntryKind.DIRECTORY):
        return
    if there is not None:
        raise MisplacedError(path, f"needs a directory where {show(parent)} is a {there.kind.lower()}")
    _make_parents(merged, parent)
    merged[parent] = Entry(parent, EntryKind.DIRECTORY)


def _ordered(merged: dict[bytes, Entry]) -> Workspace:
    ordered = {path: merged[path] for path in sorted(merged)}
    return Workspace(MappingProxyType(ordered), sum(entry.disk_bytes for entry in ordered.values()))


def _cell_path_fault(path: bytes) -> str:
    parts = path.split(b"/")
    if len(path) > MAXIMUM_PATH_BYTES or any(len(part) > MAXIMUM_NAME_BYTES for part in parts):
        return "is too long"
    if b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
        return "is no plain path"
    return "is a cache of compiled code" if BYTECODE in parts else ""
