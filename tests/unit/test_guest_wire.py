"""What the service and the guest say to each other survives the way, however it is cut."""

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_service.cells.order import memory_file
from sandbox_service.guest.exchange import wire

texts = st.text(st.characters(codec=None), max_size=20)
messages = st.dictionaries(
    texts, texts | st.integers() | st.booleans() | st.none() | st.lists(texts, max_size=3), max_size=4
)


@given(st.lists(messages, max_size=6), st.data())
def test_frames_come_out_as_they_went_in_wherever_the_stream_is_cut(sent, data):
    stream = b"".join(map(wire.frame, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader, found = wire.FrameReader(), []
    for first, last in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[first:last])
    assert found == sent


def test_a_frame_of_the_greatest_length_is_taken_and_one_byte_more_is_not():
    padding = wire.MAX_FRAME_BYTES - len(wire.frame({"x": ""})) + 4
    assert wire.FrameReader().feed(wire.frame({"x": "y" * padding})) == [{"x": "y" * padding}]
    with pytest.raises(ValueError, match="over the limit"):
        wire.FrameReader().feed(wire.frame({"x": "y" * (padding + 1)}))


def test_a_frame_that_is_announced_too_long_is_refused_before_it_comes():
    with pytest.raises(ValueError, match="over the limit"):
        wire.FrameReader().feed(struct.pack("!I", 2**32 - 1))


def test_a_stream_longer_than_its_limit_is_refused():
    frame = wire.frame({"x": "y" * 400_000})
    feed_all(frame, wire.MAX_REPORT_BYTES // len(frame))
    with pytest.raises(ValueError, match="longer than"):
        feed_all(frame, wire.MAX_REPORT_BYTES // len(frame) + 1)


def feed_all(frame, number):
    reader = wire.FrameReader()
    for _ in range(number):
        reader.feed(frame)


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"null", b'"x"', b"{", b"\xff"])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(ValueError):
        wire.FrameReader().feed(struct.pack("!I", len(body)) + body)


blobs = st.lists(st.binary(max_size=50), max_size=5)


@given(blobs, blobs, blobs)
def test_a_job_comes_out_of_its_memory_file_as_it_went_in(workspace, files, tests):
    def entries(contents):
        return [{"path": f"f{number}", "size": len(content)} for number, content in enumerate(contents)]

    given = {"workspace": workspace, "files": files, "tests": tests}
    header = {name: entries(contents) for name, contents in given.items()} | {"env": {"ä": "\ud800"}}
    descriptor = memory_file(wire.pack_job(header, [*workspace, *files, *tests]))
    try:
        job = wire.unpack_job(descriptor)
        for name, contents in given.items():
            assert [bytes(entry["content"]) for entry in job[name]] == contents
            places = [(entry["size"], entry.pop("offset")) for entry in job[name]]
            assert [os.pread(descriptor, *place) for place in places] == contents
    finally:
        os.close(descriptor)
    wire.forget_contents(job)
    assert job == header


def test_a_memory_file_cannot_be_changed_any_more():
    descriptor = memory_file(b"content")
    try:
        for change in (
            lambda: os.pwrite(descriptor, b"x", 0),
            lambda: os.ftruncate(descriptor, 0),
            lambda: os.ftruncate(descriptor, 100),
        ):
            with pytest.raises(PermissionError):
                change()
        assert os.read(descriptor, 100) == b"content"
    finally:
        os.close(descriptor)
