import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_service.errors import ReaderTooSlow
from sandbox_service.streaming import CHUNK_BYTES, OutputBuffer, Unsent


def read_all(buffer):
    async def read():
        return [chunk async for chunk in buffer.chunks()]

    return read()


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=200_000)), max_size=12))
def test_every_byte_comes_out_once_in_order_and_in_chunks_that_fit(pushed):
    async def scenario():
        unsent = Unsent()
        buffer = OutputBuffer(unsent)
        for stream, data in pushed:
            buffer.push(stream, data)
        buffer.close()
        return await read_all(buffer), unsent.held_bytes

    chunks, held = asyncio.run(scenario())

    def runs(pieces):
        joined = []
        for stream, data in pieces:
            if joined and joined[-1][0] == stream:
                joined[-1][1] += data
            elif data:
                joined.append([stream, data])
        return joined

    assert runs(chunks) == runs(pushed)
    assert all(0 < len(data) <= CHUNK_BYTES for _, data in chunks)
    assert held == 0


async def test_output_is_given_out_as_it_comes():
    buffer = OutputBuffer(Unsent())
    async with aclosing(buffer.chunks()) as chunks:
        for text in (b"one", b"two"):
            waiting = asyncio.ensure_future(anext(chunks))
            await asyncio.sleep(0)
            assert not waiting.done()
            buffer.push(1, text)
            assert await asyncio.wait_for(waiting, 5) == (1, text)


async def test_bytes_printed_one_by_one_are_joined():
    buffer = OutputBuffer(Unsent())
    for _ in range(1000):
        buffer.push(1, b"x")
    buffer.close()
    assert await read_all(buffer) == [(1, b"x" * 1000)]


async def test_past_its_bound_a_stream_ends_its_job_once_and_keeps_nothing():
    unsent, overflows = Unsent(), []
    buffer = OutputBuffer(unsent, maximum_bytes=100_000)
    buffer.on_overflow(lambda: overflows.append(1))
    for _ in range(5):
        buffer.push(1, b"x" * 60_000)
    assert overflows == [1]
    assert unsent.held_bytes == 0
    buffer.close()
    with pytest.raises(ReaderTooSlow, match="100000 bytes of this stream"):
        await read_all(buffer)


async def test_pieces_of_one_byte_are_counted_with_what_they_cost():
    buffer = OutputBuffer(Unsent(), maximum_bytes=6400)
    for number in range(101):
        buffer.push(1 + number % 2, b"x")
    with pytest.raises(ReaderTooSlow):
        await read_all(buffer)


async def test_past_the_bound_of_all_streams_those_that_hold_most_end_and_no_other():
    unsent = Unsent(maximum_bytes=100_000)
    unread = [OutputBuffer(unsent) for _ in range(2)]
    for buffer in unread:
        buffer.push(1, b"x" * 45_000)
    read = OutputBuffer(unsent)
    read.push(1, b"y" * 20_000)
    assert unsent.held_bytes < 100_000
    for buffer in (*unread, read):
        buffer.close()
    with pytest.raises(ReaderTooSlow, match="100000 bytes of all streams"):
        await read_all(unread[0])
    assert await read_all(unread[1]) == [(1, b"x" * 45_000)]
    assert await read_all(read) == [(1, b"y" * 20_000)]
    assert unsent.held_bytes == 0


async def test_after_the_reader_has_left_nothing_is_kept():
    unsent = Unsent()
    buffer = OutputBuffer(unsent)
    buffer.push(1, b"x")
    async with aclosing(buffer.chunks()) as chunks:
        await anext(chunks)
        buffer.push(1, b"y")
    buffer.push(1, b"z")
    assert unsent.held_bytes == 0
