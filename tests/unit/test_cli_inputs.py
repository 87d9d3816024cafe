"""What the command line gives: sizes, times, tasks and files, and the words with which wrong ones are refused."""

import contextlib
import io
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.errors import UsageFault
from orchestrator.cli.inputs import (
    MAX_TEXT_BYTES,
    SourceFile,
    parse_size,
    parse_time,
    read_files,
    read_stdin_file,
    read_task,
    read_text,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("64k", 65536), ("256MiB", 2**28), ("1.5 GiB", 3 * 2**29), ("2kb", 2000), ("1MB", 10**6), (" 7 B ", 7)],
)
def test_sizes(text, size):
    assert parse_size("--memory", text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1XB", "MiB", "1e3", "0.1", "\N{ARABIC-INDIC DIGIT ONE}"])
def test_bad_sizes_are_refused_with_their_option(text):
    with pytest.raises(UsageFault, match=r"^--memory: "):
        parse_size("--memory", text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("1.5s", 1.5), ("500ms", 0.5), ("2min", 120), ("3m", 180), ("1h", 3600), ("24h", 86400)],
)
def test_times(text, seconds):
    assert parse_time("--wall", text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "0", "-1s", "25h", "soon", "1d", "inf", "nan"])
def test_bad_times_are_refused_with_their_option(text):
    with pytest.raises(UsageFault, match=r"^--wall: "):
        parse_time("--wall", text)


@given(st.text())
def test_any_text_is_a_quantity_or_a_usage_fault(text):
    for parse in (parse_size, parse_time):
        with contextlib.suppress(UsageFault):
            assert parse("--x", text)


class FakeStdin:
    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


def test_task_from_words_file_and_stdin(tmp_path, monkeypatch):
    path = tmp_path / "task.txt"
    path.write_text("from a file")
    monkeypatch.setattr(sys, "stdin", FakeStdin("from stdin, ä".encode()))
    assert [read_task(argument) for argument in ("words", f"@{path}", "-")] == ["words", "from a file", "from stdin, ä"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"\xff", "no UTF-8"),
        (b"x" * (MAX_TEXT_BYTES + 1), "longer than 65536 bytes"),
    ],
)
def test_bad_tasks_are_refused(monkeypatch, content, said):
    monkeypatch.setattr(sys, "stdin", FakeStdin(content))
    with pytest.raises(UsageFault, match=f"^TASK: .*{said}"):
        read_task("-")


def test_text_that_is_too_long_is_not_read_whole():
    with pytest.raises(UsageFault, match="is no regular file"):
        read_text("--check", Path("/dev/zero"))


def test_stdin_of_a_program(tmp_path, monkeypatch):
    path = tmp_path / "in"
    path.write_bytes(b"\x00\xff")
    monkeypatch.setattr(sys, "stdin", FakeStdin(b"typed"))
    assert read_stdin_file("--stdin", path) == b"\x00\xff"
    assert read_stdin_file("--stdin", Path("-")) == b"typed"


def test_files_lie_by_name_and_directories_by_their_paths(tmp_path):
    tree = tmp_path / "tree"
    for path in ("a.py", "sub/b.py", ".hidden/c.py", "sub/__pycache__/b.pyc", ".env"):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(path.encode())
    (tree / "a.py").chmod(0o755)
    alone = tmp_path / "deep" / "x.txt"
    alone.parent.mkdir()
    alone.write_bytes(b"\xff")
    assert read_files("--file", [alone, tree]) == [
        SourceFile("x.txt", b"\xff"),
        SourceFile("a.py", b"a.py", executable=True),
        SourceFile("sub/b.py", b"sub/b.py"),
    ]


def test_two_files_at_one_path_are_refused(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").write_text("")
    with pytest.raises(UsageFault, match=r"^--file: two files would both lie at 'x.py'"):
        read_files("--file", [tmp_path / "one" / "x.py", tmp_path / "two" / "x.py"])


def test_limits_of_files_together(tmp_path):
    paths = []
    for number in range(3):
        paths.append(tmp_path / f"{number}")
        paths[-1].write_bytes(b"x" * 10)
    assert len(read_files("--file", paths, max_files=3, max_bytes=30)) == 3
    with pytest.raises(UsageFault, match="more than 2 files are given"):
        read_files("--file", paths, max_files=2)
    with pytest.raises(UsageFault, match="and the files before it hold more than 29 bytes"):
        read_files("--file", paths, max_bytes=29)


def test_what_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageFault, match="no file lies below the directory"):
        read_files("--tests", [tmp_path / "empty"])
    with pytest.raises(UsageFault, match="No such file"):
        read_files("--tests", [tmp_path / "missing"])
