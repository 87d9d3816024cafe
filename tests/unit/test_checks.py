"""Checks of single fields."""

import pytest

from orchestrator.api.checks import Checker
from orchestrator.errors import InvalidRun


def test_a_text_that_is_too_large_is_not_also_told_to_be_no_json():
    check = Checker()
    check.json("values", "no JSON" * 10, size_bytes=64)
    with pytest.raises(InvalidRun) as caught:
        check.raise_if_any()
    assert caught.value.violations == (("values", "must have at most 64 bytes, not 70"),)
