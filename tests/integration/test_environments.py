"""Environments through the service: each job has the packages of its own and of no other, ready at once."""

import importlib.util

import grpc
import pytest
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1.verdicts_pb2 import TEST_ISOLATION_SEPARATE
from support.jobs import client, outcome
from support.sandbox import sandbox_process

PACKAGES = "import os; print(sorted(name for name in os.listdir('/opt/codemend/packages') if 'info' not in name))"
BASE = {"_pytest", "iniconfig", "packaging", "pip", "pluggy", "pygments", "pytest"}


@pytest.fixture(scope="module")
async def sandbox(require):
    require(importlib.util.find_spec("pandas"), "numpy and pandas are not installed: pip install 'codemend[data]'")
    async with (
        sandbox_process(SANDBOX_ENVIRONMENTS="data, mine=rich", SANDBOX_CONCURRENCY="2") as service,
        client(service.address, service.process.pid) as made,
    ):
        yield made


async def test_capabilities_name_the_environments(sandbox):
    reply = await sandbox.stub.GetCapabilities(pb.GetCapabilitiesRequest(), timeout=10)
    assert list(reply.environments) == ["base", "data", "mine"]


@pytest.mark.parametrize(
    ("environment", "more"),
    [
        ("", set()),
        ("base", set()),
        ("data", {"numpy", "pandas", "dateutil"}),
        ("mine", {"rich", "markdown_it", "mdurl"}),
    ],
)
async def test_a_job_sees_the_packages_of_its_environment_and_no_others(sandbox, environment, more):
    ran = await sandbox.python(PACKAGES, environment=environment)
    seen = set(eval(ran.out))
    assert BASE | more <= seen
    others = {"numpy", "pandas", "rich", "grpc", "pydantic", "coverage"} - more
    assert not others & seen
    found = await sandbox.python(
        f"import importlib.util as u; print([n for n in {sorted(others)} if u.find_spec(n)])", environment=environment
    )
    assert found.out == b"[]\n", found.told()
    mounts = await sandbox.python("print(open('/proc/self/mounts').read())", environment=environment)
    assert all(name in more for name in ("numpy", "pandas") if f"/packages/{name} ".encode() in mounts.out)


async def test_numpy_and_pandas_are_there_before_the_job_is(sandbox):
    code = """
import time
began = time.perf_counter()
import numpy, pandas
took = time.perf_counter() - began
assert took < 0.01, took
assert pandas.DataFrame({"a": [1, 2]}).a.sum() == 3
assert numpy.linalg.inv(numpy.eye(300) * 2)[0, 0] == 0.5
import os, threading
assert len(os.listdir("/proc/self/task")) == threading.active_count() == 1
assert os.environ["OPENBLAS_NUM_THREADS"] == os.environ["OMP_NUM_THREADS"] == "1"
"""
    ran = await sandbox.python(code, environment="data")
    assert ran.status == "SUCCEEDED", ran.told()


async def test_an_interpreter_that_is_started_anew_finds_the_packages_too(sandbox):
    code = "import numpy, pandas, os; print(pandas.Series([1, 2]).sum(), len(os.listdir('/proc/self/task')))"
    ran = await sandbox.command("python", "-c", code, environment="data")
    assert (ran.status, ran.out) == ("SUCCEEDED", b"3 1\n"), ran.told()


async def test_random_numbers_of_two_jobs_differ_and_a_seed_repeats_them(sandbox):
    code = "import numpy, random; print(numpy.random.rand(), random.random())"
    first, second = [(await sandbox.python(code, environment="data")).out for _ in range(2)]
    assert not set(first.split()) & set(second.split())
    code = "import numpy; numpy.random.seed(7); print(numpy.random.rand())"
    first, second = [(await sandbox.python(code, environment="data")).out for _ in range(2)]
    assert first == second == b"0.07630828937395717\n"


async def test_a_module_of_the_job_s_own_hides_a_package_as_it_does_in_bare_python(sandbox):
    ran = await sandbox.python("import numpy; print(numpy.mine)", more={"numpy.py": "mine = 1"}, environment="data")
    assert ran.out == b"1\n", ran.told()


async def test_modules_under_test_hide_packages_and_what_these_have_loaded(sandbox):
    code = {"numpy.py": "mine = 1", "calendar.py": "mine = 2", "pandas/__init__.py": "mine = 3"}
    tests = """
import calendar, numpy, pandas

def test_each():
    assert (numpy.mine, calendar.mine, pandas.mine) == (1, 2, 3)
"""
    reply = await sandbox.tests(tests, code, environment="data", isolation="TEST_ISOLATION_SHARED")
    assert outcome(reply) == "PASSED", reply


async def test_packages_cannot_be_written_to(sandbox):
    code = "import numpy, os\ntry: open(numpy.__file__, 'w')\nexcept OSError as error: print(error.errno)"
    ran = await sandbox.python(code, environment="data")
    assert ran.out in (b"30\n", b"13\n"), ran.told()


async def test_tests_run_with_the_packages_of_their_environment(sandbox):
    tests = """
import numpy as np
import pandas as pd
from solution import mean

def test_mean():
    assert mean(pd.DataFrame({"a": [1.0, 3.0]})) == {"a": 2.0}

def test_array():
    np.testing.assert_allclose(np.array([1.0]), [1.0])

def test_wrong():
    np.testing.assert_array_equal(np.array([1, 2]), [1, 3])
"""
    solution = "def mean(frame): return frame.mean().to_dict()"
    reply = await sandbox.tests(tests, solution, environment="data")
    cases = [pb.TestOutcome.Name(case.outcome).removeprefix("TEST_OUTCOME_") for case in reply.report.tests]
    assert (outcome(reply), cases) == ("FAILED", ["PASSED", "PASSED", "FAILED"]), reply
    reply = await sandbox.tests("import numpy", {}, environment="base")
    assert outcome(reply) == "ERROR"
    assert "numpy" in reply.report.collection_errors[0].failure.message


@pytest.mark.parametrize("method", ["program", "tests"])
async def test_an_unknown_environment_is_refused_with_the_names_of_all(sandbox, method):
    call = sandbox.python if method == "program" else sandbox.tests
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call("def test_a(): pass", environment="nothing")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "environment: 'nothing' is not known here; this server has base, data, mine" in caught.value.details()


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("mine=no-such-dist", "environment mine: no-such-dist not installed; to mend it: pip install 'no-such-dist'"),
        ("nothing", "SANDBOX_ENVIRONMENTS"),
    ],
)
async def test_the_service_does_not_start_with_what_it_cannot_offer(setting, says):
    with pytest.raises(AssertionError, match="the service ended") as caught:
        async with sandbox_process(SANDBOX_ENVIRONMENTS=setting):
            pass
    assert says in str(caught.value)


async def test_numbers_of_numpy_s_own_cross_to_tests_as_plain_ones(sandbox):
    code = """
import numpy as np

def total(xs): return np.array(xs).sum()
def each(xs): return list(np.array(xs) * 2)
def ok(): return np.True_
"""
    tests = """
from solution import each, ok, total

def test_it(): assert (total([1, 2]), each([1]), ok(), total([0.5])) == (3, [2], True, 0.5)
"""
    reply = await sandbox.tests(tests, code, environment="data")
    assert outcome(reply) == "PASSED", reply.report
    assert reply.report.integrity.isolation == TEST_ISOLATION_SEPARATE
