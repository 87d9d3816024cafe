"""Python: files run in a forked interpreter that has started already, tests in one that has pytest imported."""

import importlib.util
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandbox_service.domain import Program, TestRun
from sandbox_service.languages.base import Installed, Template

_CONFIGURATION = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "pyproject.toml",
        "tox.ini",
        "setup.cfg",
    }
)
"""Files that pytest reads before it collects."""


class Python:
    """CPython of the version that the service itself runs on."""

    name = "python"
    templates = (
        Template("python"),
        Template("python-pytest", session="sandbox_service.guest.testing.reporter"),
    )

    separates = True
    covers = True

    def find(self) -> Installed:
        """The service's own interpreter is always there; coverage.py may not be."""
        tool = importlib.util.find_spec("coverage")
        folders = tool.submodule_search_locations if tool is not None else None
        return Installed(platform.python_version(), assets=[Path(folder) for folder in folders or ()])

    def start_program(self, program: Program) -> tuple[str, Mapping[str, Any]]:
        """A file in the warm interpreter, or an argument vector through exec."""
        if program.argv:
            return "python", {"kind": "exec", "argv": list(program.argv)}
        return "python", {"kind": "script", "path": program.entry, "args": list(program.args)}

    def start_tests(self, tests: TestRun) -> tuple[str, Mapping[str, Any]]:
        """In a pytest session that has started; tests with a configuration of their own get a session of their own."""
        configured = any(file.path.rpartition("/")[2] in _CONFIGURATION for file in tests.tests)
        return "python-pytest", {
            "kind": "tests",
            "select": list(tests.select),
            "own_session": configured,
            "coverage": tests.coverage,
        }
