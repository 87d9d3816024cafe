"""Which tests must report, as far as their files say: known before the candidate is imported.

A test that is there only under a condition, or is made by code, is not among them: they are the least that must come.
"""

import ast
from collections.abc import Iterator, Sequence

from sandbox_service.guest.analysis.sources import Source, Sources

_MARKS = frozenset({"mark", "skip", "skipIf", "skipUnless", "expectedFailure", "patch", "staticmethod", "classmethod"})
"""Last or middle names of decorators that leave a test a test."""
_TEST_CASES = frozenset({"TestCase", "IsolatedAsyncioTestCase"})
_COLLECTION_HOOKS = frozenset(
    {
        "pytest_collection_modifyitems", "pytest_ignore_collect", "pytest_collect_file", "pytest_pycollect_makeitem",
        "pytest_pycollect_makemodule", "pytest_itemcollected", "pytest_deselected", "collect_ignore",
        "collect_ignore_glob", "pytest_configure", "pytest_collection", "pytest_plugins", "pytest_make_collect_report",
    }
)  # fmt: skip
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def expected(sources: Sources, select: Sequence[str]) -> tuple[list[str], str]:
    """Node ids that must report, without the values of their parameters, and why there may be others ("": none).

    Args:
        sources: the tests.
        select: node ids asked for; empty: all.
    """
    if sources.configured:
        return _of_selection([], select), "the tests' own configuration chooses them"
    for source in sources.files:
        if source.path.rpartition("/")[2] == "conftest.py" and source.tree is not None:
            hooks = _names(source.tree) & _COLLECTION_HOOKS
            if hooks:
                return _of_selection([], select), f"{min(hooks)} in {source.path} chooses them"
    found = [node_id for source in sources.files if source.is_collected for node_id in _of_file(source)]
    return _of_selection(found, select), ""


def _of_selection(found: list[str], select: Sequence[str]) -> list[str]:
    """Those of the found ones that are asked for, and what is asked for by its full id."""
    if not select:
        return found
    chosen: dict[str, None] = {}
    for wanted in select:
        below = [node_id for node_id in found if node_id == wanted or node_id.startswith((f"{wanted}::", f"{wanted}/"))]
        if below:
            chosen.update(dict.fromkeys(below))
        elif "::" in wanted and not wanted.rpartition("::")[2][:1].isupper():
            chosen[wanted] = None
    return list(chosen)


def _names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (_Function, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _of_file(source: Source) -> Iterator[str]:
    if source.tree is None:
        return
    tree = source.tree
    unsure = _meddled_with(tree)
    if "__test__" in unsure:  # pytest asks it of files too
        return
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name: node for node in tree.body if isinstance(node, _Function)}
    for name, node in functions.items():
        if name.startswith("test") and name not in unsure and _is_plain(node):
            yield f"{source.path}::{name}"
    for name, definition in classes.items():
        if name not in unsure:
            for inner in _of_class(definition, classes):
                yield f"{source.path}::{inner}"


def _of_class(node: ast.ClassDef, known: dict[str, ast.ClassDef]) -> Iterator[str]:
    lineage = _lineage(node, known)
    if lineage is None or not all(_is_mark(decorator) for decorator in node.decorator_list):
        return
    bodies = [statement for ancestor in lineage for statement in ancestor.body]
    is_case = any(_last(base) in _TEST_CASES for ancestor in lineage for base in ancestor.bases)
    made = {statement.name for statement in bodies if isinstance(statement, _Function)}
    if not is_case and (not node.name.startswith("Test") or made & {"__init__", "__new__"}):
        return
    assigned = [statement for statement in bodies if isinstance(statement, (ast.Assign, ast.AnnAssign))]
    if any("__test__" in ast.dump(statement) for statement in assigned):
        return
    own = {statement.name: statement for statement in reversed(bodies) if isinstance(statement, _Function)}
    hidden = {
        target.id
        for statement in bodies if isinstance(statement, ast.Assign)
        for target in statement.targets if isinstance(target, ast.Name)
    }  # fmt: skip
    for name in sorted(own):
        if name.startswith("test") and name not in hidden and _is_plain(own[name]):
            yield f"{node.name}::{name}"
    if not is_case:
        for statement in node.body:
            if isinstance(statement, ast.ClassDef):
                for inner in _of_class(statement, known):
                    yield f"{node.name}::{inner}"


def _lineage(node: ast.ClassDef, known: dict[str, ast.ClassDef]) -> list[ast.ClassDef] | None:
    """The class and its ancestors in the file, itself first; None where one is from elsewhere and unknown."""
    lineage, waiting = [], [node]
    while waiting:
        current = waiting.pop(0)
        if current in lineage:
            continue
        lineage.append(current)
        for base in current.bases:
            name = _last(base)
            if isinstance(base, ast.Name) and name in known:
                waiting.append(known[name])
            elif name not in _TEST_CASES and name != "object":
                return None
        if current.keywords:
            return None
    return lineage


def _meddled_with(tree: ast.Module) -> set[str]:
    """Names that module-level code binds again, deletes or gives attributes."""
    found: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, (_Function, ast.ClassDef)):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(_first(node))
            elif isinstance(node, (_Function, ast.ClassDef)):
                found.add(node.name)
    return found


def _is_plain(node: _Function) -> bool:
    return all(_is_mark(decorator) for decorator in node.decorator_list)


def _is_mark(node: ast.expr) -> bool:
    """Whether a decorator is known to leave a test in place."""
    target = node.func if isinstance(node, ast.Call) else node
    parts = []
    while isinstance(target, ast.Attribute):
        parts.append(target.attr)
        target = target.value
    return bool(_MARKS & {*parts, target.id if isinstance(target, ast.Name) else ""})


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _first(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
