"""What process 1 of a cell may tell the service, and what is refused although it came from inside a cell."""

import pytest

from sandbox_service.cells import words

ENDING = {"status": 256, "ended": 7, "violation": [], "met": []}
USAGE = {"cpu": 0.5, "peak_kib": 9, "disk_full": True, "file_limit_met": False}


@pytest.mark.parametrize("packet", [b"", b"[]", b'"a"', b"1", b"\xff", b"[" * 60_000, b'{"a": ' * 30_000])
def test_what_is_no_object_is_refused(packet):
    with pytest.raises(ValueError, match=r"."):
        words.message(packet)


def test_an_honest_ending_is_read():
    assert words.ending(ENDING) == ENDING
    assert words.ending({**ENDING, "violation": [321, 0xC000003E], "met": ["processes"]})["met"] == ["processes"]
    assert words.usage(USAGE) == USAGE


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "0"},
        {"status": -1},
        {"status": 1 << 16},
        {"status": None},
        {"ended": float("inf")},
        {"ended": 1 << 63},
        {"violation": ["bpf", 1]},
        {"violation": 5},
        {"met": 5},
    ],
)
def test_an_ending_that_no_cell_tells_is_refused(wrong):
    with pytest.raises((ValueError, TypeError)):
        words.ending({**ENDING, **wrong})


@pytest.mark.parametrize(
    "wrong",
    [{"cpu": float("inf")}, {"cpu": float("nan")}, {"cpu": -1}, {"cpu": "1"}, {"peak_kib": 1e3}, {"peak_kib": 1 << 50}],
)
def test_a_usage_that_no_cell_tells_is_refused(wrong):
    with pytest.raises(ValueError, match="out of range"):
        words.usage({**USAGE, **wrong})


def test_a_start_is_a_whole_number_and_a_fault_is_short():
    assert words.start({"started": 5}) == 5
    with pytest.raises(ValueError, match="out of range"):
        words.start({"started": "now"})
    assert len(words.fault({"fault": "x" * 10_000})) == 2000
