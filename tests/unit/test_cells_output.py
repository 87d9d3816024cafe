"""The keeper of an output stream against a plain model: all bytes in one place, cut at the end."""

from hypothesis import given
from hypothesis import strategies as st

from sandbox_service.cells.output import KEPT_BYTES, OutputKeeper

chunks = st.lists(st.binary(max_size=40), max_size=40)


@given(st.integers(1, 24), chunks)
def test_it_keeps_what_a_plain_model_keeps(kept, given_chunks):
    keeper = OutputKeeper(kept)
    for chunk in given_chunks:
        keeper.feed(chunk)
    whole, found = b"".join(given_chunks), keeper.output()
    if len(whole) <= 2 * kept:
        assert (found.head, found.tail, found.dropped_bytes) == (whole, b"", 0)
    else:
        assert (found.head, found.tail) == (whole[:kept], whole[-kept:])
        assert found.dropped_bytes == len(whole) - 2 * kept
    assert keeper.total_bytes == len(whole)


@given(chunks)
def test_the_result_does_not_depend_on_how_it_was_cut(given_chunks):
    at_once, piecewise, bytewise = OutputKeeper(8), OutputKeeper(8), OutputKeeper(8)
    whole = b"".join(given_chunks)
    at_once.feed(whole)
    for chunk in given_chunks:
        piecewise.feed(chunk)
    for byte in whole:
        bytewise.feed(bytes([byte]))
    assert at_once.output() == piecewise.output() == bytewise.output()


@given(chunks, chunks)
def test_looking_at_the_output_changes_nothing(first, second):
    looked, plain = OutputKeeper(8), OutputKeeper(8)
    for chunk in first:
        looked.feed(chunk)
        plain.feed(chunk)
    looked.output()
    for chunk in second:
        looked.feed(chunk)
        plain.feed(chunk)
    assert looked.output() == plain.output()


def test_its_memory_stays_flat():
    keeper = OutputKeeper()
    block = bytes(1024 * 1024)
    for _ in range(64):
        keeper.feed(block)
    held = len(keeper._head) + len(keeper._tail)
    assert held <= 3 * KEPT_BYTES
    assert keeper.output().dropped_bytes == 64 * len(block) - 2 * KEPT_BYTES
