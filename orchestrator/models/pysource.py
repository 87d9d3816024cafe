"""What can be known of Python source without running it: what it defines, what it needs, and what kind of text it is.

Nothing here raises on any text, and nothing is imported or executed.
"""

import ast
import builtins
import re
import symtable
import textwrap
import warnings
from dataclasses import dataclass

_PROMPT = re.compile(r"^[ \t]*>>> ", re.MULTILINE)
_BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__", "__builtins__", "__annotations__"}
_TEST_NAME = re.compile(r"test_|Test")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NOT_SOURCE = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True, slots=True)
class Source:
    """Facts about a piece of source.

    Attributes:
        text: the source, ending in a newline.
        error: why it does not parse, such as "SyntaxError: invalid syntax (line 3)"; empty where it parses.
        names: everything bound at its top level, imports included.
        imported: those of `names` that only an import binds.
        definitions: functions and classes defined at its top level.
        needs: global names that it reads and neither binds nor finds among the builtins.
        tests: whether it holds nothing but tests.
        statements: how many statements at its top level do something.
        wordy: whether a statement at its top level is a bare expression without effect, as words of prose are.
    """

    text: str
    error: str = ""
    names: frozenset[str] = frozenset()
    imported: frozenset[str] = frozenset()
    definitions: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    tests: bool = False
    statements: int = 0
    wordy: bool = False

    @property
    def transcript(self) -> bool:
        """Whether it is an interpreter session, or the start of one."""
        return bool(self.error) and bool(_PROMPT.match(self.text.lstrip("\n")))

    def textually_defines(self, name: str = "") -> bool:
        """Whether a line looks like the definition of `name` (of anything); for source that does not parse."""
        what = rf"{re.escape(name)}\b" if name else r"\w"
        return bool(re.search(rf"^[ \t]*(async[ \t]+def|def|class)[ \t]+{what}", self.text, re.MULTILINE))


def read(text: str) -> Source:
    """The facts about `text`; source that is indented as a whole is outdented first."""
    text = text.rstrip() + "\n"
    tree, error = _parse(text)
    if tree is None and (outdented := textwrap.dedent(text)) != text:
        again, _ = _parse(outdented)
        if again is not None:
            text, tree, error = outdented, again, ""
    if tree is None:
        return Source(text, error)
    imported, own = _bound(tree.body)
    names = frozenset(imported | own)
    definitions = frozenset(node.name for node in _flat(tree.body) if isinstance(node, _DEFINITIONS))
    return Source(
        text,
        names=names,
        imported=frozenset(imported),
        definitions=definitions,
        needs=_globals_read(text) - names - _BUILTINS,
        tests=_only_tests(tree.body),
        statements=sum(not _is_idle(node) for node in tree.body),
        wordy=any(_is_word(node) for node in tree.body),
    )


def kind_of(text: str) -> str | None:
    """What a piece of top-level text is: "code", "neutral" (comments, a docstring), "prose", or None: no Python."""
    tree, _ = _parse(text)
    if tree is None:
        return None
    if any(not _is_idle(node) for node in tree.body):
        return "code"
    return "prose" if any(_is_word(node) or isinstance(node, ast.AnnAssign) for node in tree.body) else "neutral"


def imports(text: str) -> frozenset[str]:
    """Dotted names of the modules that `text` imports, anywhere in it."""
    tree, _ = _parse(text)
    found: set[str] = set()
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names}
    return frozenset(found)


def is_unterminated_text(text: str) -> bool:
    """Whether `text` fails to parse because a triple-quoted string in it has no end."""
    tree, error = _parse(text)
    return tree is None and "unterminated triple-quoted" in error


def _parse(text: str) -> tuple[ast.Module | None, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a model's string is the program's affair
            return ast.parse(text), ""
    except _NOT_SOURCE as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        return None, f"{type(error).__name__}: {getattr(error, 'msg', error)}{line}"


def _flat(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that run at the top level, those inside of `if`, `try`, `with` and loops included."""
    found: list[ast.stmt] = []
    pending = list(reversed(body))
    while pending:
        node = pending.pop()
        found.append(node)
        if not isinstance(node, _DEFINITIONS):
            inner = [*getattr(node, "body", ()), *getattr(node, "orelse", ()), *getattr(node, "finalbody", ())]
            inner += [statement for handler in getattr(node, "handlers", ()) for statement in handler.body]
            pending.extend(reversed([one for one in inner if isinstance(one, ast.stmt)]))
    return found


def _bound(body: list[ast.stmt]) -> tuple[set[str], set[str]]:
    """Names bound by an import, and names bound by anything else."""
    imported: set[str] = set()
    names: set[str] = set()
    for node in _flat(body):
        if isinstance(node, _DEFINITIONS):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imported |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            names |= _stored(node)
    return imported - names, names


def _stored(statement: ast.stmt) -> set[str]:
    """Names that a statement assigns, without looking into functions, classes or the statements below it."""
    names: set[str] = set()
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        inside = isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.Lambda)
        if not inside:
            pending.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt))
    return names


def _globals_read(text: str) -> frozenset[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            top = symtable.symtable(text, "<reply>", "exec")
    except _NOT_SOURCE:  # such as a `return` outside of any function: parsed, yet not compilable
        return frozenset()
    names: set[str] = set()
    pending = [top]
    while pending:
        table = pending.pop()
        pending.extend(table.get_children())
        at_top = table.get_type() == "module"
        names |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (at_top or symbol.is_global())
        }
    return frozenset(names)


def _only_tests(body: list[ast.stmt]) -> bool:
    defined = [node.name for node in body if isinstance(node, _DEFINITIONS)]
    if defined:
        return all(_TEST_NAME.match(name) for name in defined)
    asserts = any(isinstance(node, ast.Assert) for node in body)
    plain = (ast.Assert, ast.Expr, ast.Import, ast.ImportFrom, ast.Assign)
    return asserts and all(isinstance(node, plain) for node in body)


def _is_word(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and _is_idle(node) and not isinstance(node.value, ast.Constant)


def _is_idle(node: ast.stmt) -> bool:
    """Whether a statement does nothing by itself: a bare word or value, or `Note: words`; prose often parses so."""
    if isinstance(node, ast.AnnAssign):
        return node.value is None
    return isinstance(node, ast.Expr) and not isinstance(
        node.value, ast.Call | ast.Await | ast.Yield | ast.ListComp | ast.DictComp | ast.SetComp
    )
