"""What a person changes in a run, read from the command line: values of its state, files, prompts, answers."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from codemend.orchestrator.v1 import debug_pb2
from codemend.sandbox.v1 import sandbox_pb2

from orchestrator.cli import inputs
from orchestrator.cli.errors import UsageFault

_SHOWN = 80  # characters of an argument that an error repeats
MAX_VALUES_BYTES = 1024 * 1024  # the contract's own limit


def read_edit(
    sets: Sequence[str], values_file: Path | None, files: Sequence[str], as_node: str
) -> debug_pb2.StateEdit | None:
    """The change that the options ask for; None where they ask for none.

    Raises:
        UsageFault: an option cannot be read, or two of them contradict each other.
    """
    values = _values_of_file(values_file) if values_file is not None else {}
    for one in sets:
        path, equals, text = one.partition("=")
        if not (path and equals):
            raise UsageFault("--set", f"{one[:_SHOWN]!r} is not FIELD=VALUE, such as plan.note=text")
        _put(values, path.split("."), _value(text))
    laid_over = [_file(one) for one in files]
    if not (values or laid_over):
        if as_node:
            raise UsageFault("--as-node", "it needs a change: --set, --values or --file")
        return None
    values_json = json.dumps(values, ensure_ascii=False) if values else ""
    return debug_pb2.StateEdit(values_json=values_json, files=laid_over, as_node=as_node)


def read_prompts(given: Iterable[str]) -> dict[str, str]:
    """Prompts by their names, from NAME=@FILE or NAME=TEXT.

    Raises:
        UsageFault: one cannot be read, or a name is there twice.
    """
    found: dict[str, str] = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not (name and equals and text):
            raise UsageFault("--prompt", f"{one[:_SHOWN]!r} is not NAME=@FILE or NAME=TEXT")
        if name in found:
            raise UsageFault("--prompt", f"{name!r} is given twice")
        found[name] = inputs.read_text("--prompt", Path(text[1:])) if text.startswith("@") else text
    return found


def read_answers(given: Iterable[str]) -> dict[str, str]:
    """Answers as JSON by the ids of their interrupts, from ID=VALUE; what is no JSON is taken as text.

    Raises:
        UsageFault: one cannot be read, or an id is there twice.
    """
    found: dict[str, str] = {}
    for one in given:
        interrupt_id, equals, text = one.partition("=")
        if not (interrupt_id and equals):
            raise UsageFault("--answer", f"{one[:_SHOWN]!r} is not ID=VALUE")
        if interrupt_id in found:
            raise UsageFault("--answer", f"{interrupt_id!r} is given twice")
        found[interrupt_id] = json.dumps(_value(text), ensure_ascii=False)
    return found


def read_labels(option: str, given: Iterable[str]) -> dict[str, str]:
    """Labels from KEY=VALUE.

    Raises:
        UsageFault: one is not of that form, or a key is there twice.
    """
    found: dict[str, str] = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not (key and equals):
            raise UsageFault(option, f"{one[:_SHOWN]!r} is not KEY=VALUE")
        if key in found:
            raise UsageFault(option, f"{key!r} is given twice")
        found[key] = value
    return found


def _values_of_file(path: Path) -> dict[str, Any]:
    (file,) = inputs.read_files("--values", [path], max_files=1, max_bytes=MAX_VALUES_BYTES)
    try:
        values = json.loads(file.content)
    except ValueError as error:
        raise UsageFault("--values", f"{str(path)!r} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageFault("--values", f"{str(path)!r} holds no JSON object")
    return values


def _value(text: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    try:
        return json.loads(text)
    except ValueError:
        return text


def _put(values: dict[str, Any], path: Sequence[str], value: object) -> None:
    """Puts a value at its place below `values`. Raises UsageFault where something else lies there."""
    *above, last = path
    field = ".".join(path)
    if not all(path):
        raise UsageFault("--set", f"{field[:_SHOWN]!r} has an empty part")
    for part in above:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise UsageFault("--set", f"{field[:_SHOWN]!r} lies below a field that is given whole")
    if last in values:
        raise UsageFault("--set", f"{field[:_SHOWN]!r} is given twice")
    values[last] = value


def _file(given: str) -> sandbox_pb2.File:
    path, equals, source = given.partition("=")
    if not (path and equals and source.startswith("@") and len(source) > 1):
        raise UsageFault("--file", f"{given[:_SHOWN]!r} is not PATH=@FILE, such as solution.py=@fix.py")
    if Path(source[1:]).is_dir():
        raise UsageFault("--file", f"{source[1:]!r} is a directory")
    (file,) = inputs.read_files("--file", [Path(source[1:])], max_files=1)
    return sandbox_pb2.File(path=path, content=file.content, executable=file.executable)
