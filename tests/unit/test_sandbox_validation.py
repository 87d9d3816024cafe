import posixpath
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_service.domain import DEFAULT_LIMITS, LIMIT_NAMES, MAXIMUM_LIMITS, MIB, File, Program, TestRun
from sandbox_service.errors import InvalidJob
from sandbox_service.validation import (
    LEAST_MEMORY_BYTES,
    Rules,
    Violations,
    check_files,
    check_program,
    check_test_run,
    path_fault,
    resolve_limits,
)

RULES = Rules(DEFAULT_LIMITS, MAXIMUM_LIMITS, languages=("python",), environments=("base",))
MAIN = File("main.py", b"print(1)")
PROGRAM = Program(DEFAULT_LIMITS, files=(MAIN,), entry="main.py")
RUN = TestRun(DEFAULT_LIMITS, files=(MAIN,), tests=(File("test_main.py", b""),))


def found_in(check, *arguments):
    found = Violations()
    check(*arguments, found)
    try:
        found.raise_any()
    except InvalidJob as error:
        return dict(error.violations)
    return {}


def program_faults(**changes):
    return found_in(check_program, replace(PROGRAM, **changes), "program", RULES)


def run_faults(**changes):
    return found_in(check_test_run, replace(RUN, **changes), RULES)


def test_a_plain_program_and_a_plain_test_run_are_accepted():
    assert program_faults() == {}
    assert program_faults(files=(), entry="", argv=("python3", "-c", "1")) == {}
    assert run_faults() == {}


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "required"),
        ("/etc/passwd", "absolute"),
        ("../up", "'..'"),
        ("a/../b", "'..'"),
        ("./a", "'.'"),
        ("a//b", "empty part"),
        ("a/", "empty part"),
        ("a\0b", "NUL"),
        ("\udcff", "surrogates"),
        ("x" * 256, "more than 255 bytes"),
        ("ü" * 128, "more than 255 bytes"),
        ("/".join(["x" * 200] * 6), "at most 1024"),
    ],
)
def test_a_path_that_leads_out_or_cannot_be_a_file_is_refused(path, reason):
    assert reason in path_fault(path)


@pytest.mark.parametrize(
    "path", ["a", "a/b.py", "..a", "a..", ".hidden", "x" * 255, "ü/漢字", "a b\n", "/".join("a" * 512)]
)
def test_an_unusual_path_that_stays_below_is_accepted(path):
    assert path_fault(path) == ""


PARTS = st.one_of(st.sampled_from(["", ".", "..", "a", "b", "...", "\0", "x" * 255, "x" * 256]), st.text(max_size=6))


@given(st.lists(PARTS, max_size=8).map("/".join))
def test_a_path_is_accepted_exactly_when_it_is_its_own_normal_form_below_the_root(path):
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        raw = None
    is_good = (
        raw is not None
        and 0 < len(raw) <= 1024
        and b"\0" not in raw
        and posixpath.normpath(path) == path
        and posixpath.join("/work", path) == f"/work/{path}"
        and path not in (".", "..")
        and not path.startswith("../")
        and max(len(part) for part in raw.split(b"/")) <= 255
    )
    assert (path_fault(path) == "") is is_good


@given(st.lists(st.lists(st.sampled_from(["a", "b", "c!", "c"]), min_size=1, max_size=3).map("/".join), max_size=8))
def test_files_are_accepted_exactly_when_a_disk_could_hold_them_all(paths):
    directories = {path[:end] for path in paths for end, letter in enumerate(path) if letter == "/"}
    could_hold = len(set(paths)) == len(paths) and not directories & set(paths)
    faults = found_in(check_files, [File(path, b"") for path in paths], "files")
    assert (faults == {}) is could_hold


def test_a_file_where_another_needs_a_directory_is_named_by_both_indexes():
    faults = found_in(check_files, [File("a/b/c", b""), File("a!", b""), File("a", b""), File("a/x", b"")], "files")
    assert faults == {
        "files[0].path": "'a/b/c' needs a directory where files[2] is a file",
        "files[3].path": "'a/x' needs a directory where files[2] is a file",
    }


def test_a_path_used_twice_is_named_by_both_indexes():
    faults = found_in(check_files, [MAIN, File("x", b""), MAIN], "program.files")
    assert faults == {"program.files[2].path": "'main.py' is the path of program.files[0] too"}


def test_all_violations_of_a_request_are_told_at_once():
    faults = program_faults(
        language="cobol",
        environment="moon",
        files=(File("/x", b""), File("..", b"")),
        entry="main.py",
        stdin=b"x" * (MIB + 1),
        env={"1X": ""},
        collect=("",),
    )
    assert set(faults) == {
        "program.language",
        "program.environment",
        "program.files[0].path",
        "program.files[1].path",
        "program.entry",
        "program.stdin",
        "program.env['1X']",
        "program.collect[0]",
    }


def test_an_unknown_language_or_environment_lists_those_that_are_known():
    rules = replace(RULES, languages=("python", "node"), environments=("base", "data"))
    faults = found_in(check_program, replace(PROGRAM, language="cobol", environment="x"), "program", rules)
    assert "node, python" in faults["program.language"]
    assert "base, data" in faults["program.environment"]


@pytest.mark.parametrize(
    ("changes", "field", "word"),
    [
        ({"entry": ""}, "program.start", "required"),
        ({"entry": "other.py"}, "program.entry", "'other.py'"),
        ({"entry": "", "argv": ("ls",), "args": ("-l",)}, "program.args", "not together"),
        ({"entry": "", "argv": ("",)}, "program.command.argv[0]", "required"),
        ({"entry": "", "argv": ("ls", "a\0b")}, "program.command.argv[1]", "NUL"),
        ({"entry": "", "argv": ("x",) * 1025}, "program.command.argv", "at most 1024"),
        ({"entry": "", "argv": ("x" * 131_073,)}, "program.command.argv", "at most 131072"),
        ({"args": ("\0",)}, "program.args[0]", "NUL"),
        ({"args": ("x",) * 1025}, "program.args", "at most 1024"),
        ({"stdin": b"x" * (MIB + 1)}, "program.stdin", "at most 1048576"),
        ({"env": {"LD_PRELOAD": "x"}}, "program.env['LD_PRELOAD']", "LD_"),
        ({"env": {"CODEMEND_X": "x"}}, "program.env['CODEMEND_X']", "CODEMEND_"),
        ({"env": {"A=B": "x"}}, "program.env['A=B']", "[A-Za-z_]"),
        ({"env": {"A": "x\0"}}, "program.env['A']", "NUL"),
        ({"env": {f"A{n}": "" for n in range(65)}}, "program.env", "at most 64"),
        ({"env": {"A": "x" * 32_768}}, "program.env", "at most 32768"),
        ({"collect": ("*",) * 33}, "program.collect", "at most 32"),
        ({"collect": ("x" * 1025,)}, "program.collect[0]", "at most 1024"),
        ({"files": (MAIN, *(File(f"{n}", b"") for n in range(4096)))}, "program.files", "at most 4096"),
        ({"files": (MAIN, File("big", b"x" * 3 * MIB))}, "program.files", "at most 3145728"),
        ({"limits": replace(DEFAULT_LIMITS, disk_bytes=4095)}, "program.limits.disk_bytes", "take 4096"),
    ],
)
def test_each_rule_names_its_field_and_its_limit(changes, field, word):
    faults = program_faults(**changes)
    assert list(faults) == [field]
    assert word in faults[field]


@pytest.mark.parametrize(
    "changes",
    [
        {"args": ("x" * 131_072,)},
        {"args": ("",) * 1024},
        {"stdin": b"x" * MIB},
        {"env": {"A": "x" * 32_767}},
        {"env": {f"A{n}": "" for n in range(64)}},
        {"collect": ("*",) * 32},
        {"files": (MAIN, File("big", b"x" * (3 * MIB - len(MAIN.content))))},
        {"limits": replace(DEFAULT_LIMITS, disk_bytes=4096)},
    ],
)
def test_exactly_at_its_limit_a_value_is_accepted(changes):
    assert program_faults(**changes) == {}


@pytest.mark.parametrize(
    ("changes", "field", "word"),
    [
        ({"tests": ()}, "tests", "at least one"),
        ({"tests": (File("../t.py", b""),)}, "tests[0].path", "'..'"),
        ({"tests": (File("test_a.py", b"x" * 3 * MIB),)}, "files", "at most 3145728"),
        ({"select": ("test_a.py::t",) * 1025}, "select", "at most 1024"),
        ({"select": ("x\0",)}, "select[0]", "NUL"),
        ({"select": ("x" * 1025,)}, "select[0]", "at most 1024"),
        ({"env": {"LD_X": ""}}, "env['LD_X']", "LD_"),
        ({"collect": ("",)}, "collect[0]", "empty"),
        ({"language": "x"}, "language", "python"),
    ],
)
def test_the_rules_hold_for_test_runs_too(changes, field, word):
    faults = run_faults(**changes)
    assert list(faults) == [field]
    assert word in faults[field]


def test_the_same_path_may_be_a_file_and_a_test():
    assert run_faults(tests=(MAIN,)) == {}


def test_limits_that_are_not_set_get_the_server_s_default():
    assert resolve_limits({}, "limits", RULES, Violations()) == DEFAULT_LIMITS
    asked = {"wall_time": timedelta(seconds=1), "processes": 3}
    expected = replace(DEFAULT_LIMITS, wall_time=timedelta(seconds=1), processes=3)
    assert resolve_limits(asked, "limits", RULES, Violations()) == expected


@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_a_limit_may_be_the_maximum_and_no_more_and_must_be_positive(name):
    maximum = getattr(MAXIMUM_LIMITS, name)
    least = timedelta(microseconds=1) if isinstance(maximum, timedelta) else 1
    if name == "memory_bytes":
        least = LEAST_MEMORY_BYTES

    def faults(value):
        return found_in(lambda found: resolve_limits({name: value}, "program.limits", RULES, found))

    assert faults(maximum) == {}
    assert faults(least) == {}
    assert "at most" in faults(maximum + least)[f"program.limits.{name}"]
    assert "positive" in faults(least - least)[f"program.limits.{name}"]
    assert "positive" in faults(-least)[f"program.limits.{name}"]


@given(st.text(), st.text(), st.dictionaries(st.text(), st.text(), max_size=3), st.lists(st.text(), max_size=3))
def test_whatever_text_arrives_the_answer_is_a_list_of_violations_that_can_be_sent(path, entry, env, args):
    faults = program_faults(files=(File(path, b""),), entry=entry, env=env, args=tuple(args))
    for field, text in faults.items():
        assert field.startswith("program.")
        assert len(text) < 300
        (field + text).encode()
