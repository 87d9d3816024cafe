"""Languages, environments and coverage from the shell, with a real sandbox."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.cli import run_cli
from support.sandbox import running_sandbox

PYTHON = {
    "solution.py": "def sign(number):\n    if number < 0:\n        return '-'\n    return '+'\n",
    "test_solution.py": "from solution import sign\n\ndef test_sign():\n    assert sign(1) == '+'\n",
}
NODE = {
    "solution.js": "exports.double = (number) => number * 2;\n",
    "solution.test.js": "const test = require('node:test');\nconst assert = require('node:assert');\n"
    "const {double} = require('./solution');\ntest('double', () => assert.equal(double(2), 4));\n"
    "test('wrong', () => assert.equal(double(2), 5));\n",
}


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[str]:
    async with running_sandbox() as address:
        yield address


@pytest.fixture
def cli(sandbox, tmp_path):
    for name, text in (PYTHON | NODE).items():
        (tmp_path / name).write_text(text)

    async def run(*arguments, **options):
        return await run_cli(*arguments, cwd=tmp_path, env={"CODEMEND_SANDBOX_ADDRESS": sandbox}, **options)

    return run


@pytest.fixture
def node(require) -> None:
    require(shutil.which("node"), "node is not installed: apt-get install nodejs")


async def test_coverage_is_a_line_for_each_file(cli):
    done = await cli("test", "--solution", "solution.py", "--tests", "test_solution.py", "--coverage")
    assert done.code == 0, done
    assert "solution.py   75% of 4 lines, 50% of 2 branches; missed: 3" in done.out.splitlines()


async def test_no_coverage_is_shown_that_nobody_asked_for(cli):
    done = await cli("test", "--solution", "solution.py", "--tests", "test_solution.py")
    assert (done.code, "lines" in done.out) == (0, False)


async def test_why_there_is_no_coverage_is_told_where_it_was_asked_for(cli, tmp_path: Path):
    (tmp_path / "solution.py").write_text("import os\nos.unlink(__file__)\n" + PYTHON["solution.py"])
    asked = await cli("test", "--solution", "solution.py", "--tests", "test_solution.py", "--coverage")
    assert any(line.startswith("no coverage: no python file under test") for line in asked.out.splitlines()), asked
    plain = await cli("test", "--solution", "solution.py", "--tests", "test_solution.py")
    assert "no coverage" not in plain.out


async def test_coverage_is_in_the_json_too(cli):
    done = await cli("test", "--solution", "solution.py", "--tests", "test_solution.py", "--coverage", "--json")
    (file,) = json.loads(done.out)["report"]["coverage"]
    assert (file["path"], file["missing_lines"]) == ("solution.py", [3])


@pytest.mark.usefixtures("node")
async def test_javascript_is_run_by_node_without_a_word(cli, tmp_path: Path):
    (tmp_path / "a.mjs").write_text("console.log(process.argv.slice(2).join(), 6 * 7);\n")
    done = await cli("exec", "a.mjs", "--", "x", "y")
    assert (done.code, done.out) == (0, "x,y 42\n"), done


@pytest.mark.usefixtures("node")
async def test_tests_of_node_are_shown_like_all_others(cli):
    done = await cli("test", "--solution", "solution.js", "--tests", "solution.test.js")
    assert done.code == 1
    assert [line.split()[:2] for line in done.out.splitlines()[:2]] == [
        ["PASSED", "solution.test.js::double"],
        ["FAILED", "solution.test.js::wrong"],
    ]
    assert "left  = 4" in done.out
    assert "FAILED 1/2 tests" in done.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["exec", "solution.py", "--language", "cobol"], "program.language: 'cobol' is not known here"),
        (["exec", "solution.py", "--environment", "nothing"], "program.environment: 'nothing' is not known here"),
    ],
)
async def test_what_the_service_does_not_have_is_refused_with_what_it_has(cli, arguments, says):
    done = await cli(*arguments)
    assert done.code == 2
    assert says in done.err
