"""Workspaces as values: what may lie where, what jobs may change, and where links lead."""

import contextlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_service.domain import Entry, EntryKind, File, WorkspaceChanges
from sandbox_service.errors import CellFailure
from sandbox_service.workspace import MAXIMUM_ALL_STEPS, MisplacedError, Steps, Workspace, changed_paths, parents

FILE, DIRECTORY, LINK = EntryKind.FILE, EntryKind.DIRECTORY, EntryKind.LINK


def files(*paths):
    return [Entry(path, FILE, b"x") for path in paths]


def link(path, target):
    return Entry(path, LINK, target)


def made(*entries):
    return Workspace().with_entries(entries)


def test_parents_are_made_and_come_before_what_lies_in_them():
    state = made(*files(b"a/b/c", b"a-b", b"z"))
    assert list(state.entries) == [b"a", b"a-b", b"a/b", b"a/b/c", b"z"]
    assert state.used_bytes == 5 * 4096
    for index, path in enumerate(state.entries):
        assert path.rpartition(b"/")[0] in [b"", *list(state.entries)[:index]]


def test_entries_take_whole_pages_and_at_least_one():
    state = made(Entry(b"a", FILE, b""), Entry(b"b", FILE, bytes(4097)), Entry(b"d", DIRECTORY))
    assert state.used_bytes == 4096 + 2 * 4096 + 4096


@pytest.mark.parametrize(
    ("there", "added"),
    [
        (files(b"f"), files(b"f/x")),
        (files(b"d/x"), files(b"d")),
        (files(b"f"), [Entry(b"f", DIRECTORY)]),
        ([*files(b"d/x"), link(b"l", b"d")], files(b"l/y")),
        (files(b"d/x"), [link(b"d", b"elsewhere")]),
        ([], [link(b"l", b"/etc")]),
        ([], [link(b"l", b"..")]),
        ([], [link(b"a/l", b"../../x")]),
        ([], [link(b"l", b"l")]),
        ([], [link(b"l", b"m"), link(b"m", b"/etc")]),
    ],
)
def test_what_does_not_fit_into_the_tree_is_refused(there, added):
    state = made(*there)
    with pytest.raises(MisplacedError):
        state.with_entries(added)


def test_an_upload_cannot_lead_out_through_a_link_that_a_job_planted():
    planted = Workspace().with_changes(WorkspaceChanges(written=(link(b"root", b"/"),)))
    with pytest.raises(MisplacedError):
        planted.with_entries([link(b"mine", b"root/etc")])


def test_a_link_of_an_earlier_member_may_be_replaced_by_a_later_one():
    state = made(link(b"l", b"/etc"), *files(b"l"))
    assert state.entries[b"l"].kind is FILE


def test_links_that_stay_below_are_taken():
    state = made(*files(b"d/x"), link(b"l", b"d/../d/x"), link(b"d/up", b"../d"), link(b"dangling", b"none/at/all"))
    assert [state.leads_out(path, Steps()) for path in (b"l", b"d/up", b"dangling", b"d/x")] == [False] * 4


def test_places_where_nothing_lies_are_left_by_as_many_steps_as_they_were_entered():
    state = made(*files(b"d/x"))
    planted = state.with_changes(
        WorkspaceChanges(written=(link(b"in", b"none/at/all/../../../d/x"), link(b"out", b"d/none/at/../../../..")))
    )
    assert [planted.leads_out(path, Steps()) for path in (b"in", b"out")] == [False, True]


def test_the_work_for_all_links_of_a_call_together_has_an_end():
    many = tuple(link(b"l%d" % number, b"x/" * 2000 + b"x") for number in range(1500))
    state = Workspace().with_changes(WorkspaceChanges(written=many))
    steps = Steps()
    outside = [state.leads_out(entry.path, steps) for entry in many]
    inside = outside.count(False)
    assert outside == [False] * inside + [True] * (len(many) - inside)
    assert 0 < inside * 2000 < MAXIMUM_ALL_STEPS < len(many) * 2000


def test_more_entries_than_a_session_can_hold_are_refused_before_their_directories_are_made():
    seen = []

    def uploaded():
        for number in range(1000):
            seen.append(number)
            yield Entry(b"%d/" % number + b"d/" * 400 + b"f", FILE)

    with pytest.raises(MisplacedError, match="one too many: 4096000 bytes hold 1000 entries"):
        Workspace().with_entries(uploaded(), 1000 * 4096)
    assert len(seen) == 3


def test_caches_of_compiled_code_are_not_kept():
    state = made(*files(b"a.py", b"__pycache__/a.pyc", b"p/__pycache__/b.pyc", b"__pycache__x"))
    assert list(state.entries) == [b"__pycache__x", b"a.py"]


def test_a_job_finds_all_that_its_own_files_do_not_replace():
    state = made(*files(b"a", b"d/b"))
    assert [entry.path for entry in state.under([File("a", b"new"), File("d/c", b"new")])] == [b"d", b"d/b"]
    with pytest.raises(MisplacedError):
        state.under([File("a/x", b"")])


def test_changes_of_a_job_give_the_tree_that_it_left():
    state = made(*files(b"a", b"d/b", b"d/c"))
    changes = WorkspaceChanges(
        written=(Entry(b"a", FILE, b"new", executable=True), Entry(b"e", DIRECTORY), link(b"e/l", b"/etc")),
        removed=(b"d/b", b"d/c", b"d"),
    )
    assert list(state.with_changes(changes).entries) == [b"a", b"e", b"e/l"]


@pytest.mark.parametrize(
    "changes",
    [
        WorkspaceChanges(removed=(b"none",)),
        WorkspaceChanges(removed=(b"d",)),
        WorkspaceChanges(removed=(b"a", b"a")),
        WorkspaceChanges(written=tuple(files(b"n/x"))),
        WorkspaceChanges(written=tuple(files(b"a/x"))),
        WorkspaceChanges(written=tuple(files(b"d"))),
        WorkspaceChanges(written=tuple(files(b"../x"))),
        WorkspaceChanges(written=tuple(files(b"/x"))),
        WorkspaceChanges(written=tuple(files(b"d//x"))),
        WorkspaceChanges(written=tuple(files(b"."))),
        WorkspaceChanges(written=tuple(files(b"x\0"))),
        WorkspaceChanges(written=tuple(files(b"x" * 256))),
        WorkspaceChanges(written=tuple(files(b"/".join([b"x"] * 600)))),
        WorkspaceChanges(written=(Entry(b"__pycache__", DIRECTORY),)),
    ],
)
def test_changes_that_no_job_can_have_made_are_the_cell_s_fault(changes):
    with pytest.raises(CellFailure):
        made(*files(b"a", b"d/b")).with_changes(changes)


def test_what_a_snapshot_holds_beside_the_present_state_counts():
    before = made(*files(b"a", b"b"))
    after = before.with_entries([Entry(b"a", FILE, bytes(5000))])
    assert after.held_bytes(after) == after.used_bytes == 3 * 4096
    assert after.held_bytes(before) == 4 * 4096


def parents_of(path, state):
    """Directories for all parents that are not there yet."""
    return [Entry(parent, DIRECTORY) for parent in parents(path) if parent not in state.entries]


PARTS = st.sampled_from([b"a", b"b", b"c", b".", b".."])


@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(
        st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=3).map(b"/".join),
        st.lists(PARTS, min_size=1, max_size=5).map(b"/".join),
        max_size=5,
    )
)
def test_a_link_that_is_said_to_stay_below_does(tmp_path_factory, targets):
    state = Workspace()
    for path, target in targets.items():
        with contextlib.suppress(CellFailure):
            state = state.with_changes(WorkspaceChanges(written=(*parents_of(path, state), link(path, target))))
    root = tmp_path_factory.mktemp("links").resolve()
    for path, entry in state.entries.items():
        place = root / os.fsdecode(path)
        if entry.kind is DIRECTORY:
            place.mkdir()
        else:
            place.symlink_to(os.fsdecode(entry.content))
    for path, entry in state.entries.items():
        if entry.kind is LINK and not state.leads_out(path, Steps()):
            assert (root / os.fsdecode(path)).resolve().is_relative_to(root)


def test_changed_paths_are_those_that_differ():
    before = made(*files(b"a", b"d/x", b"gone/y"))
    after = made(*files(b"a", b"d/z"), Entry(b"empty", DIRECTORY))
    assert changed_paths(before, after) == [b"d/x", b"d/z", b"empty", b"gone/y"]
