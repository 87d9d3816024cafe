"""Checks of single fields: each adds a violation, the field's path and a sentence with the limit; none raises."""

import math
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import PurePosixPath

from codemend.sandbox.v1 import sandbox_pb2
from google.protobuf.duration_pb2 import Duration

from orchestrator.errors import InvalidRun
from orchestrator.workflows.sandbox import File, Limits

MAXIMUM_FILES = 64
MAXIMUM_FILE_BYTES = 1024 * 1024
MAXIMUM_PATH_BYTES = 1024
MAXIMUM_PART_BYTES = 255
_NANOS = 1_000_000_000


class Checker:
    """Gathers the violations of one request."""

    def __init__(self) -> None:
        self._violations: list[tuple[str, str]] = []

    def add(self, field: str, sentence: str) -> None:
        """One more violation."""
        self._violations.append((field, sentence))

    def raise_if_any(self) -> None:
        """Raises InvalidRun with all violations, where there are some."""
        if self._violations:
            raise InvalidRun(*self._violations)

    def text(self, field: str, value: str, *, characters: int = 0, size_bytes: int = 0) -> str:
        """A text of at most so many characters or UTF-8 bytes; zero: no such limit."""
        if characters and len(value) > characters:
            self.add(field, f"must have at most {characters} characters, not {len(value)}")
        if size_bytes and (size := len(value.encode())) > size_bytes:
            self.add(field, f"must have at most {size_bytes} bytes, not {size}")
        return value

    def number(self, field: str, value: int, *, least: int, most: int) -> int:
        """A number from `least` to `most`."""
        if not least <= value <= most:
            self.add(field, f"must be from {least} to {most}, not {value}")
        return value

    def temperature(self, field: str, value: float) -> float:
        """A temperature from 0 to 2."""
        if math.isnan(value) or not 0 <= value <= 2:  # noqa: PLR2004 - as the contract says
            self.add(field, f"must be from 0 to 2, not {value}")
        return value

    def duration(self, field: str, value: Duration, *, most: timedelta) -> timedelta | None:
        """A time of more than zero and at most `most`; None where it is not."""
        nanoseconds = value.seconds * _NANOS + value.nanos
        if nanoseconds < 1000 or nanoseconds > most.total_seconds() * _NANOS:  # noqa: PLR2004 - a timedelta's least
            self.add(field, f"must be more than 0 s and at most {most.total_seconds():g} s")
            return None
        return timedelta(microseconds=nanoseconds // 1000)

    def path(self, field: str, value: str) -> str:
        """A relative path, by the sandbox's rules."""
        parts = value.split("/")
        if not value:
            self.add(field, "is required")
        elif "\0" in value or any(part in {"", ".", ".."} for part in parts):
            self.add(field, f"must be a relative path without empty parts, `.`, `..` or NUL, not {value!r}")
        elif len(value.encode()) > MAXIMUM_PATH_BYTES or any(len(part.encode()) > MAXIMUM_PART_BYTES for part in parts):
            self.add(field, f"must have at most {MAXIMUM_PART_BYTES} bytes a part and {MAXIMUM_PATH_BYTES} in all")
        return value

    def files(self, field: str, messages: Sequence[sandbox_pb2.File]) -> tuple[File, ...]:
        """Files with proper paths, none twice and none inside another; at most 64 and 1 MiB."""
        if len(messages) > MAXIMUM_FILES:
            self.add(field, f"must have at most {MAXIMUM_FILES} files, not {len(messages)}")
        if (size := sum(len(message.content) for message in messages)) > MAXIMUM_FILE_BYTES:
            self.add(field, f"must have at most {MAXIMUM_FILE_BYTES} bytes in all, not {size}")
        seen: set[str] = set()
        for index, message in enumerate(messages):
            self.path(f"{field}[{index}].path", message.path)
            if message.path in seen:
                self.add(f"{field}[{index}].path", f"{message.path!r} is given twice")
            seen.add(message.path)
        for clash in sorted(seen & set(folders(seen))):
            self.add(field, f"{clash!r} is both a file and a folder")
        return tuple(File(message.path, message.content, message.executable) for message in messages)

    def limits(self, field: str, message: sandbox_pb2.Limits, *, most: timedelta) -> Limits:
        """Limits of more than zero; what the sandbox's maximum is, the sandbox says."""
        times = {
            name: self.duration(f"{field}.{name}", getattr(message, name), most=most)
            for name in ("wall_time", "cpu_time")
            if message.HasField(name)
        }
        numbers: dict[str, int] = {}
        for name in ("memory_bytes", "processes", "open_files", "output_bytes", "file_bytes", "disk_bytes"):
            if message.HasField(name):
                numbers[name] = getattr(message, name)
                if numbers[name] <= 0:
                    self.add(f"{field}.{name}", f"must be more than zero, not {numbers[name]}")
        return Limits(
            wall_time=times.get("wall_time"),
            cpu_time=times.get("cpu_time"),
            memory_bytes=numbers.get("memory_bytes"),
            processes=numbers.get("processes"),
            open_files=numbers.get("open_files"),
            output_bytes=numbers.get("output_bytes"),
            file_bytes=numbers.get("file_bytes"),
            disk_bytes=numbers.get("disk_bytes"),
        )


def folders(paths: Iterable[str]) -> Iterable[str]:
    """The folders that these paths need."""
    for path in paths:
        yield from (str(parent) for parent in PurePosixPath(path).parents if str(parent) not in {".", "/"})
