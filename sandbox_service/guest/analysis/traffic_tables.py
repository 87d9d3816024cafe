"""What `traffic` knows of the standard library, pytest and unittest: names that keep tests plain, and the others."""

import datetime as dt
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction

ALLOWED = frozenset(
    {
        "__future__", "pytest", "unittest", "math", "cmath", "random", "string", "re", "copy", "json", "collections",
        "collections.abc", "itertools", "functools", "operator", "datetime", "decimal", "fractions", "typing",
        "statistics", "numbers", "textwrap", "bisect", "heapq", "calendar", "base64", "binascii", "hashlib", "sys",
        "time", "pprint", "secrets", "unicodedata",
    }
)  # fmt: skip
"""Modules that tests may use beside a candidate that is elsewhere."""
FORBIDDEN_MEMBERS: dict[str, frozenset[str]] = {
    "pytest": frozenset({"warns", "deprecated_call", "MonkeyPatch", "exit", "main", "Pytester", "importorskip"}),
    "unittest": frozenset({"mock", "IsolatedAsyncioTestCase", "load_tests", "addModuleCleanup"}),
    "random": frozenset({"seed", "setstate", "getstate"}),
    "decimal": frozenset({"getcontext", "setcontext", "localcontext", "Context", "DefaultContext"}),
    "sys": frozenset(
        {
            "modules", "path", "stdin", "stdout", "stderr", "argv", "settrace", "setprofile", "_getframe", "exit",
            "setrecursionlimit", "getrefcount", "meta_path", "path_hooks", "exc_info", "excepthook",
            "displayhook", "set_int_max_str_digits", "setswitchinterval", "gettrace", "intern",
        }
    ),
    "collections": frozenset({"namedtuple", "ChainMap", "UserDict", "UserList", "UserString"}),
    "typing": frozenset({"NamedTuple", "TypedDict"}),
    "functools": frozenset({"partial", "partialmethod", "wraps", "singledispatch"}),
    "time": frozenset({"tzset", "sleep"}),
    "statistics": frozenset({"NormalDist"}),
    "datetime": frozenset({"tzinfo"}),
}  # fmt: skip
"""What changes the process that it is called in, looks into it, or makes what is not plain."""
FORBIDDEN_CHECKS = frozenset(
    {"assertWarns", "assertWarnsRegex", "assertLogs", "assertNoLogs", "filterwarnings", "usefixtures"}
)
FORBIDDEN_BUILTINS = frozenset(
    {
        "eval", "exec", "compile", "open", "input", "__import__", "globals", "locals", "vars", "setattr", "delattr",
        "getattr", "breakpoint", "object", "memoryview", "slice", "property", "id", "dir", "help", "exit", "quit",
    }
)  # fmt: skip
FRAMEWORK_FIXTURES = frozenset(
    {
        "capsys", "capsysbinary", "capfd", "capfdbinary", "caplog", "capteesys", "monkeypatch", "tmp_path",
        "tmp_path_factory", "tmpdir", "tmpdir_factory", "recwarn", "pytester", "testdir", "cache", "mocker", "mock",
    }
)  # fmt: skip
ITERATOR_MAKERS = frozenset({"iter", "map", "filter", "zip", "enumerate", "reversed"})
CONSUMERS = frozenset(
    {
        "all", "any", "sum", "list", "tuple", "set", "frozenset", "dict", "sorted", "min", "max", "len", "next", "map",
        "filter", "zip", "enumerate", "reversed", "sort", "join", "update", "extend", "reduce", "isinstance",
        "issubclass", "callable", "type", "repr", "str", "print", "bytes", "bytearray", "Counter", "OrderedDict",
        "deque", "defaultdict", "mean", "median", "fsum", "prod", "chain", "from_iterable", "islice", "parametrize",
        "fixture", "skipif", "skipIf", "skipUnless", "mark",
    }
)  # fmt: skip
"""Calls that use up what they are given, or make plain values of it."""
RAISES = frozenset({"raises", "approx"})
MUTATORS = frozenset(
    {
        "append", "appendleft", "add", "pop", "popleft", "popitem", "insert", "update", "remove", "discard", "clear",
        "extend", "setdefault", "send", "throw", "close", "rotate", "__next__", "subtract",
    }
)  # fmt: skip
"""Methods that containers share with objects of all kinds: called on a result they ask for the object itself."""
OWN_NAMES = frozenset({"self", "cls", "request", "subtests"})
OWN_OF_EXCEPTIONS = frozenset({"args", "__class__", "__doc__"})
"""What every exception has, whatever its class adds."""
CLOCK_ATTRIBUTES = frozenset(
    {"year", "month", "day", "hour", "minute", "second", "microsecond", "days", "seconds", "microseconds", "tzinfo"}
)
"""Fields of plain values that functions return often, and that objects of other kinds seldom have."""
CASE_NAMES = frozenset({"TestCase"})
_PLAIN = (
    int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, Counter, OrderedDict,
    defaultdict, deque, Decimal, Fraction, dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone,
)  # fmt: skip
PLAIN_ATTRIBUTES = frozenset(name for kind in _PLAIN for name in dir(kind) if not name.startswith("_")) | {"__name__"}
EXCEPTION_ATTRIBUTES = frozenset(
    {"value", "exception", "args", "match", "type", "typename", "group", "groups", "search", "findall", "sub", "split",
     "param", "__doc__", "hexdigest", "digest", "randint", "random", "choice", "choices", "sample", "shuffle",
     "uniform", "randrange", "gauss", "getrandbits"}
)  # fmt: skip
"""Of what `raises`, regular expressions, hashes and random generators give."""
