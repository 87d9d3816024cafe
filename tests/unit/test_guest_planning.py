"""Which tests must report and whether they can run apart from the code: read from the trusted files alone."""

# ruff: noqa: E501 - many lines are whole programs

from textwrap import dedent

import pytest

from sandbox_service.guest.analysis.expected import expected
from sandbox_service.guest.analysis.scope import candidate_modules, hidden_libraries
from sandbox_service.guest.analysis.sources import read
from sandbox_service.guest.analysis.traffic import obstacle


@pytest.fixture
def tests_of(tmp_path):
    """Lays files out as the tests of a job; a text stands for test_a.py."""

    def lay(files):
        for path, text in ({"test_a.py": files} if isinstance(files, str) else files).items():
            place = tmp_path / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(dedent(text))
        return read(str(tmp_path))

    return lay


EXPECTED = {
    "functions": ("def test_x(): pass\nasync def test_y(): pass\ndef testz(): pass\ndef helper(): pass", ["test_x", "test_y", "testz"]),
    "marks": (
        "import pytest, unittest.mock as mock\n@pytest.mark.parametrize('n', [1])\ndef test_x(n): pass\n@pytest.mark.skip\ndef test_y(): pass\n@mock.patch('a.b')\ndef test_z(m): pass",
        ["test_x", "test_y", "test_z"],
    ),
    "a fixture is no test": ("import pytest\n@pytest.fixture\ndef test_data(): pass\ndef test_x(test_data): pass", ["test_x"]),
    "an unknown decorator may give anything": ("@twice\ndef test_x(): pass\ndef test_y(): pass", ["test_y"]),
    "a condition": ("if x:\n    def test_x(): pass\nelse:\n    def test_y(): pass\ndef test_z(): pass", ["test_z"]),
    "bound again": ("def test_x(): pass\ntest_x = None\ndef test_y(): pass", ["test_y"]),
    "deleted": ("def test_x(): pass\ndel test_x\ndef test_y(): pass", ["test_y"]),
    "told to be none": ("def test_x(): pass\ntest_x.__test__ = False\ndef test_y(): pass", ["test_y"]),
    "a file that says no": ("__test__ = False\ndef test_x(): pass", []),
    "defined twice": ("def test_x(): pass\ndef test_x(): pass", ["test_x"]),
    "a class": ("class TestA:\n    def test_x(self): pass\n    def helper(self): pass", ["TestA::test_x"]),
    "a class of another name": ("class Helper:\n    def test_x(self): pass", []),
    "a class with a constructor": ("class TestA:\n    def __init__(self): pass\n    def test_x(self): pass", []),
    "a class that says no, with a type": ("class TestA:\n    __test__: bool = False\n    def test_x(self): pass", []),
    "a class that says no": ("class TestA:\n    __test__ = False\n    def test_x(self): pass", []),
    "a class in a class": ("class TestA:\n    class TestB:\n        def test_x(self): pass", ["TestA::TestB::test_x"]),
    "inherited": (
        "class TestA:\n    def test_x(self): pass\nclass TestB(TestA):\n    def test_y(self): pass",
        ["TestA::test_x", "TestB::test_x", "TestB::test_y"],
    ),
    "a test case": (
        "import unittest\nclass Sums(unittest.TestCase):\n    def setUp(self): pass\n    def test_x(self): pass",
        ["Sums::test_x"],
    ),
    "a test case's child": (
        "from unittest import TestCase\nclass A(TestCase):\n    def test_x(self): pass\nclass B(A): pass",
        ["A::test_x", "B::test_x"],
    ),
    "a base from elsewhere": ("from helper import Base\nclass TestA(Base):\n    def test_x(self): pass", []),
    "a method bound again": ("class TestA:\n    def test_x(self): pass\n    test_x = None", []),
    "what cannot be parsed": ("def test_x(:", []),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_the_tests_that_a_file_must_report(tests_of, name):
    code, ids = EXPECTED[name]
    found, is_open = expected(tests_of(code), [])
    assert sorted(found) == [f"test_a.py::{node_id}" for node_id in sorted(ids)]
    assert is_open == ""


TREE = {
    "test_a.py": "def test_x(): pass\nclass TestA:\n    def test_y(self): pass",
    "sub/b_test.py": "def test_z(): pass",
    "helper.py": "def test_no(): pass",
    "build/test_c.py": "def test_no(): pass",
    ".hidden/test_d.py": "def test_no(): pass",
}


def test_files_and_folders_are_those_that_pytest_looks_into(tests_of):
    found, _ = expected(tests_of(TREE), [])
    assert sorted(found) == ["sub/b_test.py::test_z", "test_a.py::TestA::test_y", "test_a.py::test_x"]


@pytest.mark.parametrize(
    ("select", "ids"),
    [
        (["test_a.py"], ["test_a.py::TestA::test_y", "test_a.py::test_x"]),
        (["test_a.py::TestA"], ["test_a.py::TestA::test_y"]),
        (["test_a.py::test_x"], ["test_a.py::test_x"]),
        (["sub"], ["sub/b_test.py::test_z"]),
        (["test_a.py::test_made_by_code[1]"], ["test_a.py::test_made_by_code[1]"]),
        (["test_a.py::test_x", "test_a.py"], ["test_a.py::TestA::test_y", "test_a.py::test_x"]),
    ],
)
def test_of_what_is_selected_only_that_must_report(tests_of, select, ids):
    found, _ = expected(tests_of(TREE), select)
    assert sorted(found) == ids


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("pytest.ini", "[pytest]\npython_functions = check_*\n"),
        ("conftest.py", "def pytest_collection_modifyitems(items): items.reverse()\n"),
        ("conftest.py", "collect_ignore = ['test_a.py']\n"),
    ],
)
def test_where_the_tests_choose_themselves_nothing_is_expected_and_that_is_said(tests_of, path, text):
    found, is_open = expected(tests_of({**TREE, path: text}), [])
    assert found == []
    assert "chooses them" in is_open


def test_a_conftest_with_fixtures_alone_changes_nothing(tests_of):
    found, is_open = expected(tests_of({**TREE, "conftest.py": "import pytest\n@pytest.fixture\ndef n(): pass\n"}), [])
    assert len(found) == 3
    assert is_open == ""


PLAIN = {
    "a call": "assert f([1, {'a': (2, None)}]) == 3",
    "keywords and stars": "x = [1]\nassert f(*x, **{'a': 1}) == 3",
    "a module": "import solution\nassert solution.f(1) == solution.LIMIT",
    "under another name": "import solution as s\nassert s.f(1)",
    "an import in a function": "def test_x():\n    from solution import g\n    assert g(1)",
    "a checker": "def check(candidate):\n    assert candidate(1) == 2\ndef test_x(): check(f)",
    "a parametrization": "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_x(n): assert f(n)",
    "a fixture": "import pytest\n@pytest.fixture\ndef data(): return [1]\ndef test_x(data): assert f(data)",
    "an exception": "import pytest\ndef test_x():\n    with pytest.raises(ValueError, match='x') as e: f(1)\n    assert e.value.args",
    "an exception of its own": "from solution import OwnError\nimport pytest\ndef test_x():\n    with pytest.raises(OwnError): f(1)",
    "a handler": "from solution import OwnError\ntry:\n    f(1)\nexcept (OwnError, KeyError):\n    pass",
    "unittest": "import unittest\nclass A(unittest.TestCase):\n    def test_x(self):\n        with self.assertRaises(KeyError): f(1)\n"
    "        self.assertEqual(sorted(f(2), key=lambda n: -n), [1])",
    "a generator that is used up": "assert sum(f(n) for n in range(3)) == all(n for n in f(1))",
    "a library": "import math, random\nassert f(math.pi, random.randint(1, 2)) == math.sqrt(4)",
    "types to convert to": "assert f('1', int) == 1",
    "dates": "from datetime import date\nassert f(date(2024, 1, 1)).year == 2024",
    "a function of an odd name": "from solution import Find_Max\nassert Find_Max([1]) == 1",
    "a function that looks like a class": "from solution import Split\nassert Split('a b') == ['a', 'b']",
    "functions that are called by other names": "import solution\nimport pytest\n@pytest.mark.parametrize('g', [f, solution.g])\ndef test_x(g): assert g(1) == 2",
    "lists that are made before they are passed": "x = [1]\nx.append(2)\nf(x)\nx = [3]\nx += [4]\nf(x)",
    "what set-up made": "import unittest\nclass A(unittest.TestCase):\n    def setUp(self): self.r = f(1)\n    def test_x(self): self.assertEqual(self.r[0], 1)",
    "sums of results": "n = f(1)\nn += f(2)",
    "results": "r = f(1)\nassert r['a'].strip() and len(r) == 2",
}  # fmt: skip
NOT_PLAIN = {
    "passes a function": "f(lambda n: n)",
    "passes a function by name": "def g(): pass\nf(g)",
    "passes a generator": "f(n for n in [1])",
    "passes the code under test": "from solution import g\nf(g)",
    "passes a library's function": "import operator\nf(operator.add)",
    "hands a builtin on": "f(len)",
    "passes itself": "import unittest\nclass A(unittest.TestCase):\n    def test_x(self): f(self)",
    "makes an object": "from solution import Stack\ns = Stack()",
    "makes an exception": "from solution import OwnError\nf(OwnError('x'))",
    "defines a class": "class Node: pass\nf(1)",
    "uses an attribute": "assert f(1).status == 2",
    "changes the module": "import solution\nsolution.LIMIT = 2",
    "hands the module on": "import solution\ncheck(solution)",
    "changes a result": "r = f(1)\nr.append(2)",
    "passes a function by another name": "g = f\nf(g)",
    "passes one function of several": "import solution\nfor g in [solution.a, solution.b]: f(g)",
    "passes a function that is a parameter": "import pytest\n@pytest.mark.parametrize('n, g', [(1, f)])\ndef test_x(n, g): f(n, g)",
    "makes an object of a class in capitals": "from solution import LRU\nc = LRU(2)",
    "changes an item of a result": "r = f(1)\nr[0][1] = 2",
    "adds to a result": "r = f(1)\nr += [2]",
    "changes what it has passed": "x = [1]\nf(x)\nx.append(2)",
    "compares results by identity": "r = f(1)\nassert r is f(1)",
    "a field of a result": "r = f(1)\nassert r.count == 1",
    "a field of what a fixture gives": "import pytest\n@pytest.fixture\ndef r(): return f(1)\ndef test_x(r): assert r.max == 1",
    "a field of what set-up made": "import unittest\nclass A(unittest.TestCase):\n    def setUp(self): self.r = f(1)\n    def test_x(self): self.assertEqual(self.r.max, 1)",
    "a field of an exception": "import pytest\ndef test_x():\n    with pytest.raises(ValueError) as e: f(1)\n    assert e.value.value",
    "a field of a caught exception": "try: f(1)\nexcept ValueError as e: assert e.index",
    "calls a result": "f(1)(2)",
    "calls what it was given": "g = f(1)\ng(2)",
    "enters a result": "with f(1) as x: pass",
    "enters a context": "with chdir('x'): f(1)",
    "is asynchronous": "async def test_x(): await f(1)",
    "decorates": "@f\ndef test_x(): pass",
    "captures output": "def test_x(capsys): f(1)",
    "a temporary path": "def test_x(tmp_path): f(str(tmp_path))",
    "patches": "from unittest.mock import patch\nf(1)",
    "reads a file": "f(open('x').read())",
    "looks at the system": "import os\nf(1)",
    "seeds a generator": "import random\nrandom.seed(1)\nf(1)",
    "changes a context": "import decimal\ndecimal.getcontext().prec = 3\nf(1)",
    "warns": "import pytest\ndef test_x():\n    with pytest.warns(UserWarning): f(1)",
    "imports under a condition": "try:\n    from solution import g\nexcept ImportError:\n    g = None",
    "imports all": "from solution import *\nf(1)",
    "sets an attribute": "setattr(f, 'x', 1)",
    "keeps an iterator": "n = iter([1])\nf(n)",
    "keeps a library's iterator": "from itertools import count\nn = count()\nf(n)",
    "a function's attribute": "f.cache_clear()",
    "changes a constant": "from solution import STATE\nSTATE.clear()",
    "changes an item of a constant": "from solution import STATE\nSTATE['a'] = 1",
    "binds a name anew": "f = None",
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_plain_traffic_meets_no_obstacle(tests_of, name):
    assert obstacle(tests_of(f"from solution import f\n{PLAIN[name]}\n")) == ""


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_what_may_not_be_plain_is_told_with_its_place(tests_of, name):
    assert obstacle(tests_of(f"from solution import f\n{NOT_PLAIN[name]}\n")).startswith("test_a.py:")


def test_helpers_and_conftests_are_looked_at_too(tests_of):
    files = {"test_a.py": "from solution import f\nfrom helper import tree\ndef test_x(): f(tree())\n"}
    assert obstacle(tests_of({**files, "helper.py": "class Tree: pass\ndef tree(): return Tree()\n"})).startswith(
        "helper.py:1"
    )


def test_tests_that_import_no_code_have_nothing_to_be_apart_from(tests_of):
    assert "import nothing" in obstacle(tests_of("def test_x(): pass\n"))


def test_the_candidate_is_what_is_neither_the_tests_nor_a_library_s(tests_of):
    sources = tests_of(
        {"test_a.py": "import json, helper, solution.sub, pytest\nfrom pkg.x import y\n", "helper.py": ""}
    )
    assert candidate_modules(sources) == {"solution", "pkg"}


def test_a_library_that_the_code_would_hide_is_found_by_the_imports_of_the_tests(tests_of):
    sources = tests_of("import json, sndhdr\nfrom solution import f\n")
    assert hidden_libraries(sources, {"sndhdr", "wave"}.__contains__) == ["sndhdr"]
