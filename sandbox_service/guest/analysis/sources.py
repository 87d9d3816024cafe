"""The trusted tests as syntax trees: read and parsed once, before any code of the candidate can run."""

import ast
import fnmatch
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

_NOT_ENTERED = ("*.egg", ".*", "_darcs", "build", "CVS", "dist", "node_modules", "venv", "{arch}")
"""Folders that pytest does not look into by default."""
CONFIGURATION = frozenset(
    {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg"}
)


@dataclass(frozen=True, slots=True)
class Source:
    """One python file of the tests: its path below the tests' root, and its tree (None: it cannot be parsed)."""

    path: str
    tree: ast.Module | None

    @property
    def is_collected(self) -> bool:
        """Whether pytest looks for tests in it by default."""
        name = self.path.rpartition("/")[2]
        return fnmatch.fnmatch(name, "test_*.py") or fnmatch.fnmatch(name, "*_test.py")


@dataclass(frozen=True, slots=True)
class Sources:
    """All files of the tests."""

    files: tuple[Source, ...]
    configured: bool
    """Whether a configuration of the tests' own may choose what is a test."""
    names: frozenset[str] = field(default=frozenset())
    """What can be imported from the tests' root: modules and packages."""


def read(root: str) -> Sources:
    """Parses every python file below `root`."""
    paths = sorted(_walk(root, ""))
    sources = tuple(Source(path, _parsed(f"{root}/{path}")) for path in paths if path.endswith(".py"))
    names = {path.partition("/")[0].removesuffix(".py") for path in paths}
    return Sources(sources, any(path in CONFIGURATION for path in paths), frozenset(names))


def _walk(root: str, below: str) -> Iterator[str]:
    for entry in os.scandir(f"{root}/{below}"):
        path = f"{below}{entry.name}"
        if not entry.is_dir():
            yield path
        elif not any(fnmatch.fnmatch(entry.name, pattern) for pattern in _NOT_ENTERED):
            yield from _walk(root, f"{path}/")


def _parsed(path: str) -> ast.Module | None:
    with open(path, "rb") as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(stream.read(), path)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
