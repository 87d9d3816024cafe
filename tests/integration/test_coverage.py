"""Coverage through the service: what the tests reached of the code under test, whatever that code does about it."""

import pytest
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import verdicts_pb2
from support.jobs import client, limits, outcome
from support.sandbox import sandbox_process

SOLUTION = """\
def sign(number):
    if number > 0:
        return "+"
    if number < 0:
        return "-"
    return ""


def unused(numbers):
    for number in numbers:
        print(number)
"""
TESTS = "from solution import sign\n\ndef test_sign():\n    assert sign(1) == '+'\n    assert sign(0) == ''\n"
SHARED = verdicts_pb2.TEST_ISOLATION_SHARED
EITHER = pytest.mark.parametrize(
    "isolation", [SHARED, verdicts_pb2.TEST_ISOLATION_SEPARATE], ids=["shared", "separate"]
)


@pytest.fixture(scope="module")
async def sandbox():
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="2") as service,
        client(service.address, service.process.pid) as made,
    ):
        yield made


async def covered(sandbox, tests=TESTS, solution=SOLUTION, *, isolation=SHARED, **fields) -> pb.RunTestsResponse:
    return await sandbox.tests(tests, solution, coverage=True, isolation=isolation, **fields)


def said(reply: pb.RunTestsResponse) -> str:
    return reply.execution.stderr.head.decode()


@EITHER
async def test_lines_and_branches_that_were_not_reached_are_told_for_each_file(sandbox, isolation):
    code = {"solution.py": SOLUTION, "pkg/deep/other.py": "x = 1\nif x:\n    y = 2\n", "data.txt": ""}
    reply = await covered(sandbox, solution=code, isolation=isolation)
    assert outcome(reply) == "PASSED", reply
    other, solution = reply.report.coverage
    assert (solution.path, solution.statements, list(solution.missing_lines)) == ("solution.py", 9, [5, 10, 11])
    assert (solution.branches, solution.missed_branches, solution.missing) == (6, 3, 3)
    arcs = [(arc.from_line, arc.to_line) for arc in solution.missing_branches]
    assert arcs == [(4, 5), (10, -9), (10, 11)]
    assert (other.path, other.statements, other.missing) == ("pkg/deep/other.py", 3, 3)
    assert list(other.missing_lines) == [1, 2, 3]


async def test_nothing_is_measured_that_was_not_asked_for(sandbox):
    reply = await sandbox.tests(TESTS, SOLUTION)
    assert (outcome(reply), list(reply.report.coverage)) == ("PASSED", [])
    assert reply.report.coverage_missing_reason == ""


async def test_a_failed_run_has_its_coverage_too(sandbox):
    reply = await covered(sandbox, TESTS + "\ndef test_wrong():\n    assert sign(1) == '-'\n")
    assert outcome(reply) == "FAILED"
    assert list(reply.report.coverage[0].missing_lines) == [5, 10, 11]


async def test_what_threads_run_counts(sandbox):
    tests = (
        "import threading, solution\ndef test_a():\n    thread = threading.Thread(target=solution.unused, args=[[1]])\n"
        "    thread.start(); thread.join()\n"
    )
    reply = await covered(sandbox, tests)
    assert list(reply.report.coverage[0].missing_lines) == [2, 3, 4, 5, 6]


async def test_tests_with_a_configuration_of_their_own_are_measured_too(sandbox):
    tests = {"test_solution.py": TESTS, "conftest.py": "import pytest\n"}
    reply = await covered(sandbox, tests, {"solution.py": SOLUTION})
    assert (outcome(reply), reply.report.coverage[0].missing) == ("PASSED", 3), reply


async def test_a_file_that_is_no_python_is_left_out_and_said_so(sandbox):
    reply = await covered(sandbox, solution={"solution.py": SOLUTION, "broken.py": "x = ("})
    assert (outcome(reply), [file.path for file in reply.report.coverage]) == ("PASSED", ["solution.py"])
    assert "codemend: coverage: " in said(reply)
    assert "broken.py" in said(reply)


async def test_modules_of_the_job_may_have_the_names_of_the_tool_s(sandbox):
    code = {"coverage.py": "value = 1\n", "xml_helper.py": "import coverage\nvalue = coverage.value\n"}
    tests = "import coverage, xml_helper\ndef test_a():\n    assert coverage.value == xml_helper.value == 1\n"
    reply = await covered(sandbox, tests, code)
    assert outcome(reply) == "PASSED", reply
    assert {file.path: file.missing for file in reply.report.coverage} == {"coverage.py": 0, "xml_helper.py": 0}


async def test_the_tool_is_no_package_of_the_job_s(sandbox):
    tests = "import importlib.util\ndef test_a():\n    assert importlib.util.find_spec('coverage') is None\n"
    assert outcome(await covered(sandbox, tests)) == "PASSED"


MEDDLING = {
    "no_tracer": "import sys\nsys.settrace(None)\n",
    "own_tracer": "import sys\nsys.settrace(lambda *a: None)\n",
    "broken_json": "import json\njson.dump = json.load = None\n",
    "broken_files": "import os\nos.scandir = os.unlink = None\n",
    "broken_warnings": "import warnings\nwarnings.warn = None\n",
    "no_temporary_files": "import tempfile\ntempfile.mkstemp = None\n",
    "emptied_modules": "import sys\nfor name in [n for n in sys.modules if 'sqlite' in n]: del sys.modules[name]\n",
    "changed_directory": "import os\nos.chdir('/tmp')\n",
    "deep": "x = " + "(" * 80 + "1" + ")" * 80 + "\n",
}


@pytest.mark.parametrize("kind", MEDDLING)
async def test_code_that_meddles_loses_its_coverage_at_most(sandbox, kind):
    code = MEDDLING[kind] + SOLUTION
    plain = await sandbox.tests(TESTS, code, isolation=SHARED)
    reply = await covered(sandbox, TESTS, code)
    assert outcome(reply) == outcome(plain), reply
    assert len(reply.report.coverage) == 1 or "codemend: coverage: " in said(reply)


async def test_a_file_that_is_gone_at_the_end_has_no_coverage(sandbox):
    reply = await covered(sandbox, TESTS, "import os\nos.unlink(__file__)\n" + SOLUTION)
    assert (outcome(reply), list(reply.report.coverage)) == ("PASSED", [])
    assert "no python file under test could be measured" in reply.report.coverage_missing_reason


async def test_too_much_source_is_left_out_within_bounds_of_time(sandbox):
    functions = "".join(
        f"def f{n}(a):\n    if a:\n        return {n}\n    return [x for x in range(a)]\n\n\n" for n in range(700)
    )
    code = {f"m{n:02}.py": functions for n in range(40)} | {"huge.py": functions * 4}
    reply = await covered(sandbox, "def test_a(): pass", code, limits=limits(wall_time=30))
    assert outcome(reply) == "PASSED", reply
    assert 0 < len(reply.report.coverage) < 40
    assert "huge.py is left out" in said(reply)
    assert "left out: too much to measure" in said(reply)
    assert reply.ByteSize() < 4 << 20


async def test_measuring_a_small_run_costs_less_than_two_seconds_more(sandbox):
    plain, measured = [], []
    for _ in range(5):
        plain.append((await sandbox.tests(TESTS, SOLUTION, isolation=SHARED)).execution.cpu_time.ToTimedelta())
        measured.append((await covered(sandbox)).execution.cpu_time.ToTimedelta())
    more = sorted(measured)[2] - sorted(plain)[2]
    print(f"processor time of a run: {sorted(plain)[2]}, with coverage {sorted(measured)[2]}")
    assert more.total_seconds() < 2
