"""What a cell tells of its workspace: told by the guest's own code, read by the service's, never believed blindly."""

import contextlib
import io
import os
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_service.cells.changes import ChangesReader
from sandbox_service.cells.order import memory_file
from sandbox_service.domain import Entry, EntryKind, WorkspaceChanges
from sandbox_service.errors import CellFailure, SessionStorageFull
from sandbox_service.guest.exchange import wire
from sandbox_service.guest.exchange import workspace as guest

FILE, DIRECTORY, LINK = EntryKind.FILE, EntryKind.DIRECTORY, EntryKind.LINK
LIMIT = 1024 * 1024


class Cell:
    """A working directory of the test's own, as process 1 of a cell has it."""

    def __init__(self, folder, entries=(), files=()):
        self.folder = folder
        folder.mkdir()
        listed = [
            {"path": os.fsdecode(one.path), "kind": one.kind, "size": len(one.content), "executable": one.executable}
            for one in entries
        ]
        header = {
            "workspace": listed,
            "files": [{"path": path, "size": len(content), "executable": False} for path, content in files],
            "tests": [],
        }
        self.spec = memory_file(
            wire.pack_job(header, [*(one.content for one in entries), *(content for _, content in files)])
        )
        job = wire.unpack_job(self.spec)
        guest.lay(str(folder), job["workspace"])
        for path, content in files:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        wire.forget_contents(job)
        self.known = guest.laid(job)

    def brought(self, limit=LIMIT, read_limit=None):
        stream = io.BytesIO()
        guest.bring(str(self.folder), self.known, self.spec, limit, stream.write)
        os.close(self.spec)
        reader = ChangesReader(limit if read_limit is None else read_limit)
        for byte in range(0, len(stream.getvalue()), 7):
            reader.feed(stream.getvalue()[byte : byte + 7])
        return reader.changes()


START = [
    Entry(b"d", DIRECTORY),
    Entry(b"d/a", FILE, b"one"),
    Entry(b"d/b", FILE, b"two", executable=True),
    Entry(b"l", LINK, b"/etc/passwd"),
    Entry(b"\xff", FILE, b"raw"),
]


def test_nothing_is_told_of_a_workspace_that_nobody_touched(tmp_path):
    assert Cell(tmp_path / "w", START, [("x/y.py", b"own")]).brought() == WorkspaceChanges()


def test_new_changed_and_removed_paths_are_told(tmp_path):
    cell = Cell(tmp_path / "w", START, [("x/y.py", b"own")])
    (cell.folder / "d/a").write_bytes(b"ONE")
    (cell.folder / "d/b").chmod(0o644)
    (cell.folder / "l").unlink()
    (cell.folder / "l").symlink_to("elsewhere")
    (cell.folder / "x/y.py").unlink()
    (cell.folder / "x").rmdir()
    (cell.folder / "new").mkdir()
    assert cell.brought() == WorkspaceChanges(
        written=(
            Entry(b"d/a", FILE, b"ONE"),
            Entry(b"d/b", FILE, b"two"),
            Entry(b"l", LINK, b"elsewhere"),
            Entry(b"new", DIRECTORY),
        ),
        removed=(b"x/y.py", b"x"),
    )


def test_a_change_that_leaves_size_and_every_time_stamp_as_they_were_is_told(tmp_path):
    cell = Cell(tmp_path / "w", START)
    place = cell.folder / "d/a"
    times = place.stat()
    place.write_bytes(b"OnE")
    os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert cell.brought().written == (Entry(b"d/a", FILE, b"OnE"),)


def test_a_path_of_another_kind_than_before_is_told_as_what_it_is_now(tmp_path):
    cell = Cell(tmp_path / "w", START)
    (cell.folder / "d/a").unlink()
    (cell.folder / "d/a").mkdir()
    (cell.folder / "l").unlink()
    (cell.folder / "l").write_bytes(b"/etc/passwd")
    assert cell.brought().written == (Entry(b"d/a", DIRECTORY), Entry(b"l", FILE, b"/etc/passwd"))


def test_what_no_workspace_keeps_is_named(tmp_path):
    cell = Cell(tmp_path / "w", START)
    os.mkfifo(cell.folder / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(cell.folder / "d/socket"))
        changes = cell.brought()
    assert sorted(changes.left_out) == [b"d/socket", b"fifo"]
    assert changes.written == ()


def test_caches_of_compiled_code_are_neither_told_nor_missed(tmp_path):
    cell = Cell(tmp_path / "w", START, [("__pycache__/a.pyc", b"brought")])
    (cell.folder / "__pycache__/a.pyc").unlink()
    (cell.folder / "d/__pycache__").mkdir()
    (cell.folder / "d/__pycache__/x.pyc").write_bytes(b"x")
    assert cell.brought() == WorkspaceChanges()


def test_a_workspace_that_is_too_large_is_told_as_such_and_nothing_of_it_comes(tmp_path):
    cell = Cell(tmp_path / "w", START)
    with (cell.folder / "sparse").open("wb") as stream:
        stream.truncate(1 << 40)
    assert cell.brought() == WorkspaceChanges(oversize_bytes=(1 << 40) + 5 * 4096)


def test_more_paths_than_there_may_be_are_too_large(tmp_path):
    cell = Cell(tmp_path / "w")
    for number in range(20):
        (cell.folder / str(number)).touch()
    assert cell.brought(limit=10 * 4096) == WorkspaceChanges(oversize_bytes=11 * 4096)


def test_a_stream_that_breaks_off_says_nothing():
    reader = ChangesReader(LIMIT)
    reader.feed(guest.RECORD.pack(guest.FILE, 0, 1, 1) + b"ax")
    assert reader.changes() is None


class Budget:
    """Bytes that may be held; notes what was asked for."""

    def __init__(self, left):
        self.left = left

    def __call__(self, count):
        if count > self.left:
            raise SessionStorageFull("no more")
        self.left -= count


def test_what_is_brought_is_counted_before_it_comes_and_paths_that_are_gone_are_not():
    budget = Budget(5 * 4096)
    reader = ChangesReader(LIMIT, budget)
    reader.feed(record(guest.REMOVED, b"r") * 100)
    assert budget.left == 5 * 4096
    reader.feed(record(guest.DIRECTORY, b"d") + record(guest.FILE, b"f", size=4097))
    assert budget.left == 2 * 4096
    reader.feed(b"x" * 4097 + record(guest.LINK, b"l", b"to") + END)
    assert budget.left == 4096
    assert [entry.path for entry in reader.changes().written] == [b"d", b"f", b"l"]


def test_what_may_not_be_held_is_refused_before_it_comes_and_the_rest_is_not_kept():
    reader = ChangesReader(LIMIT, Budget(2 * 4096))
    reader.feed(record(guest.FILE, b"a", b"1") + record(guest.FILE, b"b", size=8192))
    reader.feed(b"x" * 8192 + record(guest.FILE, b"c", b"2") + END)
    assert reader.changes() == WorkspaceChanges(refusal="no more")


def record(kind, path=b"", content=b"", executable=0, size=None):
    return guest.RECORD.pack(kind, executable, len(path), len(content) if size is None else size) + path + content


END = record(guest.END)
FORGED = {
    "an unknown kind": record(0),
    "another unknown kind": record(99),
    "something after the end": END + END,
    "an end with a path": record(guest.END, b"x"),
    "an end with a content": record(guest.END, size=5),
    "a file without a path": record(guest.FILE),
    "a removed path with a content": record(guest.REMOVED, b"x", b"y"),
    "a directory with a content": record(guest.DIRECTORY, b"x", b"y"),
    "an executable directory": record(guest.DIRECTORY, b"x", executable=1),
    "an execute bit of two": record(guest.FILE, b"x", executable=2),
    "a link to nothing": record(guest.LINK, b"x"),
    "a link of 5,000 bytes": record(guest.LINK, b"x", b"y" * 5000),
    "a path of 2,000 bytes": record(guest.FILE, b"x" * 2000),
    "a file of more than there may be": record(guest.FILE, b"x", size=1 << 40),
    "more files than there may be": record(guest.FILE, b"x") * 2000,
    "more names than there may be": record(guest.LEFT_OUT, b"x") * 2000,
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_stream_is_the_cell_s_fault(name):
    reader = ChangesReader(LIMIT)
    reader.feed(FORGED[name])
    reader.feed(END)
    with pytest.raises(CellFailure):
        reader.changes()


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_make_the_reader_fail_in_another_way(data):
    reader = ChangesReader(LIMIT)
    reader.feed(data)
    with contextlib.suppress(CellFailure):
        assert reader.changes() in (None, WorkspaceChanges()) or data[0] in {*range(1, 8)}
