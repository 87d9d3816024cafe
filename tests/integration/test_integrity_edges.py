"""Verdicts at their edges: passes that no right answer earned, and honest tests that a careless check would accuse."""

# ruff: noqa: E501 - many lines are whole programs

import pytest
from codemend.sandbox.v1.verdicts_pb2 import (
    TEST_ISOLATION_SEPARATE,
    TEST_ISOLATION_SHARED,
)
from support.jobs import client, outcome, outcomes
from support.sandbox import sandbox_process


@pytest.fixture(scope="module")
async def sandbox():
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="2") as service,
        client(service.address, service.process.pid) as made,
    ):
        yield made


EQUALS_ALL = (
    "class Equal:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef total(xs): return Equal()\n"
)
CHOOSES = {
    "a function": ("def LIMIT(): pass\n", "LIMIT"),
    "an exception class": ("LIMIT = ValueError\n", "LIMIT"),
    "one of its own": ("class LIMIT(Exception): pass\n", "LIMIT"),
    "a list of it": ("def LIMIT(): pass\n", "[LIMIT]"),
}


@pytest.mark.parametrize("name", CHOOSES)
async def test_what_a_name_of_the_code_stands_for_does_not_move_the_code_beside_its_tests(sandbox, name):
    code, argument = CHOOSES[name]
    tests = f"from solution import total, LIMIT\ndef test_it(): assert total({argument}) == 6\n"
    reply = await sandbox.tests(tests, EQUALS_ALL + code)
    assert (outcome(reply), reply.report.integrity.isolation) == ("ERROR", TEST_ISOLATION_SEPARATE), reply.report
    assert "need isolation SHARED" in reply.report.reason


@pytest.mark.parametrize("expected", ["RuntimeError", "Exception"])
async def test_code_that_ends_its_process_where_an_exception_is_expected_has_not_passed(sandbox, expected):
    tests = f"import pytest\nfrom solution import f\ndef test_it():\n    with pytest.raises({expected}): f()\n"
    reply = await sandbox.tests(tests, "import os\ndef f(): os._exit(0)\n")
    assert outcome(reply) == "FAILED", reply.report
    assert "ended its process" in reply.report.reason


@pytest.mark.parametrize("caught", ["AssertionError", "Exception", "BaseException"])
async def test_an_exception_of_the_code_s_own_cannot_be_the_one_of_failed_assertions(sandbox, caught):
    tests = "from solution import f, MyError\ndef test_it():\n    try:\n        f()\n        assert False\n    except MyError:\n        pass\n"
    reply = await sandbox.tests(tests, f"MyError = {caught}\ndef f(): pass\n")
    assert outcome(reply) == "ERROR", reply.report
    assert f"MyError is {caught} itself" in reply.report.collection_errors[0].failure.message


@pytest.mark.parametrize("where", [TEST_ISOLATION_SEPARATE, TEST_ISOLATION_SHARED])
async def test_a_test_for_which_the_code_gives_no_parameters_has_not_passed(sandbox, where):
    tests = "import pytest\nimport solution\n@pytest.mark.parametrize('n', solution.NAMES)\ndef test_a(n): assert solution.f(n)\ndef test_b(): assert solution.f(1)\n"
    reply = await sandbox.tests(tests, "NAMES = []\ndef f(n): return n\n", isolation=where)
    assert outcome(reply) == "FAILED", reply.report


async def test_a_selection_that_is_not_there_lets_no_conftest_of_the_code_in(sandbox):
    planted = "import os\nos.write(2, b'planted')\n"
    for configuration in ({}, {"conftest.py": ""}):
        reply = await sandbox.tests(
            {"test_a.py": "from solution import f\ndef test_it(): assert f() == 1\n", **configuration},
            {"solution.py": "def f(): return 1\n", "conftest.py": planted, "pytest.ini": "[pytest]\n"},
            select=["test_b.py::test_it"],
        )
        assert (outcome(reply), "not there" in reply.report.reason) == ("ERROR", True), reply.report
        assert b"planted" not in reply.execution.stderr.head


ASKS = {
    "sets an item": "with pytest.raises(TypeError): things()[0] = 1",
    "asks for its length": "with pytest.raises(TypeError): len(things())",
    "compares": "with pytest.raises(TypeError): things() < things()",
    "goes through it": "with pytest.raises(TypeError): list(things())",
    "looks for an item": "with pytest.raises(TypeError): 1 in things()",
    "asks for an attribute": "with pytest.raises(AttributeError): things().get()",
}


@pytest.mark.parametrize("name", ASKS)
async def test_what_an_object_in_another_cell_cannot_do_proves_nothing(sandbox, name):
    code = "class Things:\n    get = __len__ = lambda self: 1\n    __lt__ = lambda self, other: True\n    def __setitem__(self, key, value): pass\n    def __getitem__(self, key): return range(3)[key]\ndef things(): return Things()\n"
    tests = f"import pytest\nfrom solution import things\ndef test_it():\n    {ASKS[name]}\n"
    reply = await sandbox.tests(tests, code)
    if reply.report.integrity.isolation == TEST_ISOLATION_SHARED:
        assert outcome(reply) == "FAILED", reply.report
    else:
        assert (outcome(reply), "need isolation SHARED" in reply.report.reason) == ("ERROR", True), reply.report


async def test_a_stand_in_is_of_no_kind_that_the_object_itself_is_not(sandbox):
    tests = "from collections.abc import Iterable\nfrom solution import thing\ndef test_it(): assert isinstance(thing(), Iterable)\n"
    reply = await sandbox.tests(tests, "class Thing: pass\ndef thing(): return Thing()\n")
    assert outcome(reply) == "FAILED", reply.report


KEEPS = "KEPT = [1]\ndef put(x):\n    global KEPT\n    KEPT = x\ndef get(): return KEPT\n"
COPIES = {
    "an argument that is changed afterwards": "x = [1]\n    put(x)\n    x.append(2)",
    "a result that is changed": "x = get()\n    x[0] = 2",
    "a result that is added to": "x = get()\n    x += [2]",
}


@pytest.mark.parametrize("name", COPIES)
async def test_code_that_should_keep_a_copy_and_does_not_is_found_out(sandbox, name):
    tests = f"from solution import get, put\ndef test_it():\n    {COPIES[name]}\n    assert get() == [1]\n"
    assert outcome(await sandbox.tests(tests, KEEPS)) == "FAILED"
    honest = KEEPS.replace("KEPT = x", "KEPT = list(x)").replace("return KEPT", "return list(KEPT)")
    assert outcome(await sandbox.tests(tests, honest)) == "PASSED"


HONEST = {
    "a decorator": (
        "from solution import memoize\ncalls = []\n@memoize\ndef fib(n):\n    calls.append(n)\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\ndef test_it(): assert (fib(10), len(calls)) == (55, 11)\n",
        "def memoize(f):\n    known = {}\n    def inner(n):\n        if n not in known: known[n] = f(n)\n        return known[n]\n    return inner\n",
    ),
    "another name for a function": (
        "import os\nimport solution\nadd = solution.add\ndef test_it(): assert add(1, 2) == 3\n",
        "def add(a, b): return a + b\n",
    ),
    "a function that it made": (
        "from solution import make\nadd = make(2)\ndef test_it(): assert add(3) == 5\n",
        "def make(n): return lambda x: x + n\n",
    ),
    "functions handed back by other names": (
        "import solution\nFUNCTIONS = [solution.double, solution.square]\ndef test_it():\n    for f in FUNCTIONS: assert solution.apply(f, 2) == 4\n",
        "def double(n): return n * 2\ndef square(n): return n * n\ndef apply(f, n): return f(n)\n",
    ),
    "a class in capitals": (
        "from solution import LRU\ndef test_it(): assert (LRU(2).get(1), len(LRU(2))) == (None, 2)\n",
        "class LRU(list):\n    def __init__(self, n): self.n = n\n    def get(self, key): return None\n    def __len__(self): return self.n\n",
    ),
    "an object with common fields": (
        "from solution import stats\ndef test_it():\n    s = stats([1, 2])\n    assert (s.min, s.max, s.count) == (1, 2, 2)\n",
        "from types import SimpleNamespace\ndef stats(xs): return SimpleNamespace(min=min(xs), max=max(xs), count=len(xs))\n",
    ),
    "a fixture that gives one": (
        "import pytest\nfrom solution import stats\n@pytest.fixture\ndef s(): return stats([1, 2])\ndef test_it(s): assert s.count == 2\n",
        "from types import SimpleNamespace\ndef stats(xs): return SimpleNamespace(count=len(xs))\n",
    ),
    "an exception with fields": (
        "import pytest\nfrom solution import f, TooBig\ndef test_it():\n    with pytest.raises(TooBig) as e: f(5)\n    assert e.value.value == 5\n    try: f(6)\n    except TooBig as e: assert e.index == 6\n",
        "class TooBig(Exception):\n    def __init__(self, n): self.value = self.index = n\ndef f(n): raise TooBig(n)\n",
    ),
    "one and the same result": (
        "from solution import get\ndef test_it(): assert get() is get()\n",
        "KEPT = []\ndef get(): return KEPT\n",
    ),
    "a base class that says it is no test": (
        "import unittest\nfrom solution import f\nclass Base(unittest.TestCase):\n    __test__: bool = False\n    def test_it(self): self.assertEqual(f(), 1)\nclass TestIt(Base):\n    __test__ = True\n",
        "def f(): return 1\n",
    ),
}


@pytest.mark.parametrize("name", HONEST)
async def test_honest_tests_of_all_kinds_pass(sandbox, name):
    tests, code = HONEST[name]
    reply = await sandbox.tests(tests, code)
    assert outcome(reply) == "PASSED", reply.report


async def test_a_helper_of_the_tests_that_the_code_replaces_is_tampering(sandbox):
    tests = "import os\nfrom solution import total\ndef close(a, b): return abs(a - b) < 1e-9\ndef test_a(): assert total([1]) == 0\ndef test_b(): assert close(total([1]), 1)\n"
    code = "import sys\ndef total(xs):\n    sys._getframe(1).f_globals['close'] = lambda a, b: True\n    return 0\n"
    reply = await sandbox.tests(tests, code)
    assert outcome(reply) == "TAMPERED", reply.report
    assert "the name close" in reply.report.reason
    assert set(outcomes(reply)) == {"test_a", "test_b"}
