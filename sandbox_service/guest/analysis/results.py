"""What tests do with what the candidate may have as well: results, exceptions, arguments that it has been given.

Rules of `traffic`. In another process there are copies of these, and objects with fields are not there at all.
"""

import ast

from sandbox_service.guest.analysis.scope import Lines, Scope, name_of
from sandbox_service.guest.analysis.traffic_tables import CLOCK_ATTRIBUTES, OWN_OF_EXCEPTIONS

_RESULT = "what is the code under test's"
_HANDED = "what the code under test was given before"


def is_field(scope: Scope, node: ast.Attribute) -> bool:
    """Whether an attribute is one that an object or an exception of the candidate's may have given itself."""
    if isinstance(node.value, ast.Name) and node.value.id in scope.caught:
        return node.attr not in OWN_OF_EXCEPTIONS
    if isinstance(node.value, ast.Attribute) and node.value.attr in ("value", "exception"):
        return node.attr not in OWN_OF_EXCEPTIONS
    above = scope.parents.get(node)
    is_called = isinstance(above, ast.Call) and above.func is node
    return not is_called and node.attr not in CLOCK_ATTRIBUTES and _holds_result(scope, node.value)


def subscript(scope: Scope, node: ast.AST) -> str:
    """Rule: setting or deleting an item of what the candidate may have."""
    assert isinstance(node, ast.Subscript)  # noqa: S101 - by the table of rules
    if isinstance(node.ctx, ast.Load):
        return ""
    if changed := scope.candidate_name(node.value):
        return f"changes {changed}"
    changed = may_be_kept(scope, node.value)
    return f"changes {changed}" if changed else ""


def augmented(scope: Scope, node: ast.AST) -> str:
    """Rule: adding to a container in place that the candidate may have."""
    assert isinstance(node, ast.AugAssign)  # noqa: S101 - by the table of rules
    adds_items = isinstance(node.value, (ast.List, ast.ListComp, ast.Dict, ast.Set))
    changed = may_be_kept(scope, node.target) if adds_items else ""
    return f"changes {changed}" if changed else ""


def compare(scope: Scope, node: ast.AST) -> str:
    """Rule: two results may be one object there, and are never one here."""
    assert isinstance(node, ast.Compare)  # noqa: S101 - by the table of rules
    asks = any(isinstance(operator, (ast.Is, ast.IsNot)) for operator in node.ops)
    sides = [node.left, *node.comparators]
    return "compares results by identity" if asks and all(_holds_result(scope, side) for side in sides) else ""


def may_be_kept(scope: Scope, node: ast.AST) -> str:
    """What the candidate may have of a container that a test changes, in words; "": nothing."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if _holds_result(scope, node) or scope.candidate_name(node):
        return _RESULT
    return _HANDED if isinstance(node, ast.Name) and _was_handed(scope, node) else ""


def _holds_result(scope: Scope, node: ast.AST) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    return bool(scope.candidate_call(node)) or name_of(node) in scope.results


def _was_handed(scope: Scope, name: ast.Name) -> bool:
    """Whether an earlier line of the same function passes this variable to the candidate, and it is not bound since."""
    function = _function_of(scope, name)
    if function not in scope.handed:
        scope.handed[function] = _lines_of(scope, function)
    handed, bound = scope.handed[function]
    last = max((line for line in bound.get(name.id, ()) if line < name.lineno), default=0)
    return any(last <= line < name.lineno for line in handed.get(name.id, ()))


def _function_of(scope: Scope, node: ast.AST) -> ast.AST:
    above = scope.parents.get(node)
    while above is not None and not isinstance(above, (ast.FunctionDef, ast.Module)):
        above = scope.parents.get(above)
    return above or scope.tree


def _lines_of(scope: Scope, function: ast.AST) -> tuple[Lines, Lines]:
    """Where a function passes each variable to the candidate, and where it binds it."""
    handed: Lines = {}
    bound: Lines = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.setdefault(node.id, []).append(node.lineno)
        elif isinstance(node, ast.Call) and scope.candidate_call(node):
            for value in (*node.args, *(keyword.value for keyword in node.keywords)):
                if isinstance(value, ast.Name):
                    handed.setdefault(value.id, []).append(node.lineno)
    return handed, bound
