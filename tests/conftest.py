"""What tests of every kind share: where real data lies, and prerequisites that only CI insists on."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def require() -> Callable[[object, str], None]:
    """A check of a prerequisite: where it does not hold, the test is skipped, or fails when CI=true."""
    return check_prerequisite


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real task sets: CODEMEND_DATA, by default `shared/data` beside the checkout."""
    folder = Path(os.environ.get("CODEMEND_DATA") or ROOT.parent / "shared" / "data")
    check_prerequisite(folder.is_dir(), f"no task sets at {folder}; CODEMEND_DATA names their folder")
    return folder


def check_prerequisite(condition: object, reason: str) -> None:
    """Skips, or fails in CI, where `condition` is false."""
    if condition:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"required in CI: {reason}")
    pytest.skip(reason)
