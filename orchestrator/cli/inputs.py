"""What a caller gives on the command line, read and checked before any service is asked.

Sizes, times, the task's words, and files with the paths that they get in the sandbox. Every refusal names the option
and the limit.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from stat import S_ISREG

from codemend.rpc import AddressError, parse_address

from orchestrator.cli.errors import UsageFault

# The contract's own limits, checked here to spare a round trip and to name the option instead of the field.
MAX_FILES = 64
MAX_FILES_BYTES = 1024 * 1024
MAX_TEXT_BYTES = 64 * 1024
MAX_JOB_BYTES = 3 * 1024 * 1024
MAX_STDIN_BYTES = 1024 * 1024

_UNITS = {"": 1, "b": 1, "k": 1024, "kib": 1024, "m": 1024**2, "mib": 1024**2, "g": 1024**3, "gib": 1024**3}
_UNITS |= {"kb": 1000, "mb": 1000**2, "gb": 1000**3}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|m|h|)")
_TIME_UNITS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
_NODE_SUFFIXES = {".js", ".mjs", ".cjs"}
_LEFT_OUT = {"__pycache__", ".git", ".pytest_cache"}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as the sandbox gets it: `path` is relative, with `/` between its parts."""

    path: str
    content: bytes
    executable: bool = False


def parse_size(option: str, text: str) -> int:
    """Bytes of `256MiB`, `64k`, `1.5GiB`, `4096`.

    Raises:
        UsageFault: it is no size, or less than one byte.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise UsageFault(option, f"{text!r} is no size; write bytes or a number with a unit, such as 256MiB or 64k")
    size = int(float(match[1]) * _UNITS[match[2]])
    if size < 1:
        raise UsageFault(option, f"{text!r} is less than one byte")
    return size


def parse_time(option: str, text: str) -> timedelta:
    """Time of `30`, `1.5s`, `500ms`, `10min`, `1h`; a bare number is seconds.

    Raises:
        UsageFault: it is no time, not above zero, or more than a day.
    """
    match = _TIME.fullmatch(text.strip().lower())
    if match is None:
        raise UsageFault(option, f"{text!r} is no time; write seconds or a number with a unit, such as 30s or 10min")
    seconds = float(match[1]) * _TIME_UNITS[match[2]]
    if not 0 < seconds <= 24 * 3600:
        raise UsageFault(option, f"{text!r} is out of range; it must be above zero and at most 24h")
    return timedelta(seconds=seconds)


def language_of(paths: Iterable[str | Path]) -> str:
    """The language that the names of files speak for: "node" where all that say something are JavaScript, else ""."""
    suffixes = {Path(path).suffix for path in paths} - {"", ".json"}
    return "node" if suffixes and suffixes <= _NODE_SUFFIXES else ""


def check_address(option: str, address: str) -> None:
    """Refuses what no service can be reached at; empty is fine.

    Raises:
        UsageFault: it is neither host:port nor unix:/path.
    """
    if address:
        try:
            parse_address(address)
        except AddressError as error:
            raise UsageFault(option, str(error)) from error


def read_task(argument: str) -> str:
    """The task's words: the argument itself, the file after `@`, or stdin for `-`.

    Raises:
        UsageFault: the file cannot be read, is no UTF-8, or there is no word or too many in it.
    """
    if argument == "-":
        raw = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1)
    elif argument.startswith("@"):
        raw = _read("TASK", Path(argument[1:]), MAX_TEXT_BYTES)
    else:
        raw = argument.encode("utf-8", "surrogateescape")
    text = _text("TASK", raw)
    if not text.strip():
        raise UsageFault("TASK", "it is empty; say in words what the code must do")
    return text


def read_text(option: str, path: Path) -> str:
    """A UTF-8 text of at most 64 KiB.

    Raises:
        UsageFault: it cannot be read, is too large, or is no UTF-8.
    """
    return _text(option, _read(option, path, MAX_TEXT_BYTES))


def read_stdin_file(option: str, path: Path) -> bytes:
    """What a program reads on its stdin, at most 1 MiB; `-` is this process's own."""
    if str(path) != "-":
        return _read(option, path, MAX_STDIN_BYTES)
    content = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(content) > MAX_STDIN_BYTES:
        raise UsageFault(option, f"stdin holds more than {MAX_STDIN_BYTES} bytes")
    return content


def read_files(
    option: str, paths: Sequence[Path], *, max_files: int = MAX_FILES, max_bytes: int = MAX_FILES_BYTES
) -> list[SourceFile]:
    """Files by their names, and the files below each directory by their paths in it (hidden ones and caches left out).

    Raises:
        UsageFault: a path cannot be read, two files get one path, or there are too many files or bytes.
    """
    found: dict[str, SourceFile] = {}
    left = max_bytes
    for name, path in _walk(option, paths):
        if name in found:
            raise UsageFault(option, f"two files would both lie at {name!r} in the sandbox")
        if len(found) == max_files:
            raise UsageFault(option, f"more than {max_files} files are given; at most {max_files} are allowed")
        content = _read(option, path, left, whole=max_bytes)
        left -= len(content)
        found[name] = SourceFile(name, content, executable=bool(path.stat().st_mode & 0o100))
    return list(found.values())


def _walk(option: str, paths: Iterable[Path]) -> Iterable[tuple[str, Path]]:
    for path in paths:
        if not path.is_dir():
            yield path.name, path
            continue
        below = 0
        for entry in sorted(path.rglob("*")):
            parts = entry.relative_to(path).parts
            if entry.is_file() and not any(part.startswith(".") or part in _LEFT_OUT for part in parts):
                below += 1
                yield "/".join(parts), entry
        if below == 0:
            raise UsageFault(option, f"no file lies below the directory {str(path)!r}")


def _read(option: str, path: Path, limit: int, *, whole: int | None = None) -> bytes:
    try:
        if not S_ISREG(path.stat().st_mode) and not path.is_fifo():
            raise UsageFault(option, f"{str(path)!r} is no regular file")
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        raise UsageFault(option, f"cannot read {str(path)!r}: {error.strerror or error}") from error
    if len(content) > limit:
        together = (
            f"{str(path)!r} and the files before it hold" if whole not in {None, limit} else f"{str(path)!r} holds"
        )
        raise UsageFault(option, f"{together} more than {whole or limit} bytes")
    return content


def _text(option: str, raw: bytes) -> str:
    if len(raw) > MAX_TEXT_BYTES:
        raise UsageFault(option, f"it is longer than {MAX_TEXT_BYTES} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageFault(option, f"it is no UTF-8 text: byte {error.start} cannot be decoded") from error
