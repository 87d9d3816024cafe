"""The artifact store: names that vouch for contents, atomic writes, limits, pruning; and diffs of what is delivered."""

import asyncio
import hashlib
import os
import subprocess
import time
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ArtifactMissing, ArtifactTooLarge
from orchestrator.runs import DirectoryStore
from orchestrator.runs.outcome import diff
from orchestrator.workflows.artifacts import encode, load, load_files, overlay, save, save_files
from orchestrator.workflows.sandbox import Execution, ExecutionStatus, File, Output


@pytest.fixture
def store(tmp_path):
    store = DirectoryStore(tmp_path / "artifacts", maximum_bytes=1000)
    yield store
    store.close()


async def test_an_artifact_is_named_by_its_content_and_read_back(store):
    name = await store.put(b"\x00\xff")
    assert name == hashlib.sha256(b"\x00\xff").hexdigest()
    assert await store.get(name) == b"\x00\xff"
    assert await store.put(b"\x00\xff") == name


async def test_writers_of_the_same_content_do_not_disturb_each_other(store):
    names = await asyncio.gather(*(store.put(b"same") for _ in range(20)))
    assert len(set(names)) == 1
    assert await store.get(names[0]) == b"same"
    assert [path.name for path in store._path(names[0]).parent.iterdir()] == [names[0]]


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "/x", "a" * 64])
async def test_what_is_not_there_cannot_be_had(store, name):
    with pytest.raises(ArtifactMissing):
        await store.get(name)


async def test_a_damaged_artifact_is_not_given_out(store):
    name = await store.put(b"right")
    store._path(name).write_bytes(b"wrong")
    with pytest.raises(ArtifactMissing, match="damaged"):
        await store.get(name)


async def test_an_artifact_over_the_limit_is_refused(store):
    await store.put(b"x" * 1000)
    with pytest.raises(ArtifactTooLarge, match="1001 bytes is over the limit of 1000"):
        await store.put(b"x" * 1001)


async def test_only_what_nobody_kept_lately_is_pruned(store):
    old, again, new = [await store.put(content) for content in (b"old", b"again", b"new")]
    before = time.time() - 3600
    for name in (old, again):
        os.utime(store._path(name), (before, before))
    await store.put(b"again")
    assert await store.prune(timedelta(minutes=30)) == 1
    assert await store.get(again) == b"again"
    assert await store.get(new) == b"new"
    with pytest.raises(ArtifactMissing):
        await store.get(old)


async def test_files_have_one_name_in_whatever_order(store):
    first, second = File("a.py", b"\xff"), File("b.py", b"x", executable=True)
    name = await save_files(store, [second, first])
    assert await save_files(store, [first, second]) == name
    assert await load_files(store, name) == (first, second)
    assert await save_files(store, [first, File("b.py", b"x")]) != name


async def test_an_execution_is_read_back_as_it_was(store):
    execution = Execution(ExecutionStatus.SIGNALED, signal=9, stdout=Output(b"\x00\xff", b"t", 3))
    assert await load(store, Execution, await save(store, Execution, execution)) == execution


async def test_what_is_something_else_is_missing(store):
    with pytest.raises(ArtifactMissing):
        await load(store, Execution, await store.put(b"[1]"))


@given(st.binary(), st.booleans())
def test_the_encoding_is_canonical(content, executable):
    assert encode(File, File("a", content, executable)) == encode(File, File("a", bytes(content), executable))


def test_later_files_lie_over_earlier_ones():
    below = [File("b", b"1"), File("a", b"1")]
    assert overlay(below, [File("b", b"2")]) == (File("a", b"1"), File("b", b"2"))


TEXT = st.lists(st.sampled_from(["a\n", "b\n", "c\r\n", "\x0c\n", "\n", "d"]), max_size=12).map("".join)


@settings(max_examples=40, deadline=None)
@given(old=TEXT, new=TEXT)
def test_a_diff_turns_the_given_file_into_the_delivered_one(old, new, tmp_path_factory):
    folder = tmp_path_factory.mktemp("diff")
    (folder / "f.txt").write_bytes(old.encode())
    text = diff([File("f.txt", old.encode())], [File("f.txt", new.encode())])
    assert bool(text) == (old != new)
    if text:
        subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "--unidiff-zero", "-"],
            input=text.encode(),
            cwd=folder,
            check=True,
            timeout=20,
        )
    assert (folder / "f.txt").read_bytes() == new.encode()


def test_a_new_file_is_diffed_from_nothing():
    text = diff([], [File("a.py", b"x = 1\n")])
    assert text == "--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+x = 1\n"


def test_bytes_and_large_files_are_only_said_to_differ():
    large = b"x\n" * 100_000
    assert diff([], [File("a.bin", b"\xff"), File("b.txt", large)]) == (
        "Files a/a.bin and b/a.bin differ\nFiles a/b.txt and b/b.txt differ\n"
    )


def test_a_diff_stays_within_its_limit():
    files = [File(f"{number}.txt", b"line\n" * 10_000) for number in range(20)]
    text = diff([], files)
    assert len(text) < 300_000
    assert "Files a/9.txt and b/9.txt differ" in text
