"""How far a verdict can be believed: programs that try to pass without solving anything, and honest ones beside them."""

# ruff: noqa: E501 - many lines are whole programs

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sessions_pb2 as pb_sessions
from codemend.sandbox.v1.verdicts_pb2 import (
    TEST_ISOLATION_SEPARATE,
    TEST_ISOLATION_SHARED,
    TEST_ISOLATION_UNSPECIFIED,
)
from support.jobs import client, limits, outcome, outcomes
from support.sandbox import sandbox_process

OWN = Path(__file__).parents[1] / "data" / "cheats.jsonl"
AT_ONCE = 3
EQUALS_ALL = (
    "an object that equals everything cannot be told from a right answer by a comparison that it answers itself"
)
PASS_BESIDE_THE_TESTS = {
    "always-equal": EQUALS_ALL,
    "replay-from-test-source": "whatever shares the tests' process can read their files",
}
"""Of the shared battery: cheats that pass where code and tests share a process, and why no check sees them."""
HONEST = {"quixbugs": 1, "humaneval": 5, "mbpp_sanitized": 5}
"""Every how many rows of a set one is taken."""
BESIDE_BY_NEED = {
    "quixbugs": {
        "breadth_first_search",
        "depth_first_search",
        "detect_cycle",
        "reverse_linked_list",
        "shortest_path_length",
    }
}
"""Tasks whose tests hand over linked nodes."""


@pytest.fixture(scope="module")
async def sandbox():
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="2") as service,
        client(service.address, service.process.pid) as made,
    ):
        yield made


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def isolation(reply: pb.RunTestsResponse) -> int:
    return reply.report.integrity.isolation


def checks(reply: pb.RunTestsResponse) -> dict[str, bool]:
    return {check.name: check.held for check in reply.report.integrity.checks}


async def told(sandbox, cheats: list[dict], where: int) -> dict[str, pb.RunTestsResponse]:
    """The reply to each cheat."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(cheat: dict) -> tuple[str, pb.RunTestsResponse]:
        async with places:
            return cheat["id"], await sandbox.tests(
                cheat["tests"], cheat["files"], isolation=where, limits=limits(wall_time=8, cpu_time=8)
            )

    return dict(await asyncio.gather(*map(one, cheats)))


@pytest.fixture(scope="module")
def battery(data_folder) -> list[dict]:
    found = [*lines(data_folder / "cheats.jsonl"), *lines(OWN)]
    assert len(found) >= 28 + 20
    return found


@pytest.mark.timeout(600)
async def test_no_cheat_passes_by_default_and_each_runs_apart_from_its_tests(sandbox, battery):
    replies = await told(sandbox, battery, TEST_ISOLATION_UNSPECIFIED)
    assert [name for name, reply in replies.items() if outcome(reply) == "PASSED"] == []
    assert [name for name, reply in replies.items() if isolation(reply) != TEST_ISOLATION_SEPARATE] == []
    assert all(reply.report.reason for reply in replies.values())


@pytest.mark.timeout(600)
async def test_beside_its_tests_no_cheat_passes_but_those_whose_reason_is_written_down(sandbox, battery):
    documented = PASS_BESIDE_THE_TESTS | {one["id"]: one["passes_shared"] for one in battery if "passes_shared" in one}
    replies = await told(sandbox, battery, TEST_ISOLATION_SHARED)
    assert {isolation(reply) for reply in replies.values()} == {TEST_ISOLATION_SHARED}
    assert {name for name, reply in replies.items() if outcome(reply) == "PASSED"} == set(documented)
    tampered = [reply.report for reply in replies.values() if outcome(reply) == "TAMPERED"]
    assert len(tampered) >= 15
    assert all(report.reason for report in tampered)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", HONEST)
async def test_honest_solutions_whose_tests_pass_plain_data_run_apart_and_pass(sandbox, data_folder, name):
    tasks = lines(data_folder / f"{name}.jsonl")[:: HONEST[name]]
    beside = BESIDE_BY_NEED.get(name, set())
    places = asyncio.Semaphore(AT_ONCE)

    async def one(task: dict) -> tuple[str, str, int]:
        async with places:
            files = {**task.get("files", {}), **task["reference"]}
            reply = await sandbox.tests(task["tests"], files, limits=limits(wall_time=60, cpu_time=60), seconds=100)
        return task["id"].rpartition("/")[2], outcome(reply), isolation(reply)

    found = await asyncio.gather(*map(one, tasks))
    print(name, Counter(where for _name, _verdict, where in found))
    assert [name for name, verdict, _where in found if verdict != "PASSED"] == []
    assert {name for name, _verdict, where in found if where == TEST_ISOLATION_SHARED} <= beside


SOLUTION = """
import sys

class OwnError(ValueError):
    pass

class DeeperError(OwnError):
    def __str__(self):
        return f"deeper: {self.args[0]}"

LIMIT = 7
CALLS = []

def add(a, b=1):
    return a + b

def fail(kind):
    if kind == "own":
        raise DeeperError("down here")
    if kind == "cause":
        try:
            {}["inner"]
        except KeyError as error:
            raise RuntimeError("outer") from error
    raise OwnError("up here")

def fill(items, table):
    items.append({"made": True})
    items[0]["seen"] = 1
    table["new"] = [1]
    return items

def count():
    for number in range(3):
        CALLS.append(number)
        yield number

def calls():
    return CALLS

def say(text):
    print(text)
    print("to err", file=sys.stderr)
    return text

def match(found):
    import re
    return re.match("a", "a" if found else "b")

def read(match):
    return match.group()

def here():
    import os
    return os.getpid(), sorted(os.listdir("/tests")) if os.path.isdir("/tests") else None

def write(path):
    with open(path, "w") as stream:
        stream.write("made")
"""
TRAFFIC = {
    "a_default": "assert solution.add(1) == 2",
    "keywords": "assert solution.add(a=1, b=[2] and 3) == 4",
    "a_constant": "assert solution.LIMIT == 7",
    "an_exception_of_its_own": "with pytest.raises(solution.OwnError, match='up here'): solution.fail('')",
    "a_subclass_by_its_base": "with pytest.raises(solution.OwnError, match='deeper: down here'): solution.fail('own')",
    "its_builtin_base": "with pytest.raises(ValueError): solution.fail('own')",
    "arguments_that_are_wrong": "with pytest.raises(TypeError): solution.add()",
    "arguments_that_it_changes": "items, table = [{}], {}\n    result = solution.fill(items, table)\n    assert result is items\n"
    "    assert items == [{'seen': 1}, {'made': True}]\n    assert table == {'new': [1]}",
    "an_iterator_item_by_item": "numbers = solution.count()\n    assert next(numbers) == 0\n    assert solution.calls() == [0]\n"
    "    assert list(numbers) == [1, 2]\n    assert solution.calls() == [0, 1, 2]",
    "a_container_by_name": "from solution import CALLS, count\n    list(count())\n    assert solution.add(1) == 2\n    assert CALLS == [0, 1, 2]\n"
    "    assert solution.CALLS is CALLS",
    "an_object_s_truth": "assert solution.match(True)\n    assert not solution.match(False)\n    assert solution.match(False) is None",
    "an_object_that_comes_back": "assert solution.read(solution.match(True)) == 'a'",
    "a_missing_name": "with pytest.raises(AttributeError): solution.no_such_name",
}  # fmt: skip


@pytest.mark.parametrize("name", TRAFFIC)
async def test_tests_see_code_that_runs_apart_as_they_see_it_beside_them(sandbox, name):
    tests = f"import pytest\nimport solution\n\ndef test_it():\n    {TRAFFIC[name]}\n"
    for where in (TEST_ISOLATION_SEPARATE, TEST_ISOLATION_SHARED):
        reply = await sandbox.tests(tests, SOLUTION, isolation=where)
        assert outcome(reply) == "PASSED", reply.report
        assert isolation(reply) == where


async def test_an_exception_out_of_another_cell_has_its_place_its_source_and_its_cause(sandbox):
    tests = "from solution import fail\n\ndef test_it():\n    fail('cause')\n"
    found = (await sandbox.tests(tests, SOLUTION, isolation=TEST_ISOLATION_SEPARATE)).report.tests[0].failure
    line = SOLUTION.splitlines().index('            raise RuntimeError("outer") from error') + 1
    assert (found.type, found.message, found.location) == ("RuntimeError", "outer", f"solution.py:{line}")
    assert 'raise RuntimeError("outer") from error' in found.traceback
    assert "KeyError: 'inner'" in found.traceback
    assert "test_solution.py:4" in found.traceback


async def test_what_code_prints_in_another_cell_is_output_of_the_test_that_asked(sandbox):
    tests = "from solution import say\ndef test_a(): say('one')\ndef test_b(): say('two')\n"
    reply = await sandbox.tests(tests, SOLUTION, isolation=TEST_ISOLATION_SEPARATE)
    assert [(case.stdout, case.stderr) for case in reply.report.tests] == [
        (b"one\n", b"to err\n"),
        (b"two\n", b"to err\n"),
    ]


async def test_the_candidate_s_cell_has_no_test_and_its_own_processes(sandbox):
    tests = "from solution import here\ndef test_it(): assert here() == (2, [])\n"
    reply = await sandbox.tests(tests, SOLUTION, isolation=TEST_ISOLATION_SEPARATE)
    assert outcome(reply) == "PASSED", reply.report


async def test_an_object_is_named_where_a_test_compares_it(sandbox):
    tests = "from solution import match\ndef test_it(): assert match(True) == 'a'\n"
    reply = await sandbox.tests(tests, SOLUTION, isolation=TEST_ISOLATION_SEPARATE)
    assert "an instance of Match, which is no plain value" in reply.report.tests[0].failure.comparison.left


async def test_files_come_from_the_cell_of_the_code(sandbox):
    tests = "from solution import write\ndef test_it(): write('made.txt')\n"
    reply = await sandbox.tests(tests, SOLUTION, collect=["*.txt"])
    assert isolation(reply) == TEST_ISOLATION_SEPARATE
    assert [(file.path, file.content) for file in reply.execution.files] == [("made.txt", b"made")]


async def test_packages_and_modules_beside_each_other_are_seen(sandbox):
    code = {
        "pkg/__init__.py": "VERSION = 1\n",
        "pkg/deep/inner.py": "def f(): return 2\n",
        "other.py": "def g(): return 3\n",
    }
    tests = "import pkg\nimport other\nfrom pkg.deep.inner import f\ndef test_it(): assert (pkg.VERSION, f(), other.g()) == (1, 2, 3)\n"
    reply = await sandbox.tests(tests, code)
    assert (outcome(reply), isolation(reply)) == ("PASSED", TEST_ISOLATION_SEPARATE), reply.report


NEEDS = "from solution import apply\ndef test_it(): assert apply(lambda n: n + 1, 1) == 2\n"
APPLY = "def apply(function, value): return function(value)\n"


async def test_tests_that_hand_a_function_over_run_beside_the_code_and_the_report_says_why(sandbox):
    reply = await sandbox.tests(NEEDS, APPLY)
    assert (outcome(reply), isolation(reply)) == ("PASSED", TEST_ISOLATION_SHARED)
    assert reply.report.integrity.reason == "test_solution.py:2 passes a function to solution.apply"
    assert checks(reply) == {"read_only_tests": True, "expected_tests": True, "handshake": True, "canaries": True}


async def test_apart_at_any_price_is_an_error_that_says_what_is_in_the_way(sandbox):
    reply = await sandbox.tests(NEEDS, APPLY, isolation=TEST_ISOLATION_SEPARATE)
    assert (outcome(reply), isolation(reply)) == ("ERROR", TEST_ISOLATION_SEPARATE)
    assert "passes a function to solution.apply" in reply.report.reason
    assert reply.report.tests == []


async def test_what_nobody_could_see_before_is_seen_at_the_first_call_and_the_run_begins_anew(sandbox):
    tests = "from collections import deque\nfrom solution import size\nthings = {'a': Ellipsis}\ndef test_it(): assert size(things) == 1\n"
    code = "def size(things): return len(things)\n"
    reply = await sandbox.tests(tests, code)
    assert (outcome(reply), isolation(reply)) == ("PASSED", TEST_ISOLATION_SHARED), reply.report
    assert "test_solution.py:4 passes an instance of ellipsis to solution.size" in reply.report.integrity.reason
    reply = await sandbox.tests(tests, code, isolation=TEST_ISOLATION_SEPARATE)
    assert outcome(reply) == "ERROR"
    assert "ellipsis" in reply.report.reason


async def test_a_candidate_that_has_answered_cannot_have_its_tests_moved_beside_it(sandbox):
    tests = "from solution import size\ndef test_a(): assert size([1]) == 1\ndef test_b(): assert size({'a': Ellipsis}) == 1\n"
    reply = await sandbox.tests(tests, "def size(things): return len(things)\n")
    assert (outcome(reply), isolation(reply)) == ("ERROR", TEST_ISOLATION_SEPARATE), reply.report
    assert "need isolation SHARED" in reply.report.reason


async def test_files_of_the_candidate_do_not_choose_where_it_runs(sandbox):
    tests = "from solution import f\ndef test_it(): assert f() == 1\n"
    code = {
        "solution.py": "def f(): return 1\n",
        "conftest.py": "class A: pass\n",
        "test_more.py": "import os\n",
        "os.py": "",
        "pytest.py": "",
    }
    reply = await sandbox.tests(tests, code)
    assert (outcome(reply), isolation(reply)) == ("PASSED", TEST_ISOLATION_SEPARATE), reply.report


async def test_no_module_of_the_code_is_ever_imported_beside_the_tests(sandbox):
    tests = "from solution import f\ndef test_it(): assert [f(), 'a' * 99] == [1, 'b' * 99]\n"
    planted = "import os\nos._exit(0)\n"
    code = {
        "solution.py": "def f(): return 1\n",
        **{f"{name}.py": planted for name in ("difflib", "pprint", "sndhdr", "pdb", "wave")},
    }
    for path in ("/work", ".", "/proc/self/cwd"):
        reply = await sandbox.tests(
            tests + "    import sndhdr\n", code, env={"PYTHONPATH": path}, isolation=TEST_ISOLATION_SEPARATE
        )
        assert outcome(reply) == "ERROR", reply.report
        reply = await sandbox.tests(tests, code, env={"PYTHONPATH": path}, isolation=TEST_ISOLATION_SEPARATE)
        assert outcomes(reply) == {"test_it": "FAILED"}, reply.report
    configured = {"test_a.py": tests, "pytest.ini": "[pytest]\npythonpath = ../work\n"}
    reply = await sandbox.tests(configured, code, isolation=TEST_ISOLATION_SEPARATE)
    assert outcomes(reply) == {"test_it": "FAILED"}, reply.report


async def test_a_module_of_the_code_never_stands_in_for_a_library_that_the_tests_use(sandbox):
    tests = "import sndhdr\nfrom solution import f\ndef test_it(): assert f() == 1\n"
    reply = await sandbox.tests(
        tests, {"solution.py": "def f(): return 1\n", "sndhdr.py": ""}, isolation=TEST_ISOLATION_SEPARATE
    )
    assert outcome(reply) == "ERROR"
    assert "sndhdr" in reply.report.reason


ENDS = {
    "memory": ("def f():\n    kept = []\n    while True: kept.append(bytearray(10_000_000))\n", "LIMIT_EXCEEDED", pb.EXECUTION_STATUS_MEMORY_LIMIT),
    "processor time": ("def f():\n    while True: pass\n", "LIMIT_EXCEEDED", pb.EXECUTION_STATUS_CPU_LIMIT),
    "wall time": ("import time\ndef f(): time.sleep(60)\n", "TIMED_OUT", pb.EXECUTION_STATUS_TIMED_OUT),
    "a signal": ("import os\ndef f(): os.kill(os.getpid(), 11)\n", "FAILED", pb.EXECUTION_STATUS_FAILED),
}  # fmt: skip


@pytest.mark.parametrize("way", ENDS)
async def test_a_limit_that_ends_the_code_s_cell_is_the_result_s(sandbox, way):
    code, verdict, status = ENDS[way]
    tests = "from solution import f\ndef test_a(): f()\ndef test_b(): f()\n"
    reply = await sandbox.tests(
        tests,
        code,
        isolation=TEST_ISOLATION_SEPARATE,
        limits=limits(wall_time=3 if way == "wall time" else 30, cpu_time=1, memory_bytes=128 << 20),
    )
    assert (outcome(reply), reply.execution.status) == (verdict, status), reply
    assert reply.report.reason


HONEST_BESIDE = {
    "monkeypatch": "import solution\ndef test_a(monkeypatch):\n    monkeypatch.setattr(solution, 'get', lambda: 5)\n    assert solution.twice() == 10\ndef test_b(): assert solution.twice() == 2\n",
    "mock": "from unittest import mock\nimport solution\n@mock.patch('builtins.print')\n@mock.patch('solution.get', return_value=3)\ndef test_a(get, printed):\n    assert solution.twice() == 6\n    print('x')\n    assert printed.called\n",
    "a patch of a class": "import unittest\nfrom unittest import mock\nimport solution\nclass A(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls):\n        cls.patcher = mock.patch('json.dumps', return_value='x')\n        cls.patcher.start()\n    @classmethod\n    def tearDownClass(cls): cls.patcher.stop()\n    def test_a(self): self.assertEqual(solution.dump(), 'x')\n    def test_b(self): self.assertEqual(solution.dump(), 'x')\n",
    "a builtin that the tests replace": "import builtins\nimport solution\nbuiltins.input = lambda *_: 'typed'\ndef test_a(): assert solution.ask() == 'typed'\n",
    "set-up once a module": "import pytest\nimport solution\nmade = []\n@pytest.fixture(scope='module', autouse=True)\ndef once():\n    made.append(1)\n    yield\ndef setup_module(): made.append(2)\n@pytest.mark.parametrize('n', range(30))\ndef test_a(n, tmp_path): assert sorted(made) == [1, 2] and solution.get() == 1\n",
    "a stop at the first failure": {"pytest.ini": "[pytest]\naddopts = -x --maxfail=1\n", "test_a.py": "import os\nimport solution\ndef test_a(): assert solution.get() == 1\ndef test_b(): assert solution.get() == 1\n"},
    "a conftest that counts": {"conftest.py": "import pytest\nseen = []\ndef pytest_runtest_logreport(report): seen.append(report.nodeid)\n@pytest.fixture(autouse=True)\ndef count(request): seen.append(request.node.name)\n", "test_a.py": "import os\nimport solution\ndef test_a(): assert solution.get() == 1\n"},
}  # fmt: skip
PATCHED = "import json\ndef get(): return 1\ndef twice(): return 2 * get()\ndef dump(): return json.dumps({})\ndef ask(): return input('?')\n"


@pytest.mark.parametrize("name", HONEST_BESIDE)
async def test_what_honest_tests_patch_is_no_tampering_and_no_canary_disturbs_them(sandbox, name):
    reply = await sandbox.tests(HONEST_BESIDE[name], PATCHED)
    assert (outcome(reply), isolation(reply)) == ("PASSED", TEST_ISOLATION_SHARED), reply.report
    assert checks(reply)["canaries"]


async def test_canaries_are_in_no_list_and_no_count(sandbox):
    tests = "import os\nfrom solution import get\ndef test_a(): assert get() == 1\ndef test_b(): assert get() == 2\n"
    reply = await sandbox.tests(tests, PATCHED)
    assert outcomes(reply) == {"test_a": "PASSED", "test_b": "FAILED"}
    assert (reply.report.counts.total, reply.report.counts.failed) == (2, 1)


async def test_a_test_that_vanishes_is_named(sandbox):
    tests = {
        "test_a.py": "import solution\ndef test_one(): pass\n",
        "test_b.py": "import os\ndef test_two(): pass\ndef test_three(): pass\n",
    }
    code = (
        "import sys, _pytest.main\nframe = sys._getframe()\nwhile frame:\n"
        "    for one in list(frame.f_locals.values()):\n"
        "        if isinstance(one, _pytest.main.Session): one.genitems = lambda node: iter(())\n"
        "    frame = frame.f_back\n"
    )
    reply = await sandbox.tests(tests, code, isolation=TEST_ISOLATION_SHARED)
    assert outcome(reply) == "INCOMPLETE", reply.report
    assert "test_b.py::test_two" in reply.report.reason
    assert not checks(reply)["expected_tests"]


async def test_in_a_session_the_code_s_cell_has_the_workspace_and_changes_it(sandbox):
    session = (await sandbox.stub.CreateSession(pb_sessions.CreateSessionRequest(), timeout=30)).session.id
    code = "def f():\n    with open('count.txt', 'a') as stream: stream.write('x')\n    return len(open('count.txt').read())\n"
    tests = "from solution import f\ndef test_it(): assert f() == {}\n"
    first = await sandbox.tests(tests.format(1), code, session=session)
    again = await sandbox.tests(tests.format(2), {}, session=session)
    for reply in (first, again):
        assert (outcome(reply), isolation(reply)) == ("PASSED", TEST_ISOLATION_SEPARATE), reply.report
