"""Exceptions that come from the candidate, made anew in the judge, which believes nothing that it is told.

They are of the built-in classes, of those of the standard library that are loaded here, and of look-alikes that are
defined here.
"""

import builtins
import sys
import types
import unittest
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from sandbox_service.guest.confinement import rootfs
from sandbox_service.guest.dialogue.failures import CHAIN, CLASSES, FIRST_FRAMES, LAST_FRAMES
from sandbox_service.guest.dialogue.plain import MalformedError, Node
from sandbox_service.guest.dialogue.plain_reader import Reader

_LAST_LINE = 1_000_000
_TEXT = "_told_text"
_NEVER_TAKEN = frozenset({"unittest", "doctest", "pytest", "_pytest", "builtins"})
"""Modules whose exceptions steer the test framework, and the one that is looked at first."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of the candidate's, made anew, and where in its files it came from: path, line, function."""

    error: BaseException
    frames: list[tuple[str, int, str]]


class Classes:
    """Exception classes by the names that the candidate gave: one name is one class for the whole run."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], type[BaseException]] = {}

    def of(self, node: Node) -> type[BaseException]:
        """The class that a list of classes describes.

        Raises:
            MalformedError: it describes none.
        """
        if type(node) is not list or not 0 < len(node) <= CLASSES:
            raise MalformedError("no class")
        made: dict[int, type[BaseException]] = {}
        for place in reversed(range(len(node))):
            module, name, bases = node[place]
            if type(module) is not str or type(name) is not str or type(bases) is not list:
                raise MalformedError("no class")
            made[place] = self._one(module, name, tuple(made[base] for base in bases if base in made))
        return made[0]

    def _one(self, module: str, name: str, bases: tuple[type[BaseException], ...]) -> type[BaseException]:
        found = self._made.get((module, name)) or _of_library(module, name)
        if found is None:
            found = _look_alike(module, name, bases)
        self._made[module, name] = found
        return found


def _of_library(module: str, name: str) -> type[BaseException] | None:
    """A built-in class, or one of a module of the standard library that is loaded here already."""
    if module == "builtins":
        found = getattr(builtins, name, None)
    elif module.partition(".")[0] in sys.stdlib_module_names - _NEVER_TAKEN and "." not in name:
        found = vars(sys.modules.get(module, types)).get(name)
    else:
        return None
    if not isinstance(found, type) or not issubclass(found, BaseException):
        return None
    if found is BaseException or (issubclass(found, (Exception, SystemExit)) and not _steers(found)):
        return found
    return RuntimeError if name != "BaseExceptionGroup" else Exception


def _steers(kind: type[BaseException]) -> bool:
    return issubclass(kind, unittest.SkipTest) or kind.__module__.startswith(("_pytest", "pytest"))


def _look_alike(module: str, name: str, bases: tuple[type[BaseException], ...]) -> type[BaseException]:
    parents = tuple(base for base in bases if base is not BaseException) or (Exception,)
    fields = {"__module__": module, "__qualname__": name, "__str__": _text_of}
    short = name.rpartition(".")[2] or "Exception"
    try:
        return type(short, parents, fields)
    except TypeError:  # bases that do not go together
        return type(short, (Exception,), fields)


def _text_of(self: BaseException) -> str:
    """The text that the candidate's own object had: its class may say more than the arguments."""
    return str(vars(self).get(_TEXT, "")) if _TEXT in vars(self) else BaseException.__str__(self)


def rebuilt(node: Node, classes: Classes, reader: Reader, left: int = CHAIN) -> Raised:
    """The exception that a node describes.

    Raises:
        MalformedError: it describes none.
    """
    try:
        described, arguments, text_node, frame_nodes, cause = node
        kind = classes.of(described)
        values = reader.value(arguments) if arguments is not None else None
        text = reader.value(text_node)
        frames = [_frame(*frame) for frame in frame_nodes[: FIRST_FRAMES + LAST_FRAMES]]
    except (ValueError, TypeError, KeyError) as error:
        raise MalformedError(f"no exception: {error}"[:200]) from None
    if type(text) is not str or type(values) not in (tuple, type(None)):
        raise MalformedError("no exception")
    name = described[0][1]
    if not issubclass(kind, (Exception, SystemExit)) or (kind is RuntimeError and name != kind.__name__):
        kind, values, text = RuntimeError, None, f"{name}: {text}"
    made = _made(kind, values, text)
    if cause is not None and left:
        made.__cause__ = thrown(rebuilt(cause, classes, reader, left - 1))
    return Raised(made, frames)


def _made(kind: type[BaseException], values: tuple[Any, ...] | None, text: str) -> BaseException:
    given = (text,) if values is None else values
    try:
        error = kind(*given)
    except Exception:
        error = kind.__new__(kind)
        error.args = given
    if _TEXT not in vars(error) and kind.__str__ is _text_of:
        vars(error)[_TEXT] = text
    elif values is None and isinstance(error, BaseException):
        error.args = (text,)
    return error


def _frame(path: str, line: int, name: str) -> tuple[str, int, str]:
    inside = type(path) is str and path.startswith(f"{rootfs.WORK}/") and "/../" not in path
    if not inside or type(line) is not int or not 0 < line < _LAST_LINE or type(name) is not str:
        raise MalformedError("no frame")
    return path, line, name


def thrown(raised: Raised) -> BaseException:
    """The exception with a traceback that goes through the candidate's lines, as if it had been raised here."""
    try:
        throw(raised)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename[:6] != f"{rootfs.WORK}/":
            trace = trace.tb_next
        return error.with_traceback(trace)


def throw(raised: Raised) -> NoReturn:
    """Raises an exception out of frames that carry the candidate's files, lines and functions."""
    __tracebackhide__ = True

    def fail() -> NoReturn:
        __tracebackhide__ = True
        raise raised.error

    step: Callable[[], object] = fail
    for path, line, name in reversed(raised.frames):
        code = compile("step()", path, "eval").replace(co_name=name, co_firstlineno=line)
        step = types.FunctionType(code, {"step": step})
    step()
    raise raised.error
