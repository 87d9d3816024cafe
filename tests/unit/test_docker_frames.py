"""Frames between the service and a container: cut right whatever the chunks, and refused where they cannot be."""

import asyncio
import itertools
import json
import os
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sandbox_service.cells.docker.options import DockerOptions, Reuse
from sandbox_service.cells.docker.owner import Owner
from sandbox_service.cells.docker.streams import Demultiplexer, Streams
from sandbox_service.domain import Lease
from sandbox_service.guest.exchange import frames
from sandbox_service.guest.exchange.frames import FromGuest, ToGuest
from sandbox_service.settings import Settings

KINDS = st.sampled_from([int(kind) for kind in FromGuest])


def chunks(data, cuts):
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


@given(st.lists(st.tuples(KINDS, st.binary(max_size=300)), max_size=8), st.lists(st.integers(0, 10_000), max_size=20))
def test_frames_come_out_as_they_went_in_however_they_are_cut(sent, cuts):
    cutter = frames.FrameCutter()
    data = b"".join(frames.pack(kind, body) for kind, body in sent)
    assert [frame for chunk in chunks(data, cuts) for frame in cutter.feed(chunk)] == sent


def test_a_frame_over_the_limit_is_refused_before_its_body_has_come():
    cutter = frames.FrameCutter(limit=100)
    with pytest.raises(ValueError, match="over the limit of 100"):
        cutter.feed(struct.pack("!BI", FromGuest.STREAM, 101))


@given(st.lists(st.binary(max_size=200) | st.just(b"x" * 600_000), max_size=4), st.integers())
def test_an_order_comes_after_its_parts_in_pieces_that_fit(parts, value):
    got, orders, cutter = [b"" for _ in parts], [], frames.FrameCutter()
    for frame in frames.pack_order({"value": value}, parts):
        for kind, body in cutter.feed(frame):
            if kind == ToGuest.PART:
                assert not orders
                got[body[0]] += body[1:]
            else:
                orders.append((kind, json.loads(body)))
    assert got == parts
    assert orders == [(ToGuest.ORDER, {"value": value})]


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=100)), max_size=8),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_the_engines_streams_are_told_apart_however_they_are_cut(sent, cuts):
    data = b"".join(struct.pack("!BxxxI", number, len(body)) + body for number, body in sent)
    demultiplexer = Demultiplexer()
    got = {1: b"", 2: b""}
    for chunk in chunks(data, cuts):
        for number, body in demultiplexer.feed(chunk):
            got[number] += body
    assert got == {wanted: b"".join(body for number, body in sent if number == wanted) for wanted in (1, 2)}


def test_the_digest_names_what_an_image_must_hold():
    assert len(frames.digest()) == 64
    assert frames.digest() == frames.digest()


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (struct.pack("!BI", FromGuest.STREAM, 1 << 30), "over the limit"),
        (frames.pack(FromGuest.DONE, b"{}"), "nobody asked for"),
        (frames.pack(200, b""), "nobody asked for"),
    ],
    ids=["huge", "unasked", "unknown"],
)
async def test_what_no_honest_guest_sends_closes_the_stream_and_says_why(written, words):
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    streams = await Streams.over(ours, framed=True)
    with theirs:
        theirs.sendall(struct.pack("!BxxxI", 1, len(written)) + written)
        async with asyncio.timeout(5):
            await streams.closed
    assert words in streams.fault


async def test_words_are_kept_within_a_bound_and_are_no_frames():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    streams = await Streams.over(ours, framed=True)
    with theirs:
        said = b"x" * 10_000 + b" last words"
        theirs.sendall(struct.pack("!BxxxI", 2, len(said)) + said)
    async with asyncio.timeout(5):
        await streams.closed
    assert streams.words.endswith(" last words")
    assert len(streams.words) <= 2048
    assert streams.fault == ""
    streams.close()


async def test_frames_that_are_asked_for_reach_who_asked():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    streams = await Streams.over(ours, framed=True)
    got: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
    streams.on_frame = lambda kind, body: got.set_result((kind, body))
    streams.send(frames.pack_json(ToGuest.HELLO, filters=[]))
    with theirs:
        assert theirs.recv(100) == frames.pack(ToGuest.HELLO, b'{"filters": []}')
        frame = frames.pack(FromGuest.READY, b"{}")
        theirs.sendall(struct.pack("!BxxxI", 1, len(frame)) + frame)
        async with asyncio.timeout(5):
            assert await got == (FromGuest.READY, b"{}")
    streams.close()


def test_an_owner_is_told_by_its_label_and_lives_as_long_as_its_process():
    own = Owner.this_process()
    assert Owner.parse(str(own)) == own
    assert own.is_dead is False
    assert Owner(own.machine, own.pid, "1").is_dead is True  # another process had this number
    assert Owner(own.machine, 2**22 + os.getpid(), "1").is_dead is True
    assert Owner("elsewhere/1", own.pid, own.started).is_dead is None


@pytest.mark.parametrize("label", ["", "x", "a/b", "a/b:", "/1:2"])
def test_a_label_of_something_else_names_no_owner(label):
    assert Owner.parse(label) is None


def test_the_policy_says_whose_jobs_share_a_container():
    lease = Lease("tenant", "session")
    assert Reuse.JOB.key(lease) is None
    assert Reuse.SESSION.key(lease) == ("tenant", "session")
    assert Reuse.SESSION.key(Lease("tenant")) is None
    assert Reuse.TENANT.key(lease) == Reuse.TENANT.key(Lease("tenant", "other")) == ("tenant",)
    assert DockerOptions().reuse is Reuse.JOB


def test_an_operator_sets_docker_cells_by_variables(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2375")
    monkeypatch.setenv("SANDBOX_DOCKER_REUSE", "session")
    monkeypatch.setenv("SANDBOX_DOCKER_POOL", "5")
    docker = Settings().docker
    assert (docker.host, docker.reuse, docker.warm) == ("tcp://127.0.0.1:2375", Reuse.SESSION, 5)
    assert docker.runtime == "runsc"
    monkeypatch.setenv("SANDBOX_DOCKER_HOST", "unix:///run/other.sock")
    assert Settings().docker.host == "unix:///run/other.sock"


@pytest.mark.parametrize(
    ("name", "value"), [("POOL", "-1"), ("REUSE", "always"), ("HOST", "ssh://elsewhere"), ("RUNTIME", "")]
)
def test_a_wrong_value_is_refused_by_its_name(monkeypatch, name, value):
    monkeypatch.setenv(f"SANDBOX_DOCKER_{name}", value)
    with pytest.raises(ValidationError, match=f"(?i)docker_{name}"):
        Settings()
