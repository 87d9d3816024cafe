"""Measures which lines and branches of the code under test a run reaches, with coverage.py's tracer.

Nothing that goes wrong here is a matter of the tests: it gives fewer numbers, or none, and a sentence on stderr.
coverage.py lies in a folder of its own, where no import of a job's finds it.
"""

import contextlib
import importlib
import json
import os
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Iterator
from typing import Any

from sandbox_service.guest.confinement import rootfs

MAX_FILES, MAX_LINES = 256, 4096
_FILE_BYTES, _SECONDS = 128 * 1024, 1.0
"""Larger files are not read, and none after so much processor time: a KiB of source takes up to 10 ms."""
_MAX_VISITED = 4096
_LEFT_OUT = frozenset({"__pycache__", "node_modules", "site-packages"})

_modules: dict[str, types.ModuleType] = {}
"""coverage.py with all that only it needs, out of sys.modules: a job's own modules may have the same names."""


@contextlib.contextmanager
def _own_imports() -> Iterator[None]:
    """Inside, the tool's modules are found and none of the job's; afterwards the job's are as they were."""
    modules, path = dict(sys.modules), sys.path[:]
    sys.modules.update(_modules)
    sys.path[:] = [rootfs.ASSETS, *(part for part in path if not part.startswith((rootfs.WORK, rootfs.TESTS)))]
    try:
        yield
    finally:
        _modules.update((name, module) for name, module in sys.modules.items() if name not in modules)
        for name in _modules:
            sys.modules.pop(name, None)
        sys.modules.update((name, module) for name, module in modules.items() if name in _modules)
        sys.path[:] = path


def _load() -> types.ModuleType:
    """Imports coverage.py in this job alone: kept in the template, it would cost every other job a millisecond.

    Raises:
        ImportError: it is not installed beside the service.
    """
    with _own_imports():
        return importlib.import_module("coverage")


class Measurement:
    """One measurement, of the files below one folder. `collect` ends it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._coverage: Any = None

    def start(self) -> None:
        """Begins to trace everything that this thread, and threads that it starts, run from now on."""
        try:
            self._coverage = _load().Coverage(data_file=None, branch=True, config_file=False, source=[self._source])
            self._coverage.start()
        except ImportError:
            _say("coverage.py is not installed beside the service")
        except BaseException as error:
            self._coverage = None
            _say(f"{type(error).__name__}: {error}")

    def collect(self) -> Iterator[dict[str, Any]]:
        """Ends the measurement and gives a report frame for each file, in order of path."""
        if self._coverage is None:
            return
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                self._coverage.stop()
                yield from self._report()
            for warning in caught:
                _say(str(warning.message))
        except BaseException as error:
            _say(f"{type(error).__name__}: {error}")

    def _report(self) -> Iterator[dict[str, Any]]:
        """The files one by one, as long as there is time."""
        began = time.process_time()
        with _own_imports(), _written() as target:
            for path in _sources(self._source):
                if time.process_time() - began > _SECONDS:
                    _say(f"{path} and what follows is left out: too much to measure")
                    break
                entry = self._measured(path, target)
                if entry is not None:
                    yield _frame(path, entry)

    def _measured(self, path: str, target: str) -> dict[str, Any] | None:
        """What was measured of one file; None where it cannot be read as python."""
        try:
            self._coverage.json_report(morfs=[f"{self._source}/{path}"], outfile=target, ignore_errors=True)
            with open(target, "rb") as stream:
                files: dict[str, dict[str, Any]] = json.load(stream)["files"]
            return next(iter(files.values()), None)
        except Exception as error:  # no file to report is one, a source nested too deeply another
            _say(f"{path} is left out: {type(error).__name__}: {error}")
            return None


def _frame(path: str, entry: dict[str, Any]) -> dict[str, Any]:
    lines, branches, numbers = entry["missing_lines"], entry.get("missing_branches", []), entry["summary"]
    return {
        "kind": "coverage",
        "path": path,
        "statements": numbers["num_statements"],
        "missing": len(lines),
        "missing_lines": lines[:MAX_LINES],
        "branches": numbers.get("num_branches", 0),
        "missed_branches": len(branches),
        "missing_branches": branches[:MAX_LINES],
    }


def _sources(root: str) -> Iterator[str]:
    """Python files below a folder that can be measured, in order; what is left out is said."""
    paths = sorted(_visit(root))
    if len(paths) > MAX_FILES:
        _say(f"{paths[MAX_FILES]} and what follows is left out: at most {MAX_FILES} files")
    for path in paths[:MAX_FILES]:
        if os.stat(f"{root}/{path}").st_size > _FILE_BYTES:
            _say(f"{path} is left out: larger than {_FILE_BYTES} bytes")
        else:
            yield path


def _visit(root: str) -> Iterator[str]:
    folders, seen = [""], 0
    while folders:
        folder = folders.pop()
        with os.scandir(f"{root}/{folder}") as entries:
            for entry in entries:
                seen += 1
                if seen > _MAX_VISITED:
                    return
                path = f"{folder}{entry.name}"
                if entry.is_dir(follow_symlinks=False) and entry.name not in _LEFT_OUT and entry.name[0] != ".":
                    folders.append(f"{path}/")
                elif entry.name.endswith(".py") and entry.is_file(follow_symlinks=False):
                    yield path


@contextlib.contextmanager
def _written() -> Iterator[str]:
    """A path to write to, gone afterwards."""
    descriptor, path = tempfile.mkstemp(dir="/tmp")
    os.close(descriptor)
    try:
        yield path
    finally:
        os.unlink(path)


def _say(reason: str) -> None:
    """On stderr, past whatever the job made of `sys.stderr`."""
    with contextlib.suppress(OSError):
        os.write(2, f"codemend: coverage: {reason}\n"[:1000].encode("utf-8", "backslashreplace"))
