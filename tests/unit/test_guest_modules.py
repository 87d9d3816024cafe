"""The guest's modules alone: what they import, which files they bring back, how an exit code is made."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_service import guest
from sandbox_service.guest.exchange import collect
from sandbox_service.guest.process import program
from sandbox_service.guest.testing.tampering import _WATCHED as WATCHED

GUEST = Path(guest.__file__).parent
MODULES = sorted(GUEST.rglob("*.py"))
PYTEST_TOO = {"reporter.py", "outcomes.py", "tampering.py", "canaries.py", "guarding.py"}


def imported(path: Path) -> set[str]:
    """Full names of the modules that a file imports, at its top or deeper."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(node.module)
    return names


def test_there_are_modules_to_look_at():
    assert len(MODULES) >= 50


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(GUEST)))
def test_a_guest_module_imports_the_standard_library_the_guest_and_nothing_else(path):
    allowed = sys.stdlib_module_names | ({"pytest", "_pytest"} if path.name in PYTEST_TOO else set())
    foreign = {name for name in imported(path) if name.partition(".")[0] not in allowed}
    assert {name for name in foreign if not name.startswith("sandbox_service.guest")} == set()


@pytest.mark.parametrize("name", sorted(name for name in WATCHED if name.startswith("sandbox_service.")))
def test_a_module_of_the_guest_that_is_watched_for_tampering_is_there(name):
    assert importlib.util.find_spec(name)


MATCHES = [
    ("a.txt", ["*.txt"], True),
    ("a.txt", ["*.py"], False),
    ("a.txt", ["*.py", "a.*"], True),
    ("a.txt", [], False),
    ("d/a.txt", ["*.txt"], False),
    ("d/a.txt", ["*/*.txt"], True),
    ("d/a.txt", ["d/*"], True),
    ("d/e/a.txt", ["d/*"], False),
    ("d/e/a.txt", ["d/**"], True),
    ("a.txt", ["**"], True),
    ("a.txt", ["**/*.txt"], True),
    ("d/e/a.txt", ["**/*.txt"], True),
    ("d/e/a.txt", ["d/**/a.txt"], True),
    ("d/a.txt", ["d/**/a.txt"], True),
    ("d/e/f/a.txt", ["**/e/**/a.*"], True),
    ("d/f/a.txt", ["**/e/**/a.*"], False),
    ("A.txt", ["a.txt"], False),
    ("a1.txt", ["a[0-9].txt"], True),
    ("ab.txt", ["a[!0-9].txt"], True),
    ("ab.txt", ["a?.txt"], True),
    ("a.txt", ["a?.txt"], False),
    (".hidden", ["*"], True),
    ("a.txt", ["/a.txt"], False),
    ("a**b", ["a**b"], True),
    ("a\nb", ["a*"], True),
]


@pytest.mark.parametrize(("path", "patterns", "expected"), MATCHES)
def test_a_pattern_s_star_stays_within_a_directory_and_two_stars_do_not(path, patterns, expected):
    assert collect.matches(path, patterns) is expected


parts = st.lists(st.text("ab.", min_size=1, max_size=3), min_size=1, max_size=4)


@given(parts)
def test_every_path_matches_itself_and_everything(path):
    text = "/".join(path)
    assert collect.matches(text, [text])
    assert collect.matches(text, ["**"])
    assert collect.matches(text, ["/".join("*" for _ in path)])
    assert not collect.matches(text, ["/".join("*" for _ in [*path, ""])])


@pytest.mark.parametrize(
    ("code", "status"), [(None, 0), (0, 0), (1, 1), (255, 255), (256, 0), (-1, 255), (True, 1), (False, 0)]
)
def test_an_exit_code_is_the_one_of_bare_python(code, status):
    assert program._exit_status(code) == status


@pytest.mark.parametrize("code", ["text", "", [], 1.5, object()])
def test_an_exit_code_of_another_type_is_printed_and_is_one(code, capsys):
    assert program._exit_status(code) == 1
    assert capsys.readouterr().err == f"{code}\n"
