"""The contract's rules for what a caller may send, over the domain's values; all violations are collected.

Field paths are those of the request, such as `program.files[3].path`. Protobuf is not known here: `translation.py`
reads the messages.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sandbox_service.domain import LIMIT_NAMES, MIB, EntryKind, File, Limits, Program, TestIsolation, TestRun
from sandbox_service.errors import InvalidJob

MAXIMUM_PATH_BYTES = 1024
MAXIMUM_NAME_BYTES = 255
MAXIMUM_FILES = 4096
MAXIMUM_CONTENT_BYTES = 3 * MIB
MAXIMUM_ARGUMENTS = 1024
MAXIMUM_ARGUMENT_BYTES = 128 * 1024
MAXIMUM_STDIN_BYTES = MIB
MAXIMUM_VARIABLES = 64
MAXIMUM_VARIABLE_BYTES = 32 * 1024
MAXIMUM_PATTERNS = 32
MAXIMUM_SELECTED = 1024
MAXIMUM_NODE_ID_BYTES = 1024

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED_VARIABLES = ("LD_", "CODEMEND_")
_SHOWN = 64  # characters of a caller's own text in a message


@dataclass(frozen=True, slots=True)
class Rules:
    """What differs from server to server.

    Attributes:
        defaults: limits of a job that sets none.
        maximums: the most that a job may ask for.
        languages: names that `language` may have.
        environments: names that `environment` may have.
        shared_only: languages whose tests run in one process with the code under test, and not apart from it.
        not_covered: languages whose coverage is not measured.
    """

    defaults: Limits
    maximums: Limits
    languages: Collection[str]
    environments: Collection[str]
    shared_only: Collection[str] = ()
    not_covered: Collection[str] = ()


LEAST_MEMORY_BYTES = 16 * 1024 * 1024
"""A smaller limit could end the cell before its program starts."""


class Violations:
    """Collects what is wrong with one request."""

    def __init__(self) -> None:
        self._found: list[tuple[str, str]] = []

    def add(self, field: str, text: str) -> None:
        """One more: the field's path and a sentence that states the limit."""
        self._found.append((field, text))

    def raise_any(self) -> None:
        """Ends the check.

        Raises:
            InvalidJob: something was found.
        """
        if self._found:
            raise InvalidJob(*self._found)


def check_program(program: Program, field: str, rules: Rules, found: Violations) -> None:
    """Holds a program against the rules. Its limits are checked by `resolve_limits`."""
    _check_choice(program.language, f"{field}.language", rules.languages, found)
    _check_choice(program.environment, f"{field}.environment", rules.environments, found)
    check_files(program.files, f"{field}.files", found)
    _check_sizes(program.files, (), program.limits, field, found)
    _check_start(program, field, found)
    if len(program.stdin) > MAXIMUM_STDIN_BYTES:
        found.add(f"{field}.stdin", f"holds {len(program.stdin)} bytes; at most {MAXIMUM_STDIN_BYTES}")
    _check_env(program.env, f"{field}.env", found)
    check_patterns(program.collect, f"{field}.collect", found)


def check_test_run(run: TestRun, rules: Rules, found: Violations) -> None:
    """Holds a test run against the rules. Its limits are checked by `resolve_limits`."""
    _check_choice(run.language, "language", rules.languages, found)
    _check_choice(run.environment, "environment", rules.environments, found)
    if run.isolation is TestIsolation.SEPARATE and run.language in rules.shared_only:
        found.add("isolation", f"tests in {run.language} run in one process with the code under test; leave it unset")
    if run.coverage and run.language in rules.not_covered:
        found.add("coverage", f"is not measured for {run.language}")
    check_files(run.files, "files", found)
    check_files(run.tests, "tests", found)
    if not run.tests:
        found.add("tests", "required: at least one file")
    _check_sizes(run.files, run.tests, run.limits, "", found)
    if len(run.select) > MAXIMUM_SELECTED:
        found.add("select", f"holds {len(run.select)} node ids; at most {MAXIMUM_SELECTED}")
    for index, node_id in enumerate(run.select[:MAXIMUM_SELECTED]):
        _check_text(node_id, f"select[{index}]", MAXIMUM_NODE_ID_BYTES, found)
        if fault := path_fault(node_id.partition("::")[0]):
            found.add(f"select[{index}]", f"its file {fault}")
    _check_env(run.env, "env", found)
    check_patterns(run.collect, "collect", found)


def resolve_limits(requested: Mapping[str, timedelta | int], field: str, rules: Rules, found: Violations) -> Limits:
    """The limits of a job: what it asked for, and the server's default for the rest."""
    values: dict[str, Any] = {}
    for name in LIMIT_NAMES:
        value = values[name] = requested.get(name, getattr(rules.defaults, name))
        maximum = getattr(rules.maximums, name)
        if value <= type(value)():
            found.add(f"{field}.{name}", f"is {_show_limit(value)}; must be positive")
        elif name == "memory_bytes" and value < LEAST_MEMORY_BYTES:
            found.add(f"{field}.{name}", f"is {value}; a cell itself needs {LEAST_MEMORY_BYTES}")
        elif value > maximum:
            found.add(f"{field}.{name}", f"is {_show_limit(value)}; this server allows at most {_show_limit(maximum)}")
    return Limits(**values)


def check_files(files: Sequence[File], field: str, found: Violations) -> None:
    """Holds paths against the rules: each by itself, and all together as one tree."""
    if len(files) > MAXIMUM_FILES:
        found.add(field, f"holds {len(files)} files; at most {MAXIMUM_FILES}")
        return
    first_use: dict[str, int] = {}
    for index, file in enumerate(files):
        if reason := path_fault(file.path):
            found.add(f"{field}[{index}].path", reason)
        elif (other := first_use.setdefault(file.path, index)) != index:
            found.add(f"{field}[{index}].path", f"{_show(file.path)} is the path of {field}[{other}] too")
    parent = ""
    # NUL is in no path here and sorts before all else: what lies below a file follows it at once.
    for path in sorted(first_use, key=lambda path: path.replace("/", "\0")):
        if parent and path.startswith(f"{parent}/"):
            text = f"{_show(path)} needs a directory where {field}[{first_use[parent]}] is a file"
            found.add(f"{field}[{first_use[path]}].path", text)
        else:
            parent = path


def path_fault(path: str) -> str:
    """Why the path is refused; empty where it is not."""
    raw = _encoded(path)
    if raw is None:
        return "must be valid Unicode, without lone surrogates"
    parts = raw.split(b"/")
    faults = (
        (not raw, "required"),
        (len(raw) > MAXIMUM_PATH_BYTES, f"has {len(raw)} bytes; at most {MAXIMUM_PATH_BYTES}"),
        (b"\0" in raw, "must not contain NUL"),
        (raw.startswith(b"/"), f"{_show(path)} is absolute; must be relative to the working directory"),
        (
            any(part in (b"", b".", b"..") for part in parts),
            f"{_show(path)} has an empty part, '.' or '..'; must name a file below the working directory",
        ),
        (
            any(len(part) > MAXIMUM_NAME_BYTES for part in parts),
            f"{_show(path)} has a part of more than {MAXIMUM_NAME_BYTES} bytes",
        ),
    )
    return next((text for is_wrong, text in faults if is_wrong), "")


def _check_choice(value: str, field: str, known: Collection[str], found: Violations) -> None:
    if value not in known:
        found.add(field, f"{_show(value)} is not known here; this server has {', '.join(sorted(known))}")


def _check_sizes(files: Sequence[File], tests: Sequence[File], limits: Limits, parent: str, found: Violations) -> None:
    prefix = f"{parent}." if parent else ""
    total = sum(len(file.content) for file in (*files, *tests))
    laid_out = sum(file.disk_bytes for file in files)
    if total > MAXIMUM_CONTENT_BYTES:
        found.add(f"{prefix}files", f"all files together hold {total} bytes; at most {MAXIMUM_CONTENT_BYTES}")
    elif laid_out > limits.disk_bytes > 0:
        found.add(f"{prefix}limits.disk_bytes", f"is {limits.disk_bytes}, and the files alone take {laid_out} bytes")


def _check_start(program: Program, field: str, found: Violations) -> None:
    if program.argv:
        _check_arguments(program.argv, f"{field}.command.argv", found)
        if not program.argv[0]:
            found.add(f"{field}.command.argv[0]", "required: a program")
        if program.args:
            found.add(f"{field}.args", "not together with command: put the arguments into argv")
    elif not program.entry:
        found.add(f"{field}.start", "required: an entry, or a command with at least one argument")
    elif all(program.entry != file.path for file in program.files) and not _is_in_workspace(program):
        where = "the files" if program.workspace is None else "the files or of the session's"
        found.add(f"{field}.entry", f"{_show(program.entry)} is not the path of one of {where}")
    _check_arguments(program.args, f"{field}.args", found)


def _is_in_workspace(program: Program) -> bool:
    path = _encoded(program.entry)
    found = (entry.kind for entry in program.workspace or () if entry.path == path)
    return any(kind is not EntryKind.DIRECTORY for kind in found)


def _check_arguments(arguments: Sequence[str], field: str, found: Violations) -> None:
    if len(arguments) > MAXIMUM_ARGUMENTS:
        found.add(field, f"holds {len(arguments)} arguments; at most {MAXIMUM_ARGUMENTS}")
        return
    total = 0
    for index, argument in enumerate(arguments):
        total += _check_text(argument, f"{field}[{index}]", None, found)
    if total > MAXIMUM_ARGUMENT_BYTES:
        found.add(field, f"holds {total} bytes; at most {MAXIMUM_ARGUMENT_BYTES}")


def _check_env(env: Mapping[str, str], field: str, found: Violations) -> None:
    if len(env) > MAXIMUM_VARIABLES:
        found.add(field, f"holds {len(env)} variables; at most {MAXIMUM_VARIABLES}")
        return
    total = 0
    for name, value in sorted(env.items()):
        entry = f"{field}[{_show(name)}]"
        if not _VARIABLE.fullmatch(name):
            found.add(entry, "a name must match [A-Za-z_][A-Za-z0-9_]*")
        elif name.startswith(_RESERVED_VARIABLES):
            found.add(entry, "names that begin with LD_ or CODEMEND_ are refused")
        total += len(name.encode("utf-8", "replace")) + _check_text(value, entry, None, found)
    if total > MAXIMUM_VARIABLE_BYTES:
        found.add(field, f"holds {total} bytes; at most {MAXIMUM_VARIABLE_BYTES}")


def check_patterns(patterns: Sequence[str], field: str, found: Violations) -> None:
    """Holds patterns of paths against the rules."""
    if len(patterns) > MAXIMUM_PATTERNS:
        found.add(field, f"holds {len(patterns)} patterns; at most {MAXIMUM_PATTERNS}")
        return
    for index, pattern in enumerate(patterns):
        if not pattern:
            found.add(f"{field}[{index}]", "must not be empty")
        _check_text(pattern, f"{field}[{index}]", MAXIMUM_PATH_BYTES, found)


def _check_text(text: str, field: str, maximum: int | None, found: Violations) -> int:
    """Holds a text against what a process can be given, and returns its bytes."""
    raw = _encoded(text)
    if raw is None:
        found.add(field, "must be valid Unicode, without lone surrogates")
        return 0
    if b"\0" in raw:
        found.add(field, "must not contain NUL")
    if maximum is not None and len(raw) > maximum:
        found.add(field, f"has {len(raw)} bytes; at most {maximum}")
    return len(raw)


def _encoded(text: str) -> bytes | None:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _show(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def _show_limit(value: timedelta | int) -> str:
    return f"{value.total_seconds():g} s" if isinstance(value, timedelta) else str(value)
