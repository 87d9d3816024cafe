"""Languages and environments without a cell: which files are tests, what lies beside them, how sets are read."""

import pytest

from sandbox_service.domain import DEFAULT_LIMITS, Entry, EntryKind, File, Program, TestRun
from sandbox_service.languages import (
    LANGUAGES,
    EnvironmentFault,
    installed,
    parse_environments,
    resolve,
)

NODE = LANGUAGES["node"]


def files(*paths: str) -> tuple[File, ...]:
    return tuple(File(path, b"") for path in paths)


def started(tests: tuple[str, ...], code: tuple[str, ...] = ()) -> dict:
    run = TestRun(DEFAULT_LIMITS, tests=files(*tests), files=files(*code), language="node")
    return dict(NODE.start_tests(run)[1])


@pytest.mark.parametrize(
    ("path", "is_test"),
    [
        ("a.test.js", True),
        ("a.test.mjs", True),
        ("a-test.cjs", True),
        ("a_test.js", True),
        ("a.spec.js", True),
        ("test.js", True),
        ("test-a.js", True),
        ("deep/er/a.test.js", True),
        ("test/anything.js", True),
        ("deep/test/anything.mjs", True),
        ("test/data.json", False),
        ("atest.js", False),
        ("testing.js", False),
        ("a.test.ts", False),
        ("a.test.js.txt", False),
        ("latest.js", False),
        ("helper.js", False),
    ],
)
def test_a_test_file_of_node_is_known_by_its_name(path, is_test):
    assert (path in started((path,))["test_files"]) is is_test


LINKS = [
    ((), ("a.js",), {"a.js": "/work/a.js"}),
    (("a.js",), ("a.js",), {}),
    (("t.test.js",), ("lib/x.js", "lib/y/z.js"), {"lib": "/work/lib"}),
    (("lib/t.test.js",), ("lib/x.js",), {"lib/x.js": "/work/lib/x.js"}),
    (("lib/t.test.js",), ("lib/y/z.js", "lib/y/w.js"), {"lib/y": "/work/lib/y"}),
    (("lib/y/t.js",), ("lib/y/z.js", "src/a.js"), {"lib/y/z.js": "/work/lib/y/z.js", "src": "/work/src"}),
    (("lib",), ("lib/x.js",), {}),
    (("lib/t.js",), ("lib",), {}),
]


@pytest.mark.parametrize(("tests", "code", "links"), LINKS)
def test_code_appears_beside_the_tests_and_never_in_the_place_of_one(tests, code, links):
    assert started(tests, code)["links"] == links


def test_files_of_a_session_appear_beside_the_tests_too():
    workspace = (Entry(b"src", EntryKind.DIRECTORY), Entry(b"src/a.js", EntryKind.FILE), Entry(b"l", EntryKind.LINK))
    run = TestRun(DEFAULT_LIMITS, tests=files("t.test.js"), language="node", workspace=workspace)
    assert NODE.start_tests(run)[1]["links"] == {"src": "/work/src", "l": "/work/l"}


def test_node_is_told_the_memory_limit_and_runs_the_entry_with_its_arguments():
    program = Program(DEFAULT_LIMITS, files=files("d/a.js"), entry="d/a.js", args=("x", "--y"), language="node")
    template, start = NODE.start_program(program)
    assert template == "python"
    assert start["argv"] == ["/opt/codemend/bin/node", "--max-old-space-size=512", "/work/d/a.js", "x", "--y"]


def test_an_argument_vector_is_run_as_it_is():
    program = Program(DEFAULT_LIMITS, argv=("node", "-e", "0"), language="node")
    assert NODE.start_program(program)[1]["argv"] == ["node", "-e", "0"]


def test_a_node_that_is_too_old_or_broken_is_not_offered(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "node" not in installed()
    fake = tmp_path / "node"
    fake.write_text("#!/bin/sh\necho v16.20.2\n")
    fake.chmod(0o755)
    assert "node" not in installed()
    fake.write_text("#!/bin/sh\nexit 3\n")
    assert "node" not in installed()
    fake.write_text("#!/bin/sh\necho v18.19.0\n")
    assert installed()["node"].version == "18.19.0"
    assert installed()["node"].commands == {"node": fake}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ["base"]),
        ("base", ["base"]),
        ("data", ["base", "data"]),
        (" base , data ", ["base", "data"]),
        ("science=numpy+pydantic", ["base", "science"]),
    ],
)
def test_environments_are_read_from_names(text, names):
    assert [environment.name for environment in parse_environments(text)] == names


def test_a_set_of_one_s_own_names_its_packages():
    assert list(parse_environments("mine=numpy + pydantic")[-1].distributions) == ["numpy", "pydantic"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing", "'nothing' is not known; known: base, data"),
        ("data,data", "'data' is there twice"),
        ("Data=numpy", "cannot be a name"),
        ("base=numpy", "choose another name"),
        ("mine=", "'' cannot be the name of a package"),
        ("mine=../x", "'../x' cannot be the name of a package"),
    ],
)
def test_a_wrong_environment_is_named(text, says):
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        parse_environments(text)


def test_an_environment_brings_what_its_packages_need():
    (base,) = parse_environments("")
    assert {"pytest", "_pytest", "pluggy", "pip"} <= {path.rpartition("/")[2] for path in resolve(base).paths}


def test_a_package_that_is_not_there_is_named_with_the_way_to_get_it():
    with pytest.raises(
        EnvironmentFault, match=r"environment mine: no-such-dist not installed.*pip install 'no-such-dist'"
    ):
        resolve(parse_environments("mine=pytest+no-such-dist")[-1])
