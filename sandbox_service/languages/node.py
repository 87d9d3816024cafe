"""JavaScript on node: files run by a fresh `node`, tests by node's own test runner, each file in a process of its own.

The tests see the code under test as if it lay beside them: `require('./solution')`, `import './solution.js'`.
"""

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from sandbox_service import guest
from sandbox_service.domain import EntryKind, Limits, Program, TestIsolation, TestRun
from sandbox_service.guest.confinement.rootfs import ASSETS, BIN, WORK
from sandbox_service.languages.base import Installed, Template

_log = logging.getLogger(__name__)
_OLDEST = (18, 19)
"""The first whose test runner takes reporters and reports skipped, todo and cancelled tests as such."""
_VERSION_TIMEOUT_S = 10.0
_REPORTER = f"{ASSETS}/node/reporter.cjs"
_MIB = 1024 * 1024
_TEST_FILE = re.compile(r"(?:.*[.\-_])?(?:test|spec)\.[cm]?js|test-.*\.[cm]?js")
"""Names of test files: those that `node --test` looks for, and *.spec.js."""
_SHARED = "tests in node import the code under test into their own process"
_SCRIPT = re.compile(r".*\.[cm]?js")


class Node:
    """The `node` that the service finds in its PATH."""

    name = "node"
    templates: tuple[Template, ...] = ()
    separates = False
    covers = False

    def find(self) -> Installed | None:
        """Asks it for its version."""
        command = shutil.which("node")
        if command is None:
            return None
        executable = Path(os.path.realpath(command))
        try:
            told = subprocess.run(
                [executable, "--version"], env={}, capture_output=True, timeout=_VERSION_TIMEOUT_S, check=True
            ).stdout.decode("utf-8", "replace")
        except (OSError, subprocess.SubprocessError) as error:
            _log.warning("node is not offered: %s", error)
            return None
        version = told.strip().removeprefix("v")
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if numbers < _OLDEST:
            _log.warning("node %s is not offered: it is older than %s.%s", version, *_OLDEST)
            return None
        return Installed(version, {"node": executable}, assets=[Path(guest.__file__).parent / "node"])

    def start_program(self, program: Program) -> tuple[str, Mapping[str, Any]]:
        """A file by `node`, or an argument vector through exec."""
        if program.argv:
            return "python", _memory({"kind": "exec", "argv": list(program.argv)})
        argv = [*_node(program.limits), f"{WORK}/{program.entry}", *program.args]
        return "python", _memory({"kind": "exec", "argv": argv})

    def start_tests(self, tests: TestRun) -> tuple[str, Mapping[str, Any]]:
        """One `node` a test file, with a reporter of the sandbox's own."""
        paths = [file.path for file in tests.tests]
        code = [file.path for file in tests.files]
        code += [os.fsdecode(entry.path) for entry in tests.workspace or () if entry.kind is not EntryKind.DIRECTORY]
        return "python", _memory(
            {
                "kind": "runner",
                "argv": [*_node(tests.limits), f"--require={_REPORTER}", f"--test-reporter={_REPORTER}"],
                "test_files": sorted(filter(_is_test_file, paths)),
                "select": list(tests.select),
                "reason": "" if tests.isolation is TestIsolation.SHARED else _SHARED,
                "links": _links(paths, code),
            }
        )


def _node(limits: Limits) -> list[str]:
    """The command, with the job's memory limit told to V8: it collects garbage in time instead of being killed."""
    return [f"{BIN}/node", f"--max-old-space-size={limits.memory_bytes // _MIB}"]


def _memory(start: dict[str, Any]) -> dict[str, Any]:
    """V8 reserves far more address space than it uses: where no control group counts, its data alone are limited."""
    return {**start, "reserves_address_space": True}


def _is_test_file(path: str) -> bool:
    """Whether a file holds tests, by the rules of `node --test`: by its name, or in a directory `test`."""
    *folders, name = path.split("/")
    return bool(_TEST_FILE.fullmatch(name) or ("test" in folders and _SCRIPT.fullmatch(name)))


def _links(tests: Collection[str], code: Iterable[str]) -> dict[str, str]:
    """Symbolic links below the tests' place that make the code appear beside them: path -> target.

    A test file hides a file of the code at the same path; a directory that both have is merged.
    """
    folders = {path[:at] for path in tests for at, letter in enumerate(path) if letter == "/"}
    files = set(tests)
    links: dict[str, str] = {}
    for path in code:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            place = "/".join(parts[:depth])
            if place in folders and depth < len(parts):
                continue
            if place not in files and place not in folders:
                links[place] = f"{WORK}/{place}"
            break
    return links
