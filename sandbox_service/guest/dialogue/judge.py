"""The judge's side of a test run in two processes: modules that look like the candidate's and ask it for everything.

What comes back is rebuilt from plain values; nothing of the candidate's own is ever in the judge's process.
"""

import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from sandbox_service.guest.confinement import rootfs
from sandbox_service.guest.dialogue.channel import Channel, ClosedError
from sandbox_service.guest.dialogue.opaque import Opaque
from sandbox_service.guest.dialogue.plain import MalformedError, Memo, Node, NotPlainError, TooLargeError, Value
from sandbox_service.guest.dialogue.plain_reader import Reader, replace
from sandbox_service.guest.dialogue.plain_writer import Writer
from sandbox_service.guest.dialogue.rebuilding import Classes, Raised, rebuilt, throw

_Own = TypeVar("_Own")
_ASKED_DUNDERS = frozenset({"__version__", "__author__", "__all__", "__title__", "__license__"})
_CONTAINERS = (list, dict, set, bytearray, deque)
_CATCH_FAILURES = (BaseException, Exception, AssertionError)
_KINDS = ("v", "-", "e", "x", "class", "module", "function")
"""Of answers: a value, nothing, an exception, something that cannot cross, and what a name in a module can be."""


class CandidateGoneError(RuntimeError):
    """The code under test ended its process, or answered what nobody can understand."""


class NotPlainHereError(TypeError):
    """A test handed the code under test something that is no plain value."""


class Conversation:
    """Questions to the candidate and what became of them.

    Args:
        channel: to its process.
        on_unplain: hears what a test handed over that cannot cross, before anything was learned from the candidate but
            the names of its modules. It may end the process: the tests then need the candidate beside them.
    """

    def __init__(self, channel: Channel, on_unplain: Callable[[str], None]) -> None:
        self._channel, self._on_unplain = channel, on_unplain
        self._asked = 0
        self._learned = False
        self.gone = ""
        """Why the candidate answers no more; empty: it does."""
        self._classes = Classes()
        self._known: dict[int, object] = {}
        self._numbers: dict[int, int] = {}
        self._containers: dict[tuple[str, str], Value] = {}
        self._given: list[object] = []
        self.covers = False
        """Whether the candidate measures what is reached of its code."""
        self.unplain = ""
        """What was handed over later that cannot cross; empty: nothing."""

    def number(self, value: object) -> int | None:
        """The candidate's number of something of its own."""
        number = self._numbers.get(id(value))
        return number if number is not None and self._known[number] is value else None

    def is_generator(self, value: object) -> bool:
        """Whether something of the candidate's is a generator there."""
        return isinstance(value, types.GeneratorType)

    def opaque(self, value: object) -> None:
        """Nothing of the tests' own can be handed over as a number."""

    def found(self, number: int, *, generator: bool) -> object:
        """An iterator of the candidate's."""
        known = self._known.get(number)
        if known is None or isinstance(known, Opaque):
            return self._keep(number, _generate(self, number) if generator else RemoteIterator(self, number))
        return known

    def stand_in(self, number: int, *, truth: bool, what: str) -> Opaque:
        """Something else of the candidate's."""
        known = self._known.get(number)
        if isinstance(known, Opaque):
            known.tell(truth=truth)
            return known
        return self._keep(number, Opaque(what, self._asked_of, truth=truth))

    def _asked_of(self, what: str) -> None:
        """A test asks more of a stand-in than it can tell: whatever it makes of that says nothing of the candidate."""
        self.unplain = self.unplain or f"{_line_of_tests()} asks {what}"

    def _keep(self, number: int, made: _Own) -> _Own:
        self._known[number] = made
        self._numbers[id(made)] = number
        return made

    def call(self, module: str, name: str, arguments: Sequence[Value], keywords: dict[str, Value]) -> Value:
        """Calls a function; arguments that it changed are changed here too.

        Raises:
            CandidateGoneError: there is no answer.
            NotPlainHereError: an argument cannot cross.
            TypeError: the result cannot.
            Exception: what the function raised.
        """
        __tracebackhide__ = True
        memo = Memo()
        writer = Writer(memo, self, exact=True)
        try:
            nodes = writer.items(arguments, 0)
            named = [part for key, value in keywords.items() for part in (key, writer.node(value))]
        except NotPlainError as error:
            self._refuse(f"{error.what} to {module}.{name}", error.value)
        except (TooLargeError, RecursionError) as error:
            raise NotPlainHereError(f"too much to hand to {module}.{name}: {error}") from None
        self._learned = True
        try:
            kind, payload = self._ask(memo, "call", module, name, nodes, named)
        finally:
            self._refresh()
        if kind != "v":
            self._nonsense()
        return payload

    def _refresh(self) -> None:
        """Containers that tests took from a module by name are the module's own: calls change them."""
        for module, name in list(self._containers):
            with contextlib.suppress(Exception):
                self.attribute(module, name)

    def next(self, number: int) -> Value:
        """The next item of an iterator.

        Raises:
            StopIteration: there is none.
            Exception: as `call`.
        """
        __tracebackhide__ = True
        kind, payload = self._ask(Memo(), "next", number)
        if kind == "-":
            raise StopIteration
        if kind != "v":
            self._nonsense()
        return payload

    def load(self, name: str) -> bool:
        """Imports a module there. Returns whether it is a package. Raises what its import raised."""
        __tracebackhide__ = True
        return bool(self._ask(Memo(), "import", name)[1])

    def attribute(self, module: str, name: str) -> Value:
        """A name in a module: a function or class that asks when called, an exception class, or a plain value.

        Raises:
            AttributeError: there is no such name.
            TypeError: it is none of these.
        """
        __tracebackhide__ = True
        kind, payload = self._ask(Memo(), "get", module, name)
        match kind:
            case "-":
                raise AttributeError(f"module {module!r} has no attribute {name!r}")
            case "class" if payload in _CATCH_FAILURES and name != payload.__name__:
                raise TypeError(f"{module}.{name} is {payload.__name__} itself, which failed assertions are as well")
            case "class":
                return self._give(payload)
            case "module" if type(payload) is str and isinstance(sys.modules.get(payload), _Module):
                return self._give(sys.modules[payload])
            case "function" if type(payload) is str:
                return self._give(_function(self, module, name, payload))
            case "v":
                self._learned = True
                return self._lasting(module, name, payload)
        raise TypeError(f"{module}.{name} is no plain value")

    def _give(self, made: _Own) -> _Own:
        self._given.append(made)
        return made

    def _lasting(self, module: str, name: str, value: Value) -> Value:
        """The value of a name in a module: one and the same container each time, with what it holds now."""
        if not isinstance(value, _CONTAINERS):
            return value
        kept = self._containers.setdefault((module, name), value)
        if type(kept) is not type(value):
            kept = self._containers[module, name] = value
        elif kept is not value:
            replace(kept, value)
        return kept

    def coverage(self) -> list[dict[str, Any]]:
        """What the candidate measured of itself, a frame a file; nothing where it measures nothing or is gone."""
        if not self.covers or self.gone:
            return []
        try:
            kind, payload = self._ask(Memo(), "coverage")
        except Exception:
            return []
        frames = payload if kind == "v" and type(payload) is list else []
        return [{**frame, "kind": "coverage"} for frame in frames if type(frame) is dict]

    def close(self) -> None:
        """Asks no more: the candidate's process can end while the judge's still has to."""
        self._channel.close()

    def _refuse(self, what: str, value: object) -> NoReturn:
        """What the candidate itself gave out is no reason to move the tests: it could choose where it runs."""
        __tracebackhide__ = True
        where = _line_of_tests()
        said = f"{where} passes {what}" if where else f"a test passes {what}"
        if not self._learned and not any(value is given for given in self._given):
            self._on_unplain(said)
        self.unplain = self.unplain or said
        raise NotPlainHereError(f"{said}: that needs isolation SHARED")

    def _ask(self, memo: Memo, verb: str, *rest: Node) -> tuple[str, Value]:
        """Kind and payload of the answer, the payload rebuilt where it is a value. Raises what was raised there."""
        __tracebackhide__ = True
        if self.gone:
            raise CandidateGoneError(self.gone)
        self._asked += 1
        try:
            self._channel.send([self._asked, verb, *rest])
            kind, value, raised = self._answer(memo)
        except ClosedError:
            self._end("the code under test ended its process")
        except TooLargeError as error:
            raise NotPlainHereError(f"too much to hand over: {error}") from None
        except (MalformedError, ValueError, TypeError) as error:
            self._end(f"the code under test broke the protocol: {error}")
        if raised is not None:
            throw(raised)
        if kind == "x":
            raise TypeError(str(value)[:512])
        return kind, value

    def _answer(self, memo: Memo) -> tuple[str, Value, Raised | None]:
        """The next answer: its kind, its payload, and the exception that it brings."""
        number, kind, payload, changes, out, err = self._channel.receive()
        if number != self._asked or kind not in _KINDS:
            raise MalformedError("an answer to another question")
        _show(out, err)
        reader = Reader(memo, self)
        known = len(memo.containers)
        value = reader.value(payload) if kind == "v" else payload
        raised = rebuilt(payload, self._classes, reader) if kind == "e" else None
        for place, content in changes:
            if type(place) is not int or not 0 <= place < known:
                raise MalformedError("a change of something else")
            reader.assign(place, content)
        if kind == "class":
            value = self._classes.of(payload)
        return kind, value, raised

    def _nonsense(self) -> NoReturn:
        __tracebackhide__ = True
        self._end("the code under test broke the protocol: an answer of another kind")

    def _end(self, why: str) -> NoReturn:
        __tracebackhide__ = True
        self.gone = why
        self._channel.close()
        raise CandidateGoneError(why) from None


class RemoteIterator:
    """An iterator of the candidate's: every item is asked for when it is wanted."""

    def __init__(self, conversation: Conversation, number: int) -> None:
        self._conversation, self._number = conversation, number

    def __iter__(self) -> Iterator[Value]:
        return self

    def __next__(self) -> Value:
        __tracebackhide__ = True
        return self._conversation.next(self._number)


def _generate(conversation: Conversation, number: int) -> Iterator[Value]:
    """The same as a generator, for tests that look for one."""
    __tracebackhide__ = True
    while True:
        try:
            item = conversation.next(number)
        except StopIteration:
            return
        yield item


def _show(out: Node, err: Node) -> None:
    """What the candidate printed becomes output of the test that asked it."""
    for text, descriptor, stream in ((out, 1, sys.stdout), (err, 2, sys.stderr)):
        if text:
            stream.flush()
            data = memoryview(text.encode("latin-1"))
            while data:
                data = data[os.write(descriptor, data) :]


def _function(conversation: Conversation, module: str, name: str, text: str) -> Callable[..., Any]:
    def ask(*arguments: Value, **keywords: Value) -> Value:
        __tracebackhide__ = True
        return conversation.call(module, name, arguments, keywords)

    ask.__name__ = ask.__qualname__ = name
    ask.__module__ = module
    ask.__doc__ = text or None
    return ask


def _line_of_tests() -> str:
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - the cheap way; traceback.walk_stack is the same
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(f"{rootfs.TESTS}/"):
            return f"{path[len(rootfs.TESTS) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


class _Module(types.ModuleType):
    """Stands for a module of the candidate."""

    def __init__(self, name: str, conversation: Conversation) -> None:
        super().__init__(name)
        vars(self)["_conversation"] = conversation

    def __getattr__(self, name: str) -> Value:
        __tracebackhide__ = True
        if name.startswith("__") and name not in _ASKED_DUNDERS:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return vars(self)["_conversation"].attribute(self.__name__, name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the candidate's modules. Goes first on `sys.meta_path`."""

    def __init__(self, names: frozenset[str], conversation: Conversation) -> None:
        self._names, self._conversation = names, conversation

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the protocol's
        target: types.ModuleType | None = None,  # noqa: ARG002 - the protocol's
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for a module of the candidate, None for all others."""
        if fullname.partition(".")[0] not in self._names:
            return None
        return importlib.machinery.ModuleSpec(
            fullname, self, origin=f"{rootfs.WORK}/{fullname.replace('.', '/')}.py", is_package=True
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An empty stand-in."""
        return _Module(spec.name, self._conversation)

    def exec_module(self, module: types.ModuleType) -> None:
        """Imports the module where it is."""
        __tracebackhide__ = True
        if not self._conversation.load(module.__name__):
            del module.__path__
        vars(module)["__file__"] = module.__spec__.origin if module.__spec__ else None
