"""What RunTests reports: each end that a test can have, with the facts that a repair needs, whatever the code does."""

# ruff: noqa: E501 - many lines are whole programs

import asyncio
from textwrap import dedent

import grpc
import pytest
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import verdicts_pb2 as pb_verdicts
from support.jobs import client, limits, outcome, outcomes
from support.sandbox import sandbox_process

REPLY_BYTES = 4 * 1024 * 1024
COUNTS = ("passed", "failed", "errors", "skipped", "xfailed", "xpassed", "unfinished")


@pytest.fixture(scope="module")
async def sandbox():
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="2") as service,
        client(service.address, service.process.pid) as made,
    ):
        yield made


def counts(reply: pb.RunTestsResponse) -> dict[str, int]:
    """Counts that are not zero, without the total, which must be their sum."""
    found = {name: getattr(reply.report.counts, name) for name in COUNTS}
    assert reply.report.counts.total == sum(found.values())
    return {name: number for name, number in found.items() if number}


def failure(reply: pb.RunTestsResponse, number: int = 0) -> pb.Failure:
    return reply.report.tests[number].failure


KINDS = {
    "pass": ("def test_a(): assert 1 == 1", "PASSED", {"a": "PASSED"}),
    "fail": ("def test_a(): assert 1 == 2", "FAILED", {"a": "FAILED"}),
    "exception": ("def test_a(): 1 / 0", "FAILED", {"a": "FAILED"}),
    "pass_and_fail": ("def test_a(): pass\ndef test_b(): assert 0", "FAILED", {"a": "PASSED", "b": "FAILED"}),
    "skip_by_mark": (
        "import pytest\n@pytest.mark.skip(reason='why')\ndef test_a(): assert 0\ndef test_b(): pass",
        "PASSED", {"a": "SKIPPED", "b": "PASSED"},
    ),
    "skip_in_the_test": (
        "import pytest\ndef test_a(): pytest.skip('why')\ndef test_b(): pass", "PASSED", {"a": "SKIPPED", "b": "PASSED"},
    ),
    "skip_in_a_fixture": (
        "import pytest\n@pytest.fixture\ndef f(): pytest.skip('why')\ndef test_a(f): pass\ndef test_b(): pass",
        "PASSED", {"a": "SKIPPED", "b": "PASSED"},
    ),
    "all_skipped": ("import pytest\ndef test_a(): pytest.skip('why')", "NO_TESTS", {"a": "SKIPPED"}),
    "module_skipped": ("import pytest\npytest.skip('why', allow_module_level=True)\ndef test_a(): pass", "NO_TESTS", {}),
    "xfail": ("import pytest\n@pytest.mark.xfail(reason='why')\ndef test_a(): assert 0", "PASSED", {"a": "XFAILED"}),
    "xfail_in_the_test": ("import pytest\ndef test_a(): pytest.xfail('why')", "PASSED", {"a": "XFAILED"}),
    "xpass": ("import pytest\n@pytest.mark.xfail\ndef test_a(): pass", "FAILED", {"a": "XPASSED"}),
    "xpass_strict": ("import pytest\n@pytest.mark.xfail(strict=True)\ndef test_a(): pass", "FAILED", {"a": "FAILED"}),
    "parametrize": (
        "import pytest\n@pytest.mark.parametrize('x', [1, 2, 3])\ndef test_a(x): assert x != 2",
        "FAILED", {"a[1]": "PASSED", "a[2]": "FAILED", "a[3]": "PASSED"},
    ),
    "unittest": (
        """
        import unittest
        class TestT(unittest.TestCase):
            def test_a(self): self.assertEqual(1, 1)
            def test_b(self): self.assertEqual(1, 2)
            @unittest.skip('why')
            def test_c(self): pass
            @unittest.expectedFailure
            def test_d(self): self.fail()
        """,
        "FAILED", {"TestT::a": "PASSED", "TestT::b": "FAILED", "TestT::c": "SKIPPED", "TestT::d": "XFAILED"},
    ),
    "unittest_set_up_fails": (
        """
        import unittest
        class TestT(unittest.TestCase):
            def setUp(self): raise ValueError('set-up')
            def test_a(self): pass
        """,
        "FAILED", {"TestT::a": "FAILED"},
    ),
    "subtests_of_unittest": (
        """
        import unittest
        class TestT(unittest.TestCase):
            def test_a(self):
                for n in range(3):
                    with self.subTest(n=n): self.assertNotEqual(n, 1)
            def test_b(self):
                for n in range(3):
                    with self.subTest(n=n): pass
        """,
        "FAILED", {"TestT::a": "FAILED", "TestT::b": "PASSED"},
    ),
    "subtests_of_pytest": (
        """
        def test_a(subtests):
            for n in range(3):
                with subtests.test(n=n): assert n != 1
        """,
        "FAILED", {"a": "FAILED"},
    ),
    "set_up_fails": (
        "import pytest\n@pytest.fixture\ndef f(): 1 / 0\ndef test_a(f): pass\ndef test_b(): pass", "ERROR",
        {"a": "ERROR", "b": "PASSED"},
    ),
    "tear_down_fails": (
        "import pytest\n@pytest.fixture\ndef f():\n    yield\n    1 / 0\ndef test_a(f): pass", "ERROR", {"a": "ERROR"},
    ),
    "fixture_missing": ("def test_a(no_such_fixture): pass", "ERROR", {"a": "ERROR"}),
    "no_tests": ("def helper(): pass", "NO_TESTS", {}),
    "async_test_without_a_plugin": ("async def test_a(): assert 0", "FAILED", {"a": "FAILED"}),
    "system_exit_in_a_test": ("import sys\ndef test_a(): sys.exit(0)\ndef test_b(): pass", "FAILED", {"a": "FAILED", "b": "PASSED"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_test_is_reported_as_what_it_is(sandbox, kind):
    code, expected, tests = KINDS[kind]
    reply = await sandbox.tests(dedent(code))
    assert outcome(reply) == expected, reply
    assert {name.replace("test_", ""): how for name, how in outcomes(reply).items()} == tests
    assert sum(counts(reply).values()) == len(tests)
    assert bool(reply.report.reason) == (expected != "PASSED")
    assert reply.report.framework.startswith("pytest ")
    assert reply.execution.isolation.cell == "process"


WRITE_TO_EVERY_PIPE = """import os
def write(data):
    for number in map(int, os.listdir("/proc/self/fd")):
        link = f"/proc/self/fd/{number}"
        if number > 2 and os.path.exists(link) and os.readlink(link).startswith(("pipe:", "socket:")):
            os.write(number, data)
"""
SOLUTION_ENDS = {  # way -> (code, outcomes beside the tests, outcomes apart from them)
    "skips": ("import pytest\npytest.skip('x', allow_module_level=True)", {"ERROR"}, {"ERROR"}),
    "skips_when_called": ("import pytest\ndef f(): pytest.skip('x')", {"FAILED"}, {"FAILED"}),
    "fails_as_expected": ("import pytest\ndef f(): pytest.xfail('x')", {"FAILED"}, {"FAILED"}),
    "exits_at_import": ("import sys\nsys.exit(0)", {"ERROR"}, {"ERROR"}),
    "interrupts_at_import": ("raise KeyboardInterrupt", {"ERROR"}, {"ERROR"}),
    "exits_when_called": ("import sys\ndef f(): sys.exit(0)", {"FAILED"}, {"FAILED"}),
    "os_exit_at_import": ("import os\nos._exit(0)", {"INCOMPLETE"}, {"FAILED"}),
    "os_exit_when_called": ("import os\ndef f(): os._exit(0)", {"INCOMPLETE"}, {"FAILED"}),
    "pytest_exit": ("import pytest\ndef f(): pytest.exit('x', returncode=0)", {"INCOMPLETE"}, {"FAILED"}),
    "killed": ("import os\ndef f(): os.kill(os.getpid(), 9)", {"INCOMPLETE"}, {"FAILED"}),
    "import_error": ("import no_such_module", {"ERROR"}, {"ERROR"}),
    "syntax_error": ("def f(:\n", {"ERROR"}, {"ERROR"}),
    "missing_name": ("g = 1", {"ERROR"}, {"ERROR"}),
    "keyboard_interrupt": ("def f(): raise KeyboardInterrupt", {"ERROR"}, {"FAILED"}),
    "closes_the_report": ("import os\ndef f(): os.closerange(3, 256)", {"INCOMPLETE"}, {"FAILED"}),
    "garbage_in_the_report": (f"{WRITE_TO_EVERY_PIPE}def f(): write(b'x' * 1000)", {"TAMPERED"}, {"FAILED"}),
    "huge_frame_in_the_report": (
        f"{WRITE_TO_EVERY_PIPE}def f(): write(b'\\x7f\\xff\\xff\\xff')", {"TAMPERED"}, {"FAILED"},
    ),
    "exits_in_the_text_of_its_error": (
        "import sys\nclass E(Exception):\n    def __str__(self): sys.exit(0)\ndef f(): raise E()",
        {"ERROR", "FAILED"}, {"FAILED"},
    ),
    "recursion": ("def f(): return f()", {"FAILED"}, {"FAILED"}),
    "out_of_memory": ("def f(): return b'x' * (8 << 30)", {"LIMIT_EXCEEDED", "FAILED"}, {"LIMIT_EXCEEDED", "FAILED"}),
    "cpu": ("def f():\n    while True: pass", {"LIMIT_EXCEEDED"}, {"LIMIT_EXCEEDED"}),
}  # fmt: skip


@pytest.mark.parametrize("isolation", [pb_verdicts.TEST_ISOLATION_SHARED, pb_verdicts.TEST_ISOLATION_SEPARATE])
@pytest.mark.parametrize("way", SOLUTION_ENDS)
async def test_a_solution_that_does_not_do_its_work_is_never_a_pass(sandbox, way, isolation):
    code, shared, separate = SOLUTION_ENDS[way]
    tests = "from solution import f\ndef test_first(): f()\ndef test_after(): pass\n"
    reply = await sandbox.tests(tests, code, limits=limits(wall_time=10, cpu_time=1), isolation=isolation)
    assert reply.report.integrity.isolation == isolation
    assert outcome(reply) in (shared if isolation == pb_verdicts.TEST_ISOLATION_SHARED else separate), reply
    assert reply.report.reason


@pytest.mark.parametrize(
    ("isolation", "told"),
    [
        (pb_verdicts.TEST_ISOLATION_SHARED, {"passed": 1, "skipped": 1}),
        (pb_verdicts.TEST_ISOLATION_SEPARATE, {"passed": 1, "failed": 1}),
    ],
)
async def test_a_skip_out_of_the_code_under_test_is_no_pass_even_beside_passed_tests(sandbox, isolation, told):
    code = "import pytest\ndef f(): pytest.skip('not implemented')\ndef g(): return 1\n"
    tests = "from solution import f, g\ndef test_f(): assert f() == 1\ndef test_g(): assert g() == 1\n"
    reply = await sandbox.tests(tests, code, isolation=isolation)
    assert outcome(reply) == "FAILED"
    assert counts(reply) == told


SUBTEST = """
import unittest
from solution import f
class TestT(unittest.TestCase):
    def test_f(self):
        with self.subTest(n=1): self.assertEqual(f(), 1)
    def test_other(self): pass
"""
PLAIN = "from solution import f\ndef test_f(): assert f() == 1\ndef test_other(): pass\n"
BESIDE = {
    "test_a.py": "from solution import f\ndef test_f(): assert f() == 1\n",
    "test_b.py": "def test_other(): pass\n",
}


@pytest.mark.parametrize(
    ("tests", "code"),
    [
        (PLAIN, "import unittest\ndef f(): raise unittest.SkipTest('x')"),
        (SUBTEST, "import unittest\ndef f(): raise unittest.SkipTest('x')"),
        (SUBTEST, "import pytest\ndef f(): pytest.skip('x')"),
        (BESIDE, "import pytest\npytest.skip('x', allow_module_level=True)"),
        (BESIDE, "import unittest\nraise unittest.SkipTest('x')"),
    ],
)
async def test_no_other_way_of_skipping_out_of_the_code_under_test_is_a_pass(sandbox, tests, code):
    reply = await sandbox.tests(tests, code)
    assert outcome(reply) in {"FAILED", "ERROR"}, reply


async def test_a_failed_comparison_has_its_two_sides_its_place_and_its_source(sandbox):
    tests = "from solution import f\n\ndef test_f():\n    assert f([1, 2]) == [1, 2, 3]\n"
    reply = await sandbox.tests(tests, "def f(x):\n    return x\n")
    found = failure(reply)
    assert found.type == "AssertionError"
    assert (found.comparison.operator, found.comparison.left, found.comparison.right) == ("==", "[1, 2]", "[1, 2, 3]")
    assert "[1, 2] == [1, 2, 3]" in found.message
    assert found.location == "test_solution.py:4"
    assert "assert f([1, 2]) == [1, 2, 3]" in found.traceback


async def test_an_exception_is_placed_in_the_code_under_test(sandbox):
    reply = await sandbox.tests(
        "from solution import f\ndef test_f(): f({})\n", "import json\n\ndef f(x):\n    return x['key']\n"
    )
    found = failure(reply)
    assert (found.type, found.message, found.location) == ("KeyError", "'key'", "solution.py:4")
    assert not found.HasField("comparison")


async def test_each_test_of_a_parametrization_keeps_its_own_comparison(sandbox):
    tests = "import pytest\n@pytest.mark.parametrize('x', [1, 2])\ndef test_a(x): assert x == 10 * x\n"
    reply = await sandbox.tests(tests)
    assert [(case.failure.comparison.left, case.failure.comparison.right) for case in reply.report.tests] == [
        ("1", "10"), ("2", "20"),
    ]  # fmt: skip


async def test_a_comparison_that_held_is_not_the_reason_of_a_later_failure(sandbox):
    tests = """
def test_a():
    try:
        assert 1 == 2
    except AssertionError:
        pass
    raise ValueError('other')
"""
    found = failure(await sandbox.tests(tests))
    assert (found.type, found.message) == ("ValueError", "other")
    assert not found.HasField("comparison")


@pytest.mark.parametrize(
    ("code", "kind", "said", "location"),
    [
        ("import no_such_module\n", "ModuleNotFoundError", "no_such_module", "solution.py:1"),
        ("x = 1\ndef f(:\n", "SyntaxError", "invalid syntax", "solution.py:2"),
        ("def f():\n    pass\n  x\n", "IndentationError", "unindent", "solution.py:3"),
        ("x = 1\n", "ImportError", "cannot import name 'f'", "test_solution.py:1"),
        ("\n\n1 / 0\n", "ZeroDivisionError", "division by zero", "solution.py:3"),
    ],
)
async def test_a_collection_error_has_the_exception_s_own_type_text_and_place(sandbox, code, kind, said, location):
    reply = await sandbox.tests("from solution import f\ndef test_a(): f()\n", code)
    assert outcome(reply) == "ERROR"
    (error,) = reply.report.collection_errors
    assert error.path == "test_solution.py"
    assert (error.failure.type, error.failure.location) == (kind, location)
    assert said in error.failure.message
    assert error.failure.traceback


async def test_one_broken_file_does_not_hide_that_the_others_are_there(sandbox):
    reply = await sandbox.tests({"test_a.py": "def test_a(): pass", "test_b.py": "import no_such_module"})
    assert outcome(reply) == "ERROR"
    assert [error.path for error in reply.report.collection_errors] == ["test_b.py"]


async def test_a_test_that_hangs_has_its_name_and_those_before_it_their_outcomes(sandbox):
    tests = "import time\ndef test_a(): pass\ndef test_b(): time.sleep(60)\ndef test_c(): pass\n"
    reply = await sandbox.tests(tests, limits=limits(wall_time=1))
    assert outcome(reply) == "TIMED_OUT"
    assert outcomes(reply) == {"test_a": "PASSED", "test_b": "UNFINISHED"}
    assert reply.execution.status == pb.EXECUTION_STATUS_TIMED_OUT


async def test_a_process_that_ends_in_a_test_leaves_that_test_unfinished(sandbox):
    reply = await sandbox.tests("import os\ndef test_a(): pass\ndef test_b(): os._exit(0)\ndef test_c(): pass\n")
    assert outcome(reply) == "INCOMPLETE"
    assert outcomes(reply) == {"test_a": "PASSED", "test_b": "UNFINISHED"}
    assert "test_c" in reply.report.reason


async def test_what_a_test_prints_is_its_own(sandbox):
    tests = """
import os, sys
def test_a():
    print('out a'); print('err a', file=sys.stderr); os.write(1, b'raw a\\n')
def test_b():
    print('out b'); assert 0
"""
    reply = await sandbox.tests(tests)
    first, second = reply.report.tests
    assert (first.stdout, first.stderr) == (b"out a\nraw a\n", b"err a\n")
    assert (second.stdout, second.stderr) == (b"out b\n", b"")


async def test_a_test_that_prints_much_keeps_its_tail_and_stays_within_the_reply(sandbox):
    tests = "def test_a():\n    for n in range(100_000): print(n)\n    assert 0\n"
    reply = await sandbox.tests(tests)
    (case,) = reply.report.tests
    assert len(case.stdout) == 8192
    assert case.stdout.endswith(b"99998\n99999\n")


async def test_ids_messages_and_output_of_any_kind_are_valid_text(sandbox):
    tests = """
import sys, pytest
@pytest.mark.parametrize('x', ['żółć', '\\ud800', 'a\\x00b', 'x' * 5000, '::/[]', 'a b', '\\n'], ids=str)
def test_a(x):
    sys.stdout.buffer.write(b'\\xff\\x00')
    assert x == '\\udcff' + x
"""
    reply = await sandbox.tests(tests)
    assert outcome(reply) == "FAILED"
    assert counts(reply) == {"failed": 7}
    assert all(case.failure.message and len(case.node_id.encode()) <= 1024 for case in reply.report.tests)


EXCEPTIONS = {
    "no_text": "class E(Exception):\n    def __str__(self): raise ValueError('x')\n    __repr__ = __str__\ndef test_a(): raise E()",
    "text_is_no_text": "class E(Exception):\n    def __str__(self): return 5\ndef test_a(): raise E()",
    "huge_text": "def test_a(): raise ValueError('x' * 10_000_000)",
    "broken_repr_compared": "class C:\n    def __repr__(self): raise ValueError('x')\ndef test_a(): assert C() == 1",
    "huge_repr_compared": "def test_a(): assert list(range(1_000_000)) == 1",
    "surrogates": "def test_a(): raise ValueError('\\ud800\\udfff')",
    "no_bool": "class C:\n    def __eq__(self, other): return self\n    def __bool__(self): raise ValueError('no bool')\ndef test_a(): assert C() == 1",
    "group": "def test_a(): raise ExceptionGroup('g', [ValueError(n) for n in range(1000)])",
    "deep": "def f(n): return f(n + 1)\ndef test_a(): f(0)",
    "cause_cycle": "def test_a():\n    e = ValueError('x'); e.__cause__ = e; raise e",
    "class_named_so": "E = type('x' * 10_000, (Exception,), {})\ndef test_a(): raise E('x')",
}


@pytest.mark.parametrize("name", EXCEPTIONS)
async def test_an_exception_of_any_kind_is_a_failed_test_within_its_sizes(sandbox, name):
    reply = await sandbox.tests(f"{EXCEPTIONS[name]}\n\ndef test_after(): pass\n")
    assert outcome(reply) == "FAILED", reply
    assert outcomes(reply) == {"test_a": "FAILED", "test_after": "PASSED"}
    found = failure(reply)
    assert found.type
    assert len(found.message.encode()) <= 4096
    assert len(found.traceback.encode()) <= 16384
    assert max(len(found.comparison.left.encode()), len(found.comparison.right.encode())) <= 1024


async def test_a_thousand_failing_tests_fit_the_reply_and_are_all_counted(sandbox):
    tests = "import pytest\n@pytest.mark.parametrize('n', range(1000))\ndef test_a(n): print('y' * 9000); assert 'x' * 5000 == str(n)\n"
    reply = await sandbox.tests(tests)
    assert reply.ByteSize() < REPLY_BYTES
    assert counts(reply) == {"failed": 1000}
    assert len(reply.report.tests) + reply.report.tests_left_out == 1000
    assert [case.node_id for case in reply.report.tests[:2]] == [
        "test_solution.py::test_a[0]",
        "test_solution.py::test_a[1]",
    ]
    assert failure(reply).traceback  # details are kept where there is room for them


async def test_thousands_of_passing_tests_pass(sandbox):
    tests = "import pytest\n@pytest.mark.parametrize('n', range(3000))\ndef test_a(n): pass\n"
    reply = await sandbox.tests(tests)
    assert outcome(reply) == "PASSED", reply.report.reason
    assert counts(reply) == {"passed": 3000}
    assert reply.ByteSize() < REPLY_BYTES


CANDIDATE_FILES = {
    "conftest.py": "import pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_runtest_call(item): item.obj = lambda: None\n",
    "pytest.ini": "[pytest]\naddopts = -p no_such_plugin --collect-only\n",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--co'\n",
    "tox.ini": "[pytest]\naddopts = --co\n",
    "sitecustomize.py": "import os\nos._exit(0)\n",
    "usercustomize.py": "import os\nos._exit(0)\n",
    "test_solution.py": "def test_mine(): pass\n",
    "test_other.py": "def test_mine(): pass\n",
    "pytest.py": "def main(*a): return 0\n",
    "_pytest/__init__.py": "raise SystemExit(0)\n",
    "tests/conftest.py": "raise SystemExit(0)\n",
    "hook.pth": "import os; os._exit(0)\n",
    "pytest11.py": "raise SystemExit(0)\n",
    "candidate-1.0.dist-info/entry_points.txt": "[pytest11]\nx = conftest\n",
    "candidate-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: candidate\nVersion: 1.0\n",
}


@pytest.mark.parametrize("isolation", [pb_verdicts.TEST_ISOLATION_SHARED, pb_verdicts.TEST_ISOLATION_SEPARATE])
async def test_what_a_candidate_lays_beside_its_code_does_not_matter(sandbox, isolation):
    tests = "from solution import f\ndef test_right(): assert f() == 1\ndef test_wrong(): assert f() == 2\n"
    reply = await sandbox.tests(tests, {"solution.py": "def f(): return 1\n", **CANDIDATE_FILES}, isolation=isolation)
    assert outcome(reply) == "FAILED", reply
    assert outcomes(reply) == {"test_right": "PASSED", "test_wrong": "FAILED"}


async def test_options_in_the_environment_do_not_reach_the_tests_run(sandbox):
    tests = "def test_wrong(): assert 0\n"
    for name, value in {"PYTEST_ADDOPTS": "--collect-only", "PYTEST_PLUGINS": "conftest"}.items():
        reply = await sandbox.tests(tests, {"conftest.py": "raise SystemExit(0)"}, env={name: value})
        assert outcome(reply) != "PASSED", reply


async def test_the_trusted_tests_own_conftest_and_helpers_are_used(sandbox):
    tests = {
        "conftest.py": "import pytest\n@pytest.fixture\ndef number(): return 7\n",
        "helper.py": "def twice(n): return 2 * n\n",
        "sub/test_deep.py": "from helper import twice\ndef test_a(number): assert twice(number) == 14\n",
        "data/values.txt": "14",
        "test_data.py": "from pathlib import Path\ndef test_b(): assert Path(__file__).with_name('data').joinpath('values.txt').read_text() == '14'\n",
    }
    reply = await sandbox.tests(tests)
    assert outcome(reply) == "PASSED", reply
    assert sorted(case.node_id for case in reply.report.tests) == ["sub/test_deep.py::test_a", "test_data.py::test_b"]


async def test_a_module_of_the_tests_wins_over_one_of_the_candidate(sandbox):
    tests = {"helper.py": "x = 'tests'\n", "test_a.py": "import helper\ndef test_a(): assert helper.x == 'tests'\n"}
    reply = await sandbox.tests(tests, {"helper.py": "x = 'candidate'\n"})
    assert outcome(reply) == "PASSED", reply


TAMPERING = [
    "open('/tests/test_solution.py', 'w').write('def test_a(): pass')",
    "os.remove('/tests/test_solution.py')",
    "os.rename('/tests', '/tmp/tests')",
    "open('/tests/conftest.py', 'w').write('')",
    "os.chmod('/tests/test_solution.py', 0o777)",
    "os.symlink('/work', '/tests/work')",
]


@pytest.mark.parametrize("isolation", [pb_verdicts.TEST_ISOLATION_SHARED, pb_verdicts.TEST_ISOLATION_SEPARATE])
@pytest.mark.parametrize("attempt", TAMPERING)
async def test_a_candidate_cannot_change_the_tests(sandbox, attempt, isolation):
    code = f"import os\ntry:\n    {attempt}\n    done = True\nexcept OSError: done = False\n"
    reply = await sandbox.tests(
        "import solution\ndef test_a(): assert solution.done is False\n", code, isolation=isolation
    )
    assert outcome(reply) == "PASSED", reply


async def test_the_chosen_tests_run_and_no_others(sandbox):
    tests = {
        "test_a.py": "class TestT:\n    def test_x(self): pass\n    def test_y(self): assert 0\n",
        "test_b.py": "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_z(n): pass\ndef test_w(): assert 0\n",
    }
    reply = await sandbox.tests(tests, select=["test_a.py::TestT::test_x", "test_b.py::test_z[2]"])
    assert outcome(reply) == "PASSED", reply
    assert [case.node_id for case in reply.report.tests] == ["test_a.py::TestT::test_x", "test_b.py::test_z[2]"]


async def test_a_chosen_test_that_does_not_exist_is_an_error(sandbox):
    reply = await sandbox.tests(
        "def test_a(): pass\n", select=["test_solution.py::test_a", "test_solution.py::test_no"]
    )
    assert outcome(reply) == "ERROR", reply


async def test_files_that_tests_make_come_back(sandbox):
    reply = await sandbox.tests("def test_a(): open('made.txt', 'w').write('x')\n", collect=["*.txt"])
    assert [(file.path, file.content) for file in reply.execution.files] == [("made.txt", b"x")]


async def test_durations_and_usage_are_told(sandbox):
    reply = await sandbox.tests("import time\ndef test_a(): time.sleep(0.2)\n")
    assert 0.2 <= reply.report.tests[0].duration.ToTimedelta().total_seconds() < 2
    assert reply.report.duration.ToTimedelta() >= reply.report.tests[0].duration.ToTimedelta()
    assert reply.execution.wall_time.ToTimedelta() >= reply.report.duration.ToTimedelta()


async def test_tests_with_a_configuration_of_their_own_are_run_by_it(sandbox):
    tests = {
        "pytest.ini": "[pytest]\npython_functions = check_*\nxfail_strict = true\naddopts = -v --tb=long\n",
        "test_solution.py": "import pytest\n\ndef check_a(): print('seen')\n\n@pytest.mark.xfail\ndef check_b(): pass\n",
    }
    reply = await sandbox.tests(tests)
    assert outcomes(reply) == {"check_a": "PASSED", "check_b": "FAILED"}
    assert reply.report.tests[0].stdout == b"seen\n"


async def test_runs_side_by_side_capture_their_own_output_alone(sandbox):
    test = (
        "import os\n\ndef test_a():\n    print('mine {0}')\n    os.system('echo child {0}')\n    assert '{0}' == ''\n"
    )
    replies = await asyncio.gather(*(sandbox.tests(test.format(number)) for number in range(8)))
    captured = [reply.report.tests[0].stdout.decode() for reply in replies]
    assert captured == [f"mine {number}\nchild {number}\n" for number in range(8)]


STALE = {
    "raised_after_an_expected_one": (
        "import pytest\ndef test_a():\n    with pytest.raises(AssertionError):\n        assert 1 == 2\n"
        "    raise AssertionError('the real reason')\n"
    ),
    "raised_after_one_that_was_swallowed": (
        "def test_a():\n    try:\n        assert 1 == 2\n    except AssertionError:\n        pass\n    assert not [3]\n"
    ),
}


@pytest.mark.parametrize("name", STALE)
async def test_the_comparison_told_is_that_of_the_failure(sandbox, name):
    reply = await sandbox.tests(STALE[name])
    assert outcome(reply) == "FAILED"
    assert not failure(reply).HasField("comparison")


async def test_the_one_failure_among_very_many_tests_keeps_its_details(sandbox):
    tests = "import pytest\n@pytest.mark.parametrize('n', range(12000))\ndef test_a(n):\n    assert n != 11000\n"
    reply = await sandbox.tests(tests, limits=limits(wall_time=60, cpu_time=60))
    assert reply.report.tests_left_out > 0
    (failed,) = [test for test in reply.report.tests if test.outcome == pb.TEST_OUTCOME_FAILED]
    assert failed.failure.comparison.left == "11000"


async def test_output_of_passed_tests_does_not_cost_a_failure_its_details(sandbox):
    tests = "import pytest\n@pytest.mark.parametrize('n', range(600))\ndef test_a(n):\n    print('x' * 8192)\n    assert n != 599\n"
    reply = await sandbox.tests(tests)
    assert "assert 599 != 599" in reply.report.tests[-1].failure.traceback


@pytest.mark.parametrize("node_id", ["../work/solution.py", "/work/solution.py", "../work/solution.py::test_x"])
async def test_only_the_tests_can_be_selected(sandbox, node_id):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await sandbox.tests("def test_a(): pass\n", "def test_x(): pass\n", select=[node_id])
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
