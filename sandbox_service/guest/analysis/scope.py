"""Names in a file of the tests: which stand for the candidate, which for a library, which for the file's own things."""

import ast
import builtins
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from typing import TypeGuard

from sandbox_service.guest.analysis.sources import Source, Sources
from sandbox_service.guest.analysis.traffic_tables import OWN_NAMES
from sandbox_service.guest.confinement import rootfs

Lines = dict[str, list[int]]
"""Lines by the variable that is there."""


@dataclass(slots=True)
class Scope:
    """What names mean in one file, wherever in it they are bound."""

    source: Source
    tree: ast.Module
    modules: dict[str, str] = field(default_factory=dict)
    """Name -> module of the candidate."""
    members: dict[str, str] = field(default_factory=dict)
    """Name -> `module.name` imported from a module of the candidate."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Name -> library module."""
    library_members: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name -> library module and the name in it."""
    functions: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    """Names that assignments, loops and the like bind."""
    results: set[str] = field(default_factory=set)
    """Variables that hold what a call of the candidate returned."""
    aliases: set[str] = field(default_factory=set)
    """Variables that may hold a function of the candidate's."""
    caught: set[str] = field(default_factory=set)
    """Variables that hold a caught exception."""
    handed: dict[ast.AST, tuple[Lines, Lines]] = field(default_factory=dict)
    """Function -> where it passes variables to the candidate, and where it binds them; kept by `results`."""
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    def candidate_call(self, node: ast.AST) -> str:
        """The `module.name` that a call asks of the candidate; "": another call, or none."""
        if not isinstance(node, ast.Call):
            return ""
        return self.candidate_name(node.func)

    def candidate_name(self, node: ast.AST) -> str:
        """The `module.name` that an expression stands for; "": none of the candidate's."""
        if isinstance(node, ast.Name):
            return self.members.get(node.id, "")
        if isinstance(node, ast.Attribute):
            base = self.module_of(node.value)
            return f"{base}.{node.attr}" if base else ""
        return ""

    def module_of(self, node: ast.AST) -> str:
        """The module of the candidate that an expression stands for."""
        if isinstance(node, ast.Name):
            return self.modules.get(node.id, "")
        if isinstance(node, ast.Attribute):
            base = self.module_of(node.value)
            dotted = f"{base}.{node.attr}"
            return dotted if base and dotted in self.modules.values() else ""
        return ""

    def library_of(self, node: ast.AST) -> tuple[str, str]:
        """Library module and dotted name in it that an expression stands for; ("", ""): none."""
        if isinstance(node, ast.Name):
            if node.id in self.libraries:
                return self.libraries[node.id], ""
            return self.library_members.get(node.id, ("", ""))
        if isinstance(node, ast.Attribute):
            module, name = self.library_of(node.value)
            return (module, f"{name}.{node.attr}" if name else node.attr) if module else ("", "")
        return "", ""

    def is_builtin(self, node: ast.AST) -> bool:
        """Whether an expression is the name of a builtin that the file does not bind anew."""
        if not isinstance(node, ast.Name) or not hasattr(builtins, node.id):
            return False
        bound = self.functions | self.classes | self.variables | self.members.keys() | self.library_members.keys()
        return node.id not in bound


def candidate_modules(sources: Sources) -> frozenset[str]:
    """Top-level names of modules that the tests import and that are neither theirs nor of a library."""
    found = set()
    for source in sources.files:
        for name in _imported(source.tree) if source.tree else ():
            if name not in sources.names and not is_library(name):
                found.add(name)
    return frozenset(found)


def library_modules(sources: Sources) -> frozenset[str]:
    """Top-level names of library modules that the tests import."""
    names = {name for source in sources.files if source.tree for name in _imported(source.tree)}
    return frozenset(name for name in names - sources.names if is_library(name))


def lent_names(tree: ast.Module | None) -> frozenset[str] | None:
    """Names that a file itself may give to the code under test; None where nothing is known.

    Those of its imports, of its assignments but for what is written out, and of functions that it decorates.
    """
    names: set[str] = set()
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names |= {node.name} if node.decorator_list else set()
        elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Lambda, ast.Constant)):
            continue
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.withitem)):
            names |= {inner.id for inner in ast.walk(node) if _is_stored(inner)}
    return None if tree is None or "*" in names else frozenset(names)


def name_of(node: ast.AST) -> str:
    """A variable, or a field of one, by its name; "": something else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) and node.id not in OWN_NAMES else ""


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def hidden_libraries(sources: Sources, beside: Callable[[str], bool]) -> list[str]:
    """Library modules that the tests import and that `beside` the candidate's code another one would hide."""
    names = {name for source in sources.files if source.tree for name in _imported(source.tree)}
    return sorted(
        name
        for name in names - sources.names
        if is_library(name) and name not in sys.modules and name not in sys.builtin_module_names and beside(name)
    )


def is_library(name: str) -> bool:
    """Whether a top-level module is loaded here, of the standard library, or an installed package."""
    if name in sys.modules or name in sys.stdlib_module_names:
        return True
    return PathFinder.find_spec(name, [rootfs.PACKAGES]) is not None


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def scope_of(source: Source, tree: ast.Module, candidates: frozenset[str], own: frozenset[str]) -> Scope:
    """Gathers the names of one file."""
    scope = Scope(source, tree)
    parameters: set[str] = set()
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            scope.parents[child] = node
        if isinstance(node, ast.Import):
            _take_import(scope, node, candidates, own)
        elif isinstance(node, ast.ImportFrom):
            _take_import_from(scope, node, candidates, own)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            scope.functions.add(node.name)
        elif isinstance(node, ast.ClassDef):
            scope.classes.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            scope.variables.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            scope.variables.add(node.name)
            scope.caught.add(node.name)
        elif isinstance(node, ast.arg):
            parameters.add(node.arg)
    scope.functions -= parameters  # a fixture is known by its function's name
    _follow_results(scope)
    _follow_aliases(scope)  # such as a list of functions
    _follow_aliases(scope)  # and a loop over it
    return scope


def _take_import(scope: Scope, node: ast.Import, candidates: frozenset[str], own: frozenset[str]) -> None:
    for alias in node.names:
        top = alias.name.partition(".")[0]
        if top in candidates:
            scope.modules[alias.asname or alias.name] = alias.name
            if not alias.asname:
                scope.modules[top] = top
        elif top not in own:
            scope.libraries[alias.asname or top] = alias.name if alias.asname else top


def _take_import_from(scope: Scope, node: ast.ImportFrom, candidates: frozenset[str], own: frozenset[str]) -> None:
    module = node.module or ""
    top = module.partition(".")[0]
    for alias in node.names:
        if top in candidates and not node.level:
            scope.members[alias.asname or alias.name] = f"{module}.{alias.name}"
        elif top and top not in own and not node.level:
            scope.library_members[alias.asname or alias.name] = (module, alias.name)


def _follow_results(scope: Scope) -> None:
    for node in ast.walk(scope.tree):
        if isinstance(node, ast.FunctionDef) and any(_gives_result(scope, inner) for inner in ast.walk(node)):
            scope.results.add(node.name)  # as a fixture, by which tests know it
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.comprehension)):
            value = node.iter if isinstance(node, (ast.For, ast.comprehension)) else node.value
            if value is None or not any(scope.candidate_call(inner) for inner in ast.walk(value)):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            scope.results |= {name_of(inner) for target in targets for inner in ast.walk(target)} - {""}


def _gives_result(scope: Scope, node: ast.AST) -> bool:
    return (
        isinstance(node, (ast.Return, ast.Yield)) and node.value is not None and bool(scope.candidate_call(node.value))
    )


def _follow_aliases(scope: Scope) -> None:
    for node in ast.walk(scope.tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.comprehension)):
            value = node.iter if isinstance(node, (ast.For, ast.comprehension)) else node.value
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if value is not None and _names_function(scope, value):
                scope.aliases |= {inner.id for target in targets for inner in ast.walk(target) if _is_stored(inner)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parametrize":
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str) and _names_function(scope, node):
                scope.aliases |= set(first.value.replace(",", " ").split())


def _names_function(scope: Scope, value: ast.expr) -> bool:
    """Whether an expression holds a function of the candidate's without calling it, or a variable that may be one."""
    for node in ast.walk(value):
        above = scope.parents.get(node)
        if isinstance(above, ast.Call) and above.func is node:
            continue
        name = scope.candidate_name(node).rpartition(".")[2]
        if (name and not name.isupper()) or (isinstance(node, ast.Name) and node.id in scope.aliases):
            return True
    return False
