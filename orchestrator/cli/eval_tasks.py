"""Task sets: JSON lines, one task each, checked row by row before anything runs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from orchestrator.cli.errors import UsageFault

_ROWS_REPORTED = 20
_LONGEST_ID = 256


def _relative_paths(files: dict[str, str]) -> dict[str, str]:
    for path in files:
        parts = PurePosixPath(path)
        if not path or parts.is_absolute() or ".." in parts.parts or "\0" in path:
            raise ValueError(f"{path!r} is no relative path")
    return files


Files = Annotated[dict[str, str], AfterValidator(_relative_paths)]
SomeFiles = Annotated[Files, Field(min_length=1)]
Words = Annotated[str, Field(min_length=1)]


class Task(BaseModel):
    """One row of a task set.

    Attributes:
        files: what the author of a solution starts from.
        tests: trusted tests; they import the solution.
        reference: a right solution, laid over `files`.
        buggy: a wrong solution that the tests must refuse, laid over `files`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: Annotated[str, Field(min_length=1, max_length=_LONGEST_ID)]
    source: Words
    license: Words
    prompt: Words
    entry_point: str = ""
    files: Files = {}
    tests: SomeFiles
    reference: SomeFiles
    buggy: Files = {}
    notes: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of what a run of this task depends on."""
        return digest_of(
            {"prompt": self.prompt, "entry_point": self.entry_point, "files": self.files, "tests": self.tests}
        )


def digest_of(value: Mapping[str, object]) -> str:
    """SHA-256 of a value's canonical JSON, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def load_tasks(path: Path) -> list[Task]:
    """Reads a whole task set; empty lines are skipped.

    Raises:
        UsageFault: it cannot be read, holds no task, or has bad rows, each told with its line number and field.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UsageFault("DATA", f"cannot read {str(path)!r}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageFault("DATA", f"{str(path)!r} is no UTF-8 text: byte {error.start} cannot be decoded") from error
    tasks: dict[str, Task] = {}
    faults: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            task = Task.model_validate_json(line)
        except ValidationError as error:
            faults += [
                f"line {number}: {_place(detail['loc'])}{detail['msg']}" for detail in error.errors(include_url=False)
            ]
            continue
        if task.id in tasks:
            faults.append(f"line {number}: id: {task.id!r} stands on an earlier line too")
        tasks[task.id] = task
    if faults:
        more = [f"and {len(faults) - _ROWS_REPORTED} more"] if len(faults) > _ROWS_REPORTED else []
        raise UsageFault(
            "DATA",
            f"{str(path)!r} has bad rows:\n" + "\n".join(f"  {fault}" for fault in faults[:_ROWS_REPORTED] + more),
        )
    if not tasks:
        raise UsageFault("DATA", f"{str(path)!r} holds no task")
    return list(tasks.values())


def choose_tasks(tasks: Sequence[Task], *, ids: Sequence[str], limit: int | None) -> list[Task]:
    """The tasks named by `ids`, or all, and of these the first `limit`.

    Raises:
        UsageFault: an id is in no row.
    """
    known = {task.id: task for task in tasks}
    unknown = [name for name in ids if name not in known]
    if unknown:
        raise UsageFault("--ids", f"no task has the id {', '.join(repr(name) for name in unknown)}")
    chosen = [known[name] for name in dict.fromkeys(ids)] if ids else list(tasks)
    return chosen[:limit]


def _place(location: Sequence[int | str]) -> str:
    return f"{'.'.join(str(part) for part in location)}: " if location else ""
