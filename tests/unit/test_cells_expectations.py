"""What is remembered of tests' plans: a bounded guess, by all that the judge looks at."""

import pytest

from sandbox_service.cells.expectations import Expectations
from sandbox_service.domain import DEFAULT_LIMITS, File, TestIsolation, TestRun

SEPARATE, SHARED = TestIsolation.SEPARATE, TestIsolation.SHARED


def run_of(tests: dict[str, bytes], code: bytes = b"", environment: str = "base") -> TestRun:
    return TestRun(
        files=(File("solution.py", code),),
        tests=tuple(File(path, content) for path, content in tests.items()),
        environment=environment,
        limits=DEFAULT_LIMITS,
    )


@pytest.mark.parametrize("unseen", [SEPARATE, SHARED])
def test_tests_that_never_came_are_expected_as_their_kind_of_cell_says(unseen):
    assert Expectations(unseen).of(run_of({"test_a.py": b"x"})) is unseen


def test_the_last_plan_of_the_same_tests_is_expected_whatever_the_code():
    expectations = Expectations(SEPARATE)
    expectations.learn(run_of({"test_a.py": b"x"}, b"one"), SHARED)
    assert expectations.of(run_of({"test_a.py": b"x"}, b"other")) is SHARED
    expectations.learn(run_of({"test_a.py": b"x"}), SEPARATE)
    assert expectations.of(run_of({"test_a.py": b"x"})) is SEPARATE


@pytest.mark.parametrize(
    "other",
    [
        run_of({"test_a.py": b"y"}),
        run_of({"test_b.py": b"x"}),
        run_of({"test_a.p": b"yx"}),
        run_of({"test_a.py": b"x", "test_b.py": b""}),
        run_of({"test_a.py": b"x"}, environment="data"),
    ],
)
def test_other_tests_and_other_packages_are_not_taken_for_the_same(other):
    expectations = Expectations(SEPARATE)
    expectations.learn(run_of({"test_a.py": b"x"}), SHARED)
    assert expectations.of(other) is SEPARATE


def test_what_was_not_asked_for_in_a_long_time_is_forgotten_first():
    expectations = Expectations(SEPARATE)
    for number in range(1024):
        expectations.learn(run_of({"test_a.py": b"%d" % number}), SHARED)
    assert expectations.of(run_of({"test_a.py": b"0"})) is SHARED
    expectations.learn(run_of({"test_a.py": b"new"}), SHARED)
    assert expectations.of(run_of({"test_a.py": b"0"})) is SHARED
    assert expectations.of(run_of({"test_a.py": b"1"})) is SEPARATE
