"""What code under test changes in the process that it shares with its tests, and that it is found: kind by kind."""

import pytest
from codemend.sandbox.v1.verdicts_pb2 import TEST_ISOLATION_SHARED
from support.jobs import client, outcome
from support.sandbox import sandbox_process


@pytest.fixture(scope="module")
async def sandbox():
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="2") as service,
        client(service.address, service.process.pid) as made,
    ):
        yield made


TESTS = "from solution import f\n\ndef test_one():\n    assert f() == 1\n\ndef test_two():\n    assert f() == 1\n"
MANAGER = """import pluggy, sys
frame = sys._getframe()
while 'session' not in frame.f_locals: frame = frame.f_back
manager = frame.f_locals['session'].config.pluginmanager
"""
OWN = """class Own:
    @pluggy.HookimplMarker('pytest')
    def pytest_runtest_logfinish(self): pass
"""
OTHER = """import _pytest.hookspec
other = pluggy.PluginManager('pytest')
other.add_hookspecs(_pytest.hookspec)
other.register(Own())
"""
CHANGES = {
    "the code of a function": (
        "from _pytest.assertion import util\nutil.format_explanation.__code__ = (lambda explanation: '').__code__"
    ),
    "the code of a method": "import unittest\nunittest.TestCase.assertIn.__code__ = (lambda *a, **k: None).__code__",
    "the code of a class method": (
        "import unittest\nunittest.TestCase.addClassCleanup.__func__.__code__ = (lambda *a, **k: None).__code__"
    ),
    "the code of a property": (
        "from _pytest.reports import BaseReport\nBaseReport.passed.fget.__code__ = (lambda self: True).__code__"
    ),
    "the code of a property's setter": (
        "from _pytest.python import PyobjMixin\nPyobjMixin.obj.fset.__code__ = (lambda self, value: None).__code__"
    ),
    "defaults": "import unittest\nunittest.TestCase.assertIn.__defaults__ = ('always',)",
    "keyword defaults": ("import unittest\nunittest.TestCase.assertLogs.__kwdefaults__ = {'level': 'CRITICAL'}"),
    "one keyword default": (
        "from _pytest.raises import RaisesExc\nRaisesExc.__init__.__kwdefaults__['match'] = 'other'"
    ),
    "a class attribute": "import unittest\nunittest.TestCase.assertIs = lambda *a, **k: None",
    "a class attribute that is gone": "import unittest\ndel unittest.TestCase.assertIs",
    "a module attribute": "from _pytest.assertion import util\nutil.format_explanation = lambda explanation: ''",
    "an object that is called like a function": "import pytest\npytest.fail = lambda *a, **k: None",
    "a module": "import sys, types\nsys.modules['_pytest.raises'] = types.ModuleType('_pytest.raises')",
    "the table of modules": (
        "import sys, types\nsys.modules = {**sys.modules, '_pytest.raises': types.ModuleType('_pytest.raises')}"
    ),
    "a builtin": "import builtins\nbuiltins.hash = lambda one: 1",
    "a library's function": "import json\njson.loads = lambda text: {}",
    "the code of a library's function": "import json\njson.loads.__code__ = (lambda *a, **k: {}).__code__",
    "what a function encloses": (
        "from _pytest.assertion import rewrite\n"
        "cells = rewrite._rewrite_test.__closure__\n"
        "[cell for cell in cells if callable(cell.cell_contents)][0].cell_contents = lambda *a, **k: None"
    ),
    "a hook's list": (f"{MANAGER}{OWN}manager.register(Own())"),
    "a hook's function": (
        f"{MANAGER}manager.hook.pytest_runtest_logfinish.get_hookimpls()[0].function = lambda *a: None"
    ),
    "a hook's list as a whole": (
        f"{MANAGER}"
        f"{OWN}"
        f"{OTHER}"
        "hook = manager.hook.pytest_runtest_logfinish\n"
        "hook._hookimpls = hook._hookimpls + other.hook.pytest_runtest_logfinish._hookimpls"
    ),
    "all hooks": (
        f"{MANAGER}{OWN}{OTHER}vars(manager.hook)['pytest_runtest_logfinish'] = other.hook.pytest_runtest_logfinish"
    ),
}


@pytest.mark.parametrize("when", ["at its import", "in a test"])
@pytest.mark.parametrize("kind", CHANGES)
async def test_a_change_by_the_code_under_test_is_found(sandbox, kind, when):
    lines = CHANGES[kind].splitlines()
    if when == "in a test":
        code = "done = []\ndef f():\n    if not done:\n        done.append(1)\n        change()\n    return 1\n"
        code += "def change():\n" + "".join(f"    {line}\n" for line in lines)
    else:
        code = CHANGES[kind] + "\ndef f(): return 1\n"
    reply = await sandbox.tests(TESTS, code, isolation=TEST_ISOLATION_SHARED)
    assert outcome(reply) == "TAMPERED", reply.report


async def test_a_second_change_is_found_where_a_first_one_was_allowed(sandbox):
    tests = (
        "import unittest\nfrom solution import f\n\ndef own(self, *a): pass\n\n"
        "def test_one():\n    unittest.TestCase.assertIn = own\n    assert f(None) == 1\n\n"
        "def test_two():\n    assert f(None) == 1\n\ndef test_three():\n    assert f(own) == 1\n"
    )
    honest = await sandbox.tests(tests, "def f(own): return 1\n", isolation=TEST_ISOLATION_SHARED)
    assert outcome(honest) == "PASSED", honest.report
    code = "def f(own):\n    if own: own.__code__ = (lambda self, *a: None).__code__\n    return 1\n"
    reply = await sandbox.tests(tests, code, isolation=TEST_ISOLATION_SHARED)
    assert outcome(reply) == "TAMPERED", reply.report


async def test_what_a_test_patches_and_puts_back_is_no_tampering(sandbox):
    tests = (
        "import json, os, sys, time, unittest\nfrom unittest.mock import patch\nfrom solution import f\n\n"
        "def test_one(monkeypatch):\n    monkeypatch.setattr(time, 'sleep', lambda seconds: None)\n"
        "    monkeypatch.setattr(unittest.TestCase, 'assertIn', lambda *a: None)\n    assert f() == 1\n\n"
        "def test_two():\n    with patch('json.loads', return_value=1), patch.dict(sys.modules, {'extra': json}):\n"
        "        assert json.loads('') == 1\n    assert f() == 1\n\n"
        "def test_three(monkeypatch):\n    monkeypatch.setattr(os, 'getcwd', lambda: '/')\n    assert f() == 1\n"
    )
    reply = await sandbox.tests(tests, "def f(): return 1\n", isolation=TEST_ISOLATION_SHARED)
    assert outcome(reply) == "PASSED", reply.report
