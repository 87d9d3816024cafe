"""Whether tests exchange only plain data with the candidate, judged by the tests alone.

The candidate's files are not looked at: it must not be able to choose where it runs. Whatever is not known to be plain
is taken for an obstacle, which is told by its file, line and nature.
"""

import ast
import builtins
from collections.abc import Callable

from sandbox_service.guest.analysis.library import is_plain, makes_iterator
from sandbox_service.guest.analysis.results import augmented, compare, is_field, may_be_kept, subscript
from sandbox_service.guest.analysis.scope import Scope, candidate_modules, scope_of
from sandbox_service.guest.analysis.sources import Sources
from sandbox_service.guest.analysis.traffic_tables import (
    ALLOWED,
    CASE_NAMES,
    CONSUMERS,
    EXCEPTION_ATTRIBUTES,
    FORBIDDEN_BUILTINS,
    FORBIDDEN_CHECKS,
    FORBIDDEN_MEMBERS,
    FRAMEWORK_FIXTURES,
    ITERATOR_MAKERS,
    MUTATORS,
    OWN_NAMES,
    PLAIN_ATTRIBUTES,
    RAISES,
)
from sandbox_service.guest.dialogue.plain import CLASSES

_LONGEST_REASON = 200
_EXCEPTION_ENDINGS = ("Error", "Exception", "Warning", "Exit")
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Rule = Callable[[Scope, ast.AST], str]


def obstacle(sources: Sources) -> str:
    """Why the tests need the candidate in their own process, as "file:line does this"; "": they do not."""
    candidates = candidate_modules(sources)
    if not candidates:
        return "the tests import nothing of the code under test"
    for source in sources.files:
        if source.tree is None:
            continue
        scope = scope_of(source, source.tree, candidates, sources.names)
        for node in ast.walk(source.tree):
            rule = _RULES.get(type(node))
            if rule and (found := rule(scope, node)):
                return f"{source.path}:{getattr(node, 'lineno', 1)} {found}"[:_LONGEST_REASON]
    return ""


def _imports(scope: Scope, node: ast.AST) -> str:
    assert isinstance(node, ast.Import)  # noqa: S101 - by the table of rules
    for alias in node.names:
        name = alias.name
        if name in scope.modules.values():
            return _conditional(scope, node, name)
        if alias.asname is None and name.partition(".")[0] in scope.modules:
            return _conditional(scope, node, name)
        is_library = name.partition(".")[0] in scope.libraries.values() or name in scope.libraries.values()
        if is_library and name not in ALLOWED:
            return f"imports {name}"
    return ""


def _imports_from(scope: Scope, node: ast.AST) -> str:
    assert isinstance(node, ast.ImportFrom)  # noqa: S101 - by the table of rules
    module = node.module or ""
    for alias in node.names:
        name = alias.asname or alias.name
        if scope.members.get(name) == f"{module}.{alias.name}":
            return f"imports all of {module}" if alias.name == "*" else _conditional(scope, node, module)
        forbidden = module not in ALLOWED or alias.name in FORBIDDEN_MEMBERS.get(module, ())
        if forbidden and scope.library_members.get(name) == (module, alias.name):
            return f"imports {module}.{alias.name}"
    return ""


def _conditional(scope: Scope, node: ast.AST, name: str) -> str:
    above = scope.parents.get(node)
    while above is not None:
        if isinstance(above, (ast.Try, ast.If, ast.While, ast.For)):
            return f"imports {name} under a condition"
        above = scope.parents.get(above)
    return ""


def _asynchronous(_scope: Scope, _node: ast.AST) -> str:
    return "is asynchronous"


def _function(scope: Scope, node: ast.AST) -> str:
    assert isinstance(node, ast.FunctionDef)  # noqa: S101 - by the table of rules
    arguments = node.args
    names = {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    if taken := names & FRAMEWORK_FIXTURES:
        return f"uses the fixture {min(taken)}"
    if any(scope.candidate_name(inner) for decorator in node.decorator_list for inner in ast.walk(decorator)
           if not _is_parametrize(decorator)):  # fmt: skip
        return "decorates with the code under test"
    return ""


def _is_parametrize(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parametrize"


def _class(scope: Scope, node: ast.AST) -> str:
    assert isinstance(node, ast.ClassDef)  # noqa: S101 - by the table of rules
    bases = {base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
             for base in node.bases}  # fmt: skip
    if bases & CASE_NAMES or bases & scope.classes or (node.name.startswith("Test") and bases <= {"object"}):
        return ""
    return f"defines the class {node.name}"


def _lambda(scope: Scope, node: ast.AST) -> str:
    return "" if _is_consumed(scope, node) else "makes a function"


def _generator(scope: Scope, node: ast.AST) -> str:
    return "" if _is_consumed(scope, node) else "makes a generator"


def _is_consumed(scope: Scope, node: ast.AST) -> bool:
    """Whether a value goes into a call that keeps nothing of it, or is looped over."""
    above = scope.parents.get(node)
    if isinstance(above, ast.keyword):
        above = scope.parents.get(above)
    if isinstance(above, (ast.For, ast.comprehension)):
        return above.iter is node
    if isinstance(above, ast.Call) and above.func is not node:
        return _consumes(scope, above.func)
    return isinstance(above, ast.Starred)


def _consumes(scope: Scope, called: ast.expr) -> bool:
    """Whether a function uses up what it is given."""
    if scope.candidate_name(called):
        return False
    if isinstance(called, ast.Name) and scope.is_builtin(called):
        return called.id in CONSUMERS
    module, name = scope.library_of(called)
    if module:
        return name.rpartition(".")[2] in CONSUMERS or name in RAISES
    return isinstance(called, ast.Attribute) and (called.attr in CONSUMERS or called.attr.startswith("assert"))


def _call(scope: Scope, node: ast.AST) -> str:
    assert isinstance(node, ast.Call)  # noqa: S101 - by the table of rules
    asked = scope.candidate_name(node.func)
    if asked:
        return _asks(scope, node, asked)
    if isinstance(node.func, ast.Name):
        return _calls_name(scope, node, node.func)
    if isinstance(node.func, ast.Attribute):
        return _calls_method(scope, node.func)
    return "calls what a call or an index gave"


def _calls_name(scope: Scope, node: ast.Call, called: ast.Name) -> str:
    if scope.is_builtin(called):
        if called.id in FORBIDDEN_BUILTINS:
            return f"calls {called.id}"
        if called.id in ITERATOR_MAKERS and not _is_consumed(scope, node):
            return f"keeps what {called.id} makes"
    if called.id in scope.variables and called.id not in scope.functions | scope.classes:
        return f"calls {called.id}, which it was given"
    return ""


def _calls_method(scope: Scope, called: ast.Attribute) -> str:
    if called.attr in FORBIDDEN_CHECKS:
        return f"uses {called.attr}"
    if called.attr in MUTATORS and (changed := may_be_kept(scope, called.value)):
        return f"calls .{called.attr} of {changed}"
    return ""


def _asks(scope: Scope, node: ast.Call, asked: str) -> str:
    """A call of the candidate: what goes with it."""
    above = scope.parents.get(node)
    if isinstance(above, ast.withitem):
        return f"enters what {asked} returns"
    for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
        if problem := _argument(scope, argument):
            return f"passes {problem} to {asked}"
    return ""


def _argument(scope: Scope, node: ast.expr) -> str:
    """What is not plain about an argument, in a word; "": nothing that can be seen."""
    parts = _parts(node)
    if parts:
        return next(filter(None, (_argument(scope, part) for part in parts)), "")
    name = scope.candidate_name(node).rpartition(".")[2]
    if name and not name.isupper():
        return "the code under test"
    if isinstance(node, ast.Name) and node.id in scope.aliases:
        return "the code under test"
    if isinstance(node, ast.Name) and node.id in OWN_NAMES:
        return f"its own {node.id}"
    if isinstance(node, ast.Lambda) or (isinstance(node, ast.Name) and node.id in scope.functions):
        return "a function"
    return "a generator" if isinstance(node, ast.GeneratorExp) else ""


def _parts(node: ast.expr) -> list[ast.expr]:
    """What a display of values is made of."""
    if isinstance(node, ast.Starred):
        return [node.value]
    if isinstance(node, ast.Dict):
        return [part for part in (*node.keys, *node.values) if part is not None]
    return node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else []


def _attribute(scope: Scope, node: ast.AST) -> str:
    assert isinstance(node, ast.Attribute)  # noqa: S101 - by the table of rules
    module, name = scope.library_of(node)
    if module:
        return _library_attribute(scope, node, module, name)
    asked = scope.candidate_name(node)
    if asked and not scope.module_of(node):
        return f"changes {asked}" if not isinstance(node.ctx, ast.Load) else _bare(scope, node, asked)
    if is_field(scope, node):
        return f"uses .{node.attr} of what is the code under test's"
    base = scope.candidate_name(node.value)
    if base and not base.rpartition(".")[2].isupper() and not scope.module_of(node):
        return f"uses {base}.{node.attr}"
    return "" if asked or _is_known(scope, node) else f"uses .{node.attr}"


def _is_known(scope: Scope, node: ast.Attribute) -> bool:
    """Whether an attribute is one of plain values, of exceptions, or of the tests' own things."""
    if isinstance(node.value, ast.Name) and node.value.id in OWN_NAMES | scope.functions | scope.classes:
        return True
    return node.attr in PLAIN_ATTRIBUTES or node.attr in EXCEPTION_ATTRIBUTES or node.attr.startswith("assert")


def _library_attribute(scope: Scope, node: ast.Attribute, module: str, name: str) -> str:
    if not isinstance(node.ctx, ast.Load):
        return f"changes {module}.{name}"
    if name.partition(".")[0] in FORBIDDEN_MEMBERS.get(module, ()):
        return f"uses {module}.{name}"
    above = scope.parents.get(node)
    if isinstance(above, ast.Attribute):
        return ""
    return _library_value(scope, node, module, name)


def _library_value(scope: Scope, node: ast.expr, module: str, name: str) -> str:
    """A function of a library is fine where it is called or consumed, not where it is handed on."""
    above = scope.parents.get(node)
    if isinstance(above, ast.Call) and above.func is node:
        return f"keeps what {name} makes" if makes_iterator(module, name) and not _is_consumed(scope, above) else ""
    if isinstance(above, (ast.FunctionDef, ast.ClassDef, ast.arg, ast.Subscript, ast.AnnAssign, ast.ExceptHandler)):
        return ""
    if _is_consumed(scope, node) or is_plain(module, name):
        return ""
    return f"hands {module}.{name} on"


def _bare(scope: Scope, node: ast.expr, asked: str) -> str:
    """A name of the candidate by itself: fine for functions and constants, and for classes where they are expected."""
    above = scope.parents.get(node)
    short = asked.rpartition(".")[2]
    is_called = isinstance(above, ast.Call) and above.func is node
    if not short[:1].isupper() or "_" in short or (short.isupper() and not is_called):
        return ""
    if short.endswith(_EXCEPTION_ENDINGS):
        return f"makes a {asked}" if isinstance(above, ast.Call) and above.func is node else ""
    while isinstance(above, ast.Tuple):
        node, above = above, scope.parents.get(above)
    if isinstance(above, ast.ExceptHandler) or (isinstance(above, ast.Call) and _expects(scope, above, node)):
        return ""
    if isinstance(above, ast.Call) and above.func is node and _is_compared(scope, above):
        return ""
    return f"makes or examines a {asked}"


def _is_compared(scope: Scope, call: ast.Call) -> bool:
    """Whether what a call gives is compared with a value that is written out: it is none of a class then."""
    above = scope.parents.get(call)
    if not isinstance(above, ast.Compare) or len(above.comparators) != 1:
        return False
    other = above.comparators[0] if above.left is call else above.left
    return isinstance(other, (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.UnaryOp))


def _expects(scope: Scope, call: ast.Call, node: ast.AST) -> bool:
    """Whether a call expects the exception that is handed to it."""
    if call.func is node:
        return False
    if scope.library_of(call.func)[1] in RAISES:
        return True
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("assertRaises", "assertRaisesRegex")


def _name(scope: Scope, node: ast.AST) -> str:
    assert isinstance(node, ast.Name)  # noqa: S101 - by the table of rules
    if not isinstance(node.ctx, ast.Load):
        return f"binds {node.id} anew" if node.id in scope.members else ""
    above = scope.parents.get(node)
    if node.id in scope.members:
        return _bare(scope, node, scope.members[node.id])
    if isinstance(above, ast.Attribute):
        return ""
    if node.id in scope.library_members:
        return _library_value(scope, node, *scope.library_members[node.id])
    called = isinstance(above, ast.Call) and above.func is node
    return "" if called else _handed_on(scope, node, above)


def _handed_on(scope: Scope, node: ast.Name, above: ast.AST | None) -> str:
    """A module or a function by its name, where it is neither used nor called."""
    if node.id in scope.modules:
        return f"hands the module {node.id} on"
    if node.id in scope.functions and node.id not in scope.variables:
        is_fine = _is_consumed(scope, node) or isinstance(above, ast.FunctionDef)
        return "" if is_fine else f"hands the function {node.id} on"
    return _builtin_value(scope, node, above) if scope.is_builtin(node) else ""


def _builtin_value(scope: Scope, node: ast.Name, above: ast.AST | None) -> str:
    value = getattr(builtins, node.id)
    if not callable(value) or node.id in CLASSES or (isinstance(value, type) and issubclass(value, BaseException)):
        return ""
    if isinstance(above, (ast.Attribute, ast.FunctionDef, ast.ClassDef, ast.Subscript, ast.Expr)):
        return ""
    if _is_consumed(scope, node):
        return ""
    return f"hands {node.id} on"


def _context(scope: Scope, node: ast.AST) -> str:
    assert isinstance(node, ast.With)  # noqa: S101 - by the table of rules
    for item in node.items:
        called = item.context_expr.func if isinstance(item.context_expr, ast.Call) else item.context_expr
        _module, name = scope.library_of(called)
        if name in RAISES:
            continue
        if isinstance(called, ast.Attribute) and called.attr in (
            "assertRaises",
            "assertRaisesRegex",
            "subTest",
            "test",
        ):
            continue
        return "enters a context"
    return ""


_RULES: dict[type[ast.AST], _Rule] = {
    ast.Import: _imports,
    ast.ImportFrom: _imports_from,
    ast.AsyncFunctionDef: _asynchronous,
    ast.FunctionDef: _function,
    ast.ClassDef: _class,
    ast.Lambda: _lambda,
    ast.GeneratorExp: _generator,
    ast.Call: _call,
    ast.Attribute: _attribute,
    ast.Name: _name,
    ast.Subscript: subscript,
    ast.AugAssign: augmented,
    ast.Compare: compare,
    ast.With: _context,
}
