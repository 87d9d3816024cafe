"""Diffs of workspaces: `git apply` is the judge."""

import contextlib
import os
import subprocess
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandbox_service.diffs import TEXT_BYTES, TEXT_LINES, ChangeKind, difference
from sandbox_service.domain import Entry, EntryKind
from sandbox_service.edits import Budget, edits
from sandbox_service.workspace import MisplacedError, Workspace

FILE, DIRECTORY, LINK = EntryKind.FILE, EntryKind.DIRECTORY, EntryKind.LINK


def tree(**contents):
    return workspace({path.encode(): content for path, content in contents.items()})


def workspace(contents):
    return Workspace().with_entries(Entry(path, FILE, content) for path, content in contents.items())


def lay(folder, state):
    """Writes a workspace into a folder of the test's own."""
    folder.mkdir(parents=True)
    for path, entry in state.entries.items():
        place = folder / os.fsdecode(path)
        if entry.kind is DIRECTORY:
            place.mkdir()
        elif entry.kind is LINK:
            place.symlink_to(os.fsdecode(entry.content))
        else:
            place.write_bytes(entry.content)
            place.chmod(0o755 if entry.executable else 0o644)


def read(folder):
    """Files and links of a folder: kind, bytes and execute bit by path."""
    found = {}
    for place in folder.rglob("*"):
        path = os.fsencode(place.relative_to(folder))
        if place.is_symlink():
            found[path] = (LINK, os.fsencode(place.readlink()), False)
        elif place.is_file():
            found[path] = (FILE, place.read_bytes(), os.access(place, os.X_OK))
    return found


def apply(folder, diff):
    done = subprocess.run(["git", "apply"], cwd=folder, input=diff, capture_output=True, timeout=30, check=False)
    assert done.returncode == 0, (done.stderr, diff)


NAMES = st.one_of(
    st.sampled_from(
        [b"a", b"b", b"c d", b"\xff", "ü".encode(), b'"', b"\\", b"tab\t", b"new\nline", b"cr\r", b"\x7f", b"-x"]
    ),
    st.binary(min_size=1, max_size=6).filter(lambda name: not set(name) & {0, 47} and name not in {b".", b".."}),
)
LINES = st.sampled_from(
    [b"", b"a", b"b", b"c", b"+", b"-", b" ", b"\r", b"\xff", b"@@ -1 +1 @@", b"\\ No newline at end of file"]
)
TEXTS = st.builds(
    lambda lines, end: b"\n".join(lines) + (b"\n" if end and lines else b""),
    st.lists(LINES, max_size=30),
    st.booleans(),
)


@st.composite
def states(draw):
    """A workspace of a few files, links and directories, nested up to two deep."""
    state = Workspace()
    paths = draw(st.lists(st.lists(NAMES, min_size=1, max_size=3).map(b"/".join), max_size=6, unique=True))
    for path in paths:
        kind = draw(st.sampled_from([FILE, FILE, FILE, LINK]))
        content = draw(TEXTS) if kind is FILE else draw(st.sampled_from([b"x", b"a/b", b"\xff"]))
        entry = Entry(path, kind, content, executable=kind is FILE and draw(st.booleans()))
        with contextlib.suppress(MisplacedError):
            state = state.with_entries([entry])
    return state


@settings(max_examples=150, deadline=None)
@given(before=states(), after=states())
def test_applying_the_diff_to_the_old_tree_gives_the_new_one(tmp_path_factory, before, after):
    check(tmp_path_factory.mktemp("diff"), before, after)


def check(folder, before, after):
    found = difference(before, after)
    lay(folder / "tree", before)
    if found.diff:
        apply(folder / "tree", found.diff)
    shown = {change.path for change in found.changes if change.in_diff}
    expected = {
        path: (entry.kind, entry.content, entry.executable)
        for path, entry in after.entries.items()
        if entry.kind is not DIRECTORY
    }
    hidden = {change.path for change in found.changes if not change.in_diff}
    result = read(folder / "tree")
    assert {path: one for path, one in result.items() if path not in hidden} == {
        path: one for path, one in expected.items() if path not in hidden
    }
    assert all(
        one.kind is not ChangeKind.MODIFIED or before.entries[one.path] != after.entries[one.path]
        for one in found.changes
    )
    assert shown.isdisjoint(hidden)


@settings(max_examples=150, deadline=None)
@given(st.lists(LINES, max_size=40), st.lists(LINES, max_size=40), st.sampled_from([0, 50, 10**6]))
@example([], [b"a"], 0)
def test_edits_make_the_new_lines_of_the_old_ones_however_little_work_is_allowed(old, new, steps):
    spans = edits(old, new, Budget(steps))
    made, at = [], 0
    for x0, x1, y0, y1 in spans:
        assert x0 >= at, "spans are in order"
        made += old[at:x0] + new[y0:y1]
        at = x1
    assert made + old[at:] == new


def test_edits_are_as_few_as_can_be():
    old = [bytes([byte]) for byte in b"abcabba"]
    new = [bytes([byte]) for byte in b"cbabac"]
    spans = edits(old, new, Budget(10**6))
    assert sum(x1 - x0 + y1 - y0 for x0, x1, y0, y1 in spans) == 5  # the example of Myers' paper


def test_texts_that_differ_everywhere_take_bounded_time():
    old = b"".join(b"%d\n" % (number * 7919 % 100_003) for number in range(60_000))
    new = b"".join(b"%d\n" % (number * 104_729 % 100_003) for number in range(60_000))
    began = time.monotonic()
    found = difference(tree(a=old, b=old), tree(a=new, b=new))
    assert time.monotonic() - began < 30
    assert [change.in_diff for change in found.changes] == [True, True]


def test_content_with_a_nul_byte_is_told_and_not_shown():
    found = difference(tree(a=b"x\0", b=b"1"), tree(a=b"y\0y", b=b"2"))
    assert [(one.path, one.kind, one.old_bytes, one.new_bytes, one.in_diff) for one in found.changes] == [
        (b"a", ChangeKind.MODIFIED, 2, 3, False),
        (b"b", ChangeKind.MODIFIED, 1, 1, True),
    ]
    assert b"a/a" not in found.diff


@pytest.mark.parametrize("name", [b".git/config", b"sub/.GIT/x", b".git", b"git~1/x", b".git /x", b".gitmodules"])
def test_names_that_git_refuses_are_told_and_not_shown(name):
    found = difference(Workspace(), workspace({name: b"x\n", b"ok": b"x\n"}))
    assert {change.path: change.in_diff for change in found.changes} == {name: False, b"ok": True}


def test_files_that_do_not_fit_any_more_are_told_and_smaller_ones_still_shown():
    found = difference(Workspace(), tree(a=b"x\n" * 100, b=b"y\n" * 1000, c=b"z\n"), diff_bytes=900)
    assert [change.in_diff for change in found.changes] == [True, False, True]
    assert len(found.diff) <= 900


def test_a_binary_of_any_size_takes_no_time():
    found = difference(tree(a=b""), tree(a=bytes(50_000_000)))
    assert [(one.old_bytes, one.new_bytes, one.in_diff) for one in found.changes] == [(0, 50_000_000, False)]


def test_empty_directories_alone_are_told():
    before = tree(**{"d/e/f": b"", "g/h": b""})
    after = Workspace().with_entries([Entry(b"d/new", DIRECTORY), Entry(b"g", DIRECTORY)])
    kinds = {one.path: (one.kind, one.in_diff) for one in difference(before, after).changes}
    assert kinds == {
        b"d/e/f": (ChangeKind.DELETED, True),
        b"d/new": (ChangeKind.ADDED, False),
        b"g/h": (ChangeKind.DELETED, True),
    }


def test_a_file_and_a_directory_change_places(tmp_path):
    before = workspace({b"x": b"1\n", b"y/z": b"2\n"})
    after = workspace({b"x/z": b"1\n", b"y": b"2\n"})
    check(tmp_path, before, after)


def test_changes_beyond_the_most_that_are_listed_are_counted():
    found = difference(Workspace(), workspace({b"%05d" % number: b"" for number in range(5000)}))
    assert (len(found.changes), found.left_out) == (4096, 904)


def test_only_what_is_wanted_is_looked_at():
    found = difference(Workspace(), tree(a=b"1\n", b=b"2\n"), lambda path: path == b"b")
    assert [change.path for change in found.changes] == [b"b"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"a\n" * (TEXT_LINES // 2), b"b\n" * (TEXT_LINES // 2)),
        (b"a" * (TEXT_BYTES // 2), b"b" * (TEXT_BYTES // 2 + 1)),
        (b"\n", b"\n" * TEXT_LINES),
    ],
)
def test_texts_that_would_take_too_much_memory_are_told_and_not_compared(old, new):
    found = difference(tree(a=old, b=b"1\n"), tree(a=new, b=b"2\n"))
    assert {change.path: change.in_diff for change in found.changes} == {b"a": False, b"b": True}


def test_the_lines_of_all_files_count_together():
    lines = b"x\n" * (TEXT_LINES // 5)
    found = difference(tree(a=b"", b=b"", c=b""), tree(a=lines, b=lines, c=lines * 4), diff_bytes=2**30)
    assert [change.in_diff for change in found.changes] == [True, True, False]
