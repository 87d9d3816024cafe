"""What trusted tests say, read with `ast`: which names the code must define, and a failing test's own source."""

import ast
import textwrap
from collections.abc import Iterable
from pathlib import PurePosixPath

from orchestrator.workflows.sandbox import File


def required_names(tests: Iterable[File], solution_path: str) -> tuple[str, ...]:
    """Names that the tests take from the solution's module, in order of first use; none where no test imports it."""
    module = ".".join(PurePosixPath(solution_path).with_suffix("").parts)
    names: dict[str, None] = {}
    for file in tests:
        tree = parse(file)
        if tree is not None:
            names.update(dict.fromkeys(_names_from(tree, module)))
    return tuple(names)


def parse(file: File) -> ast.Module | None:
    """The file's syntax tree; None where it is no Python."""
    try:
        return ast.parse(file.content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _names_from(tree: ast.Module, module: str) -> Iterable[str]:
    aliases = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == module and not node.level:
            yield from (alias.name for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Import):
            aliases |= {alias.asname or alias.name for alias in node.names if alias.name == module}
    used = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and not node.attr.startswith("__"))
    most = module.count(".") + 1
    for node in sorted(used, key=lambda one: (one.lineno, one.col_offset)):
        if _dotted(node.value, most) in aliases:
            yield node.attr


def _dotted(node: ast.expr, most: int) -> str:
    """`a.b.c` as it is written; empty where it is anything else, or has more than `most` names."""
    names: list[str] = []
    while isinstance(node, ast.Attribute) and len(names) < most:
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def test_source(tests: Iterable[File], node_id: str) -> str:
    """Source of the test with this node id, decorators included; empty where it cannot be found."""
    path, *names = node_id.split("[", 1)[0].split("::")
    file = next((file for file in tests if file.path == path or file.path.endswith("/" + path)), None)
    tree = parse(file) if file is not None else None
    if file is None or tree is None or not names:
        return ""
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef = tree
    for name in names:
        found = next((child for child in node.body if _is_named(child, name)), None)
        if not isinstance(found, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            return ""
        node = found
    if isinstance(node, ast.Module):
        return ""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = file.content.decode("utf-8", "replace").splitlines()
    return textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno]))


def _is_named(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
