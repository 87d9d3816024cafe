"""The candidate's side of a test run in two processes: imports the code under test and carries out what is asked.

It never has a test. It runs in the same interpreter as that code and trusts nothing here to survive it: the judge
takes every answer as a stranger's.
"""

import importlib
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from sandbox_service.guest.confinement import rootfs
from sandbox_service.guest.dialogue.channel import Channel, ClosedError
from sandbox_service.guest.dialogue.failures import describe, describe_class
from sandbox_service.guest.dialogue.plain import CLASSES, Memo, Node, NotPlainError, TooLargeError, Value, name_of
from sandbox_service.guest.dialogue.plain_reader import Reader
from sandbox_service.guest.dialogue.plain_writer import Writer, flat_items
from sandbox_service.guest.process import coverage

PRINTED_BYTES = 64 * 1024
"""Of each stream, kept between two answers; the end of it, as of any test's output."""


def serve(start: dict[str, Any], descriptor: int) -> NoReturn:
    """Answers until the judge is gone, and ends the process.

    Nothing can come from the code's files before the first question: the cell may have started before the judge has
    settled whether the code runs here at all.

    Args:
        start: `coverage`: whether to measure what is reached.
        descriptor: of the channel.
    """
    channel = Channel(descriptor)
    measurement = coverage.Measurement(rootfs.WORK) if start["coverage"] else None
    served = _Served(measurement)
    try:
        question = channel.receive()
        sys.path.insert(0, rootfs.WORK)
        if measurement is not None:
            measurement.start()
        while True:
            number, verb, *rest = question
            answer = served.answer(verb, rest)
            _send(channel, [number, *answer, served.stdout.taken(), served.stderr.taken()])
            question = channel.receive()
    except ClosedError:
        os._exit(0)
    except BaseException:
        os._exit(1)


def _send(channel: Channel, message: Node) -> None:
    try:
        channel.send(message)
    except (TooLargeError, ValueError, RecursionError) as error:
        channel.send([message[0], "x", f"answered with too much: {type(error).__name__}: {error}"[:300], [], "", ""])


class _Printed:
    """What goes to one of the standard streams, kept in a file in memory until it is asked for."""

    def __init__(self, number: int) -> None:
        self._number = number
        try:
            self._file = os.memfd_create("output", os.MFD_CLOEXEC)
        except OSError:  # the filter takes no memory files where no control group counts them
            with tempfile.TemporaryFile(buffering=0) as file:
                self._file = os.dup(file.fileno())
        os.dup2(self._file, number)

    def taken(self) -> str:
        """What came since the last time, one character a byte."""
        stream = sys.stdout if self._number == 1 else sys.stderr
        try:
            stream.flush()
        except Exception:
            return ""  # the code under test has closed or replaced it
        size = os.fstat(self._file).st_size
        if size == 0:
            return ""
        data = os.pread(self._file, PRINTED_BYTES, max(size - PRINTED_BYTES, 0))
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        return data.decode("latin-1")


class _Objects:
    """What stays here, by the number that the judge has for it: iterators, and all that is not plain."""

    def __init__(self) -> None:
        self._known: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number(self, value: object) -> int | None:
        """Gives an iterator its number."""
        return self._keep(value) if isinstance(value, Iterator) and not isinstance(value, type) else None

    def opaque(self, value: object) -> tuple[int, bool, str]:
        """Gives anything else its number."""
        try:
            truth = bool(value)
        except BaseException:
            truth = True
        return self._keep(value), truth, name_of(value).encode("ascii", "replace").decode()

    def is_generator(self, value: object) -> bool:
        """Whether it is one of python's own."""
        return isinstance(value, types.GeneratorType)

    def found(self, number: int, *, generator: bool = False) -> Any:  # noqa: ANN401, ARG002 - whatever it was; the protocol's
        """What has this number."""
        return self._known[number]

    def stand_in(self, number: int, *, truth: bool, what: str) -> NoReturn:
        """Nothing of the judge's stays there."""
        raise LookupError(number, truth, what)

    def _keep(self, value: object) -> int:
        found = self._numbers.get(id(value))
        if found is None:
            found = self._numbers[id(value)] = len(self._known)
            self._known.append(value)
        return found


class _Served:
    def __init__(self, measurement: coverage.Measurement | None) -> None:
        self.stdout, self.stderr = _Printed(1), _Printed(2)
        self._measurement = measurement
        self._objects = _Objects()

    def answer(self, verb: str, rest: list[Node]) -> list[Node]:
        """Kind, payload and changed arguments of the answer to one question."""
        ask: dict[str, Callable[..., list[Node]]] = {
            "import": self._import, "get": self._get, "call": self._call, "next": self._next,
            "coverage": self._coverage,
        }  # fmt: skip
        try:
            return ask[verb](*rest)
        except (NotPlainError, TooLargeError) as error:
            return ["x", str(error)[:300], []]
        except RecursionError as error:  # a limit that the code under test has set so low that nothing works any more
            return ["e", describe(error, Writer(Memo(), self._objects, exact=False)), []]

    def _import(self, name: str) -> list[Node]:
        try:
            module = importlib.import_module(name)
        except BaseException as error:
            return self._raised(error, Memo())
        return ["v", hasattr(module, "__path__"), []]

    def _get(self, module: str, name: str) -> list[Node]:
        try:
            value = getattr(sys.modules[module], name)
        except (AttributeError, KeyError):
            return ["-", None, []]
        except BaseException as error:
            return self._raised(error, Memo())
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["class", describe_class(value), []]
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__ if sys.modules.get(value.__name__) is value else "", []]
        if callable(value) and not (isinstance(value, type) and CLASSES.get(value.__name__) is value):
            return ["function", str(getattr(value, "__doc__", None) or "")[:4096], []]
        return ["v", Writer(Memo(), self._objects, exact=False).node(value), []]

    def _call(self, module: str, name: str, arguments: Node, keywords: Node) -> list[Node]:
        memo = Memo()
        reader = Reader(memo, self._objects)
        positional = reader.items(arguments)
        named = dict(zip(keywords[::2], reader.items(keywords[1::2]), strict=True))
        before = [_content(container) for container in memo.containers]
        try:
            result = getattr(sys.modules[module], name)(*positional, **named)
        except BaseException as error:
            return self._raised(error, memo, before)
        writer = Writer(memo, self._objects, exact=False)
        return ["v", writer.node(result), self._changes(memo, before, writer)]

    def _next(self, number: int) -> list[Node]:
        try:
            value = next(self._objects.found(number))
        except StopIteration:
            return ["-", None, []]
        except BaseException as error:
            return self._raised(error, Memo())
        return ["v", Writer(Memo(), self._objects, exact=False).node(value), []]

    def _coverage(self) -> list[Node]:
        frames = list(self._measurement.collect()) if self._measurement else []
        return ["v", Writer(Memo(), self._objects, exact=False).node(frames), []]

    def _raised(self, error: BaseException, memo: Memo, before: list[Any] | None = None) -> list[Node]:
        writer = Writer(memo, self._objects, exact=False)
        described = describe(error, writer)
        return ["e", described, self._changes(memo, before or [], writer)]

    def _changes(self, memo: Memo, before: list[Any], writer: Writer) -> list[Node]:
        """Number and new content of each container among the arguments that is not what it was."""
        changed = []
        for number, old in enumerate(before):
            container = memo.containers[number]
            new = _content(container)
            if len(new) != len(old) or not all(map(_same, new, old)):
                changed.append([number, writer.content(container)])
        return changed


def _same(one: object, other: object) -> bool:
    return one is other


def _content(container: Value) -> Any:  # noqa: ANN401 - any of several sequences
    """What a container holds, to be compared by identity."""
    if isinstance(container, bytearray):
        return bytes(container)
    if isinstance(container, dict):
        return flat_items(container)
    return list(container)
