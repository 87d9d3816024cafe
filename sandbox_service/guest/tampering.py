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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from _pytest.assertion import rewrite

from sandbox_service.guest import rootfs

_WATCHED = (
    "pytest", "_pytest.runner", "_pytest.python", "_pytest.reports", "_pytest.unittest", "_pytest.assertion",
    "_pytest.assertion.rewrite", "_pytest.assertion.util", "_pytest.raises", "_pytest.python_api", "_pytest.outcomes",
    "_pytest.nodes", "_pytest.main", "_pytest.skipping", "_pytest.fixtures", "_pytest.subtests", "_pytest._code.code",
    "pluggy", "pluggy._caller", "pluggy._callers", "pluggy._execution", "pluggy._hooks", "pluggy._manager",
    "pluggy._result", "unittest", "unittest.case", "unittest.util", "sandbox_service.guest.reporter",
    "sandbox_service.guest.outcomes", "sandbox_service.guest.canaries",
)  # fmt: skip
_LIBRARIES = ("builtins", "json", "json.encoder", "os", "time", "random", "math")
_UNTOUCHED = object()


@dataclass(frozen=True, slots=True)
class _Known:
    """One name as it was: where it is held, and the code behind it (None: not written in python)."""

    space: Any
    holder: str
    name: str
    value: object
    code: types.CodeType | None


_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE (CPython's object.h): the type was made at run time, as all that python code makes are."""


class Watch:
    """What must stay as it is. Made before the first job; `look` costs about a millisecond."""

    def __init__(self) -> None:
        self._modules = {name: sys.modules[name] for name in _WATCHED if name in sys.modules}
        self._known = [known for name, module in self._modules.items() for known in _of_module(name, module)]
        self._lenient: list[tuple[dict[str, Any], str, str, object]] = []
        self.add_libraries(_LIBRARIES)

    def add_libraries(self, names: Iterable[str]) -> None:
        """Library modules that the tests use; those that are not loaded yet are loaded now, before the candidate."""
        for name in sorted(names):
            with contextlib.suppress(Exception):
                module = importlib.import_module(name)
                self._lenient += [(vars(module), name, inner, value) for inner, value in _callables(module)]

    def look(self) -> str:
        """What is not as it was, in words; "": nothing."""
        for name, module in self._modules.items():
            if sys.modules.get(name, module) is not module:
                return f"the module {name} was replaced"
        for known in self._known:
            found = known.space.get(known.name, _UNTOUCHED)
            changed = found is not known.value or (known.code is not None and _code(found) is not known.code)
            if changed and not _comes_from(found, rootfs.TESTS):
                return f"{known.holder}.{known.name} was replaced"
        for space, holder, name, value in self._lenient:
            found = space.get(name, _UNTOUCHED)
            if found is not value and (found is _UNTOUCHED or _comes_from(found, rootfs.WORK)):
                return f"{holder}.{name} was replaced by the code under test"
        for kind, tracer in (("trace", sys.gettrace()), ("profile", sys.getprofile())):
            if tracer is not None and _comes_from(tracer, rootfs.WORK):
                return f"a {kind} function of the code under test runs in the tests"
        return ""


def _callables(module: types.ModuleType) -> list[tuple[str, object]]:
    return [(name, value) for name, value in vars(module).items() if callable(value) and not name.startswith("__")]


def plugin_of_the_code(manager: pytest.PytestPluginManager) -> str:
    """A hook of pytest's that is the code under test's; "": there is none."""
    for name, caller in vars(manager.hook).items():
        if name.startswith("pytest_"):
            for implementation in caller.get_hookimpls():
                if _comes_from(implementation.function, rootfs.WORK):
                    return f"the code under test takes part in {name}"
    return ""


def _of_module(name: str, module: types.ModuleType) -> Iterator[_Known]:
    for attribute, value in list(vars(module).items()):
        if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
            yield _Known(vars(module), name, attribute, value, _code(value))
        elif isinstance(value, type):
            yield _Known(vars(module), name, attribute, value, None)
            if value.__module__ == name:
                for member, inner in list(vars(value).items()):
                    if callable(inner) or isinstance(inner, (classmethod, staticmethod, property)):
                        yield _Known(vars(value), f"{name}.{attribute}", member, inner, _code(inner))


def _code(value: object) -> types.CodeType | None:
    if isinstance(value, (classmethod, staticmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    return value.__code__ if isinstance(value, types.FunctionType) else None


def _comes_from(value: object, root: str) -> bool:
    """Whether a function, a method or an object's class was written in a file below `root`."""
    while isinstance(value, functools.partial):
        value = value.func
    value = getattr(value, "__func__", value)
    code = _code(value)
    if code is not None:
        return code.co_filename.startswith(f"{root}/")
    kind = value if isinstance(value, type) else type(value)
    if not kind.__flags__ & _HEAP_TYPE:
        return False  # written in C, whatever module of the job's has the name of its own
    module = sys.modules.get(kind.__module__)
    return str(getattr(module, "__file__", "")).startswith(f"{root}/")


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
                if name not in lent and isinstance(value, types.FunctionType) and _comes_from(value, rootfs.WORK):
                    return f"the name {name} in its file was given to the code under test"
        return ""
