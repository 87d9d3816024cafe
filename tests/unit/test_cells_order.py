"""What a cell says that it brings out is believed only in the form that honest cells use."""

import json
import struct

import pytest

from sandbox_service.cells.order import read_collected
from sandbox_service.domain import File
from sandbox_service.errors import CellFailure


def brought(header, contents=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("!I", len(text)) + text + contents


def listed(*files):
    return {"files": list(files), "left_out": []}


def test_files_come_with_their_names_bytes_and_execute_bits():
    data = brought({"files": [["a/b", 3, True], ["c", 0, False]], "left_out": ["fifo"]}, b"abc")
    assert read_collected(data) == ((File("a/b", b"abc", executable=True), File("c", b"")), ("fifo",))


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../up", "a/../../b", "a//b", "./a", "a\0b"])
def test_a_path_that_leads_anywhere_else_is_refused(path):
    with pytest.raises(CellFailure, match="no path below"):
        read_collected(brought(listed([path, 1, False]), b"x"))


@pytest.mark.parametrize("count", [2, -1, 1e999, "x", None])
def test_a_size_that_is_not_there_is_refused(count):
    with pytest.raises(CellFailure):
        read_collected(brought(listed(["a", count, False]), b"x"))


@pytest.mark.parametrize("header", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, {"files": []}, listed(["a"])])
def test_a_header_of_another_form_is_refused(header):
    with pytest.raises(CellFailure, match="cannot be read"):
        read_collected(brought(header))
