"""What one look compares, in parts: a module's names with its classes', the table of modules, a run's hooks.

Each part can say where in memory it would be seen that it changed, and can look for itself, which decides.
"""

import operator
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sandbox_service.guest.confinement import rootfs
from sandbox_service.guest.testing.memory import Layout, Range, Words, dict_behind, ranges_of_functions
from sandbox_service.guest.testing.origin import comes_from, functions_of

_GONE = object()


@dataclass(frozen=True, slots=True)
class Seen:
    """Outcome of a look.

    Attributes:
        found: what is not as it must be, in words; "": nothing.
        is_same: whether all is the very same as at the start, what may change included.
    """

    found: str
    is_same: bool


class Part(Protocol):
    """Something that must stay as it is."""

    def ranges(self, layout: Layout) -> Sequence[Range] | None:
        """Memory that differs where it has changed, while what was there at the start lives; None: not to be found."""

    def look(self) -> Seen:
        """Compares the objects themselves."""


class Movable(Part, Protocol):
    """A part that may be held somewhere else by now, which its memory does not show."""

    def is_moved(self) -> bool:
        """Whether it is."""


class Group:
    """Parts whose memory is read together; a part is looked at where its memory differs, or cannot be read.

    Of a part that is the same, nothing is touched: not even the object that stands for it here.
    """

    def __init__(self, parts: Sequence[Part], layout: Layout | None, movable: Sequence[Movable] = ()) -> None:
        parts = [*movable, *parts]
        self._parts, self._movable = parts, movable
        self._ends: list[int | None] = []
        self._sames: list[bytes | None] = [None] * len(parts)
        """Each part's memory when it was last found the same as at the start."""
        ranges: list[Range] = []
        end = 0
        for part in parts:
            own = part.ranges(layout) if layout is not None else None
            ranges += own or ()
            end += sum(length for _at, length in own or ())
            self._ends.append(None if own is None else end)
        self._words = Words(ranges)

    def look(self) -> str:
        """What is not as it must be, in words; "": nothing."""
        for number, part in enumerate(self._movable):
            if part.is_moved():
                self._sames[number] = None
        memory = self._words.read()
        start = 0
        for number, end in enumerate(self._ends):
            now = None if memory is None or end is None else memory[start:end]
            start = start if end is None else end
            if now is None or now != self._sames[number]:
                seen = self._parts[number].look()
                self._sames[number] = now if seen.is_same else None
                if seen.found:
                    return seen.found
        return ""


@dataclass(frozen=True, slots=True)
class _Function:
    """A function as it was, with what can be given to it anew."""

    function: types.FunctionType
    code: types.CodeType
    defaults: tuple[object, ...] | None
    keywords: dict[str, object] | None
    keyword_values: dict[str, object]
    calls: tuple[tuple[types.CellType, object], ...]
    """Cells of it that held something to call."""

    @classmethod
    def of(cls, function: types.FunctionType) -> "_Function":
        keywords = function.__kwdefaults__
        cells: list[tuple[types.CellType, object]] = [(cell, _content(cell)) for cell in function.__closure__ or ()]
        calls = tuple(each for each in cells if callable(each[1]))
        return cls(function, function.__code__, function.__defaults__, keywords, dict(keywords or {}), calls)

    def is_same(self) -> bool:
        """Whether nothing of it was replaced."""
        now = self.function.__kwdefaults__
        return (
            self.function.__code__ is self.code
            and self.function.__defaults__ is self.defaults
            and now is self.keywords
            and (now is None or _are_same(now, self.keyword_values))
            and all(_content(cell) is content for cell, content in self.calls)
        )


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return _GONE


def _are_same(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    return one.keys() == other.keys() and all(one[name] is other[name] for name in one)


@dataclass(frozen=True, slots=True)
class _Known:
    """One name as it was: where it is held, and the functions behind it."""

    names: Mapping[str, object]
    holder: str
    name: str
    value: object
    functions: tuple[_Function, ...]

    @classmethod
    def of(cls, names: Mapping[str, object], holder: str, name: str) -> "_Known":
        value = names[name]
        return cls(names, holder, name, value, tuple(map(_Function.of, functions_of(value))))


class _Names:
    """Names that are held in some places."""

    def __init__(self, known: Sequence[_Known]) -> None:
        self._known = known

    def ranges(self, layout: Layout) -> Sequence[Range] | None:
        """See `Part`."""
        found = set()
        for known in self._known:
            place = dict_behind(known.names)
            if place is None:
                return None
            found.add(layout.of_dict(place))
        functions = {id(one.function): one.function for each in self._known for one in each.functions}
        return [*found, *ranges_of_functions(layout, functions.values())]

    def _changed(self) -> Iterator[tuple[_Known, object]]:
        """What is not as it was, and what is there now."""
        for known in self._known:
            now = known.names.get(known.name, _GONE)
            if now is not known.value or not all(one.is_same() for one in known.functions):
                yield known, now


class Framework(_Names):
    """A module of the framework: its functions, its classes and their methods. Nobody but a test may replace them."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(list(_of_module(module.__name__, module)))

    def look(self) -> Seen:
        """See `Part`."""
        is_same = True
        for known, now in self._changed():
            is_same = False
            if not comes_from(now, rootfs.TESTS):
                return Seen(f"{known.holder}.{known.name} was replaced", is_same)
        return Seen("", is_same)


def _of_module(name: str, module: types.ModuleType) -> Iterator[_Known]:
    for attribute, value in list(vars(module).items()):
        if callable(value) and not attribute.startswith("__"):
            yield _Known.of(vars(module), name, attribute)
        if isinstance(value, type) and value.__module__ == name:
            for member, inner in list(vars(value).items()):
                if callable(inner) or isinstance(inner, (classmethod, staticmethod, property)):
                    yield _Known.of(vars(value), f"{name}.{attribute}", member)


class Library(_Names):
    """A module that tests use: whatever can be called in it may be replaced, but not by the code under test."""

    def __init__(self, name: str, module: types.ModuleType) -> None:
        names = vars(module)
        called = [one for one, value in names.items() if callable(value) and not one.startswith("__")]
        super().__init__([_Known.of(names, name, one) for one in called])

    def look(self) -> Seen:
        """See `Part`."""
        is_same = True
        for known, now in self._changed():
            is_same = False
            if now is _GONE or comes_from(now, rootfs.WORK):
                return Seen(f"{known.holder}.{known.name} was replaced by the code under test", is_same)
        return Seen("", is_same)


class Modules:
    """The table of modules: each of some names is still the module that it was, or has been taken out."""

    def __init__(self, modules: Mapping[str, types.ModuleType]) -> None:
        self._table, self._modules = sys.modules, modules

    def ranges(self, layout: Layout) -> Sequence[Range] | None:
        """See `Part`."""
        return [layout.of_dict(self._table)] if type(self._table) is dict else None

    def is_moved(self) -> bool:
        """See `Movable`."""
        return sys.modules is not self._table

    def look(self) -> Seen:
        """See `Part`."""
        for name, module in self._modules.items():
            if sys.modules.get(name, module) is not module:
                return Seen(f"the module {name} was replaced", is_same=False)
        return Seen("", not self.is_moved())


class _Implementation(Protocol):
    """pluggy's `HookImpl`."""

    function: Callable[..., object]


class _Caller(Protocol):
    """pluggy's `HookCaller`."""

    _hookimpls: list[_Implementation]

    def get_hookimpls(self) -> list[_Implementation]: ...


class Manager(Protocol):
    """pluggy's `PluginManager`."""

    @property
    def hook(self) -> object:
        """Holds its hooks, each under its name."""


class Hooks:
    """Who takes part in a run's hooks: nobody of the code under test may."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self._hook, self._names = manager.hook, vars(manager.hook)
        self._known = [_Hook.of(name, caller) for name, caller in _callers(manager)]

    def ranges(self, layout: Layout) -> Sequence[Range] | None:
        """See `Part`."""
        names = dict_behind(self._names)
        slots = [slot for known in self._known for slot in known.slots(layout)]
        found = [one for one in slots if one is not None]
        if names is None or len(found) != len(slots):
            return None
        found.append(layout.of_dict(names))
        for known in self._known:
            found += layout.of_list(known.implementations)
        inner = [getattr(one, "__func__", one) for known in self._known for one in known.functions]
        return found + ranges_of_functions(layout, [one for one in inner if isinstance(one, types.FunctionType)])

    def is_moved(self) -> bool:
        """See `Movable`."""
        return self.manager.hook is not self._hook or vars(self._hook) is not self._names

    def look(self) -> Seen:
        """See `Part`."""
        for name, caller in _callers(self.manager):
            for each in caller.get_hookimpls():
                if comes_from(each.function, rootfs.WORK):
                    return Seen(f"the code under test takes part in {name}", is_same=False)
        now = [_Hook.of(*each) for each in _callers(self.manager)]
        is_same = not self.is_moved() and len(now) == len(self._known) and all(map(_Hook.is_same, self._known, now))
        return Seen("", is_same)


@dataclass(frozen=True, slots=True, eq=False)
class _Hook:
    """One hook as it was."""

    name: str
    caller: _Caller
    implementations: list[_Implementation]
    members: tuple[_Implementation, ...]
    functions: tuple[Callable[..., object], ...]

    @classmethod
    def of(cls, name: str, caller: _Caller) -> "_Hook":
        held = caller._hookimpls  # noqa: SLF001 - what its own method gives is a copy
        return cls(name, caller, held, tuple(held), tuple(each.function for each in held))

    def slots(self, layout: Layout) -> Iterator[Range | None]:
        """Where the list is held, and each function."""
        yield layout.of_slot(self.caller, self.implementations)
        for each, function in zip(self.members, self.functions, strict=True):
            yield layout.of_slot(each, function)

    def is_same(self, other: "_Hook") -> bool:
        """Whether all is the very same."""
        return (
            self.name == other.name
            and self.caller is other.caller
            and self.implementations is other.implementations
            and len(self.members) == len(other.members)
            and all(map(operator.is_, (*self.members, *self.functions), (*other.members, *other.functions)))
        )


def _callers(manager: Manager) -> list[tuple[str, _Caller]]:
    return [(name, caller) for name, caller in vars(manager.hook).items() if name.startswith("pytest_")]
