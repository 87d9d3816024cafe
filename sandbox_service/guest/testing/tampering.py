"""Finds what code under test has changed in the framework that tests it, where the two share a process.

What is looked for is known before that code is imported: functions of pytest, pluggy and unittest, the builtins, the
code of the test functions. What a test's own patch changes is none of it once the patch is gone.
"""

import contextlib
import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from _pytest.assertion import rewrite

from sandbox_service.guest.confinement import rootfs
from sandbox_service.guest.testing.memory import find_layout
from sandbox_service.guest.testing.origin import comes_from
from sandbox_service.guest.testing.watched import Framework, Group, Hooks, Library, Modules

_WATCHED = (
    "pytest", "_pytest.runner", "_pytest.python", "_pytest.reports", "_pytest.unittest", "_pytest.assertion",
    "_pytest.assertion.rewrite", "_pytest.assertion.util", "_pytest.raises", "_pytest.python_api", "_pytest.outcomes",
    "_pytest.nodes", "_pytest.main", "_pytest.skipping", "_pytest.fixtures", "_pytest.subtests", "_pytest._code.code",
    "pluggy", "pluggy._caller", "pluggy._callers", "pluggy._execution", "pluggy._hooks", "pluggy._manager",
    "pluggy._result", "unittest", "unittest.case", "unittest.util", "sandbox_service.guest.testing.reporter",
    "sandbox_service.guest.testing.outcomes", "sandbox_service.guest.testing.canaries",
    "sandbox_service.guest.testing.guarding", "sandbox_service.guest.testing.tampering",
    "sandbox_service.guest.testing.watched", "sandbox_service.guest.testing.memory",
    "sandbox_service.guest.testing.origin",
)  # fmt: skip
_LIBRARIES = ("builtins", "json", "json.encoder", "os", "time", "random", "math")


class Watch:
    """What must stay as it is. Made before the first job: a look at what has not changed since copies no memory."""

    def __init__(self) -> None:
        modules = {name: sys.modules[name] for name in _WATCHED if name in sys.modules}
        self._layout = find_layout()
        self._groups = [Group([Framework(module) for module in modules.values()], self._layout, [Modules(modules)])]
        self._libraries: set[str] = set()
        self._hooks: tuple[Any, Group] | None = None
        self.add_libraries(_LIBRARIES)

    def add_libraries(self, names: Iterable[str]) -> None:
        """Library modules that the tests use; those that are not loaded yet are loaded now, before the candidate."""
        found = []
        for name in sorted(set(names) - self._libraries):
            with contextlib.suppress(Exception):
                found.append(Library(name, importlib.import_module(name)))
        self._libraries.update(names)
        if found:
            self._groups.append(Group(found, self._layout))

    def add_hooks(self, manager: pytest.PytestPluginManager) -> None:
        """The hooks of the run to come, instead of another's."""
        if self._hooks is None or self._hooks[0] is not manager:
            self._hooks = manager, Group([], self._layout, [Hooks(manager)])

    def look(self) -> str:
        """What is not as it was, in words; "": nothing."""
        for group in self._groups:
            if found := group.look():
                return found
        for kind, tracer in (("trace", sys.gettrace()), ("profile", sys.getprofile())):
            if tracer is not None and comes_from(tracer, rootfs.WORK):
                return f"a {kind} function of the code under test runs in the tests"
        return self._hooks[1].look() if self._hooks is not None else ""


class TrustedCode:
    """The code objects that the trusted files were compiled to: a test function must still have one of them."""

    def __init__(self) -> None:
        self._kept: list[types.CodeType] = []
        self._ids: set[int] = set()
        self.lent: Mapping[str, frozenset[str] | None] = {}
        """Names that each trusted file may itself give to the candidate, by its path; None: it cannot be told which."""

    def listen(self) -> None:
        """From now on takes note of all code that pytest compiles of test files."""
        compile_test: Callable[..., Any] = vars(rewrite)["_rewrite_test"]

        @functools.wraps(compile_test)
        def compile_and_note(*arguments: object) -> object:
            made = compile_test(*arguments)
            self._note(made[1])
            return made

        vars(rewrite)["_rewrite_test"] = compile_and_note

    def _note(self, code: types.CodeType) -> None:
        self._kept.append(code)
        self._ids.add(id(code))
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self._note(inner)

    def look(self, function: object) -> str:
        """What is wrong with the function of a test that the trusted files define; "": nothing."""
        inner = inspect.unwrap(function) if callable(function) else function
        code = getattr(getattr(inner, "__func__", inner), "__code__", None)
        if code is None or id(code) not in self._ids:
            return "its function is not the one in the trusted file"
        lent = self.lent.get(code.co_filename)
        if lent is not None:
            for name, value in getattr(inner, "__globals__", {}).items():
                if name not in lent and isinstance(value, types.FunctionType) and comes_from(value, rootfs.WORK):
                    return f"the name {name} in its file was given to the code under test"
        return ""
