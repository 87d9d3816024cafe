"""Tells which of a job's two roots something was written below: the code under test, or its tests."""

import functools
import sys
import types

_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE (CPython's object.h): the type was made at run time, as all that python code makes are."""


def functions_of(value: object) -> list[types.FunctionType]:
    """Functions written in python that a name stands for: itself, or those behind a method or a property."""
    if isinstance(value, property):
        inner: list[object] = [value.fget, value.fset, value.fdel]
    else:
        inner = [value.__func__ if isinstance(value, (classmethod, staticmethod)) else value]
    return [one for one in inner if isinstance(one, types.FunctionType)]


def code_of(value: object) -> types.CodeType | None:
    """The code behind a name; None: it is not written in python."""
    found = functions_of(value)
    return found[0].__code__ if found else None


def comes_from(value: object, root: str) -> bool:
    """Whether a function, a method or an object's class was written in a file below `root`."""
    while isinstance(value, functools.partial):
        value = value.func
    value = getattr(value, "__func__", value)
    code = code_of(value)
    if code is not None:
        return code.co_filename.startswith(f"{root}/")
    kind = value if isinstance(value, type) else type(value)
    if not kind.__flags__ & _HEAP_TYPE:
        return False  # written in C, whatever module of the job's has the name of its own
    module = sys.modules.get(kind.__module__)
    return str(getattr(module, "__file__", "")).startswith(f"{root}/")
