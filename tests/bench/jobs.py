"""The two jobs that every contestant does, and the right answers to them."""

import os
import sys

SCRIPT, TESTS = "script", "tests"
CODE = "print(1+1)"
FILES = {
    "solution.py": (
        "def double(x):\n    if not isinstance(x, int):\n        raise TypeError(x)\n"
        "    result = 2 * x\n    return result\n"
    ),
    "test_solution.py": (
        "from solution import double\n\n\ndef test_small():\n    assert double(2) == 4\n\n\n"
        "def test_zero():\n    assert double(0) == 0\n"
    ),
}
PYTHON = getattr(sys, "_base_executable", sys.executable)
PYTEST = ("-S", "-m", "pytest", "-q", "-p", "no:cacheprovider")
"""`-S`: packages come from PYTHONPATH alone, so that no plugin that happens to be installed slows anybody."""
JOB_SECONDS = 60


def plain_environment(packages: str, home: str) -> dict[str, str]:
    """Variables of a plain process, with pytest to be found."""
    return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": home, "PYTHONPATH": packages}


def check(job: str, exit_code: int | None, stdout: str, stderr: str = "") -> None:
    """Raises where an answer is wrong.

    Raises:
        RuntimeError: it is; the text says what came.
    """
    right = stdout.strip() == "2" if job == SCRIPT else "2 passed" in stdout
    if exit_code != 0 or not right:
        raise RuntimeError(f"a wrong answer: exit {exit_code}, {stdout[-150:]!r} {stderr[-300:]!r}")
