"""Checks of single fields: each adds a violation, the field's path and a sentence with the limit; none raises."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import timedelta
from pathlib import PurePosixPath

from codemend.sandbox.v1 import sandbox_pb2
from google.protobuf.duration_pb2 import Duration

from orchestrator.errors import InvalidRun
from orchestrator.workflows import RunSpec
from orchestrator.workflows.sandbox import Capabilities, File, Limits

MAXIMUM_FILES = 64
MAXIMUM_FILE_BYTES = 1024 * 1024
MAXIMUM_PATH_BYTES = 1024
MAXIMUM_PART_BYTES = 255
MAXIMUM_TENANT_BYTES = 128
MAXIMUM_ID = 256
_NANOS = 1_000_000_000
_TENANT = re.compile(rf"[A-Za-z0-9._-]{{0,{MAXIMUM_TENANT_BYTES}}}")


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
        """A text without NUL, of at most so many characters or UTF-8 bytes; zero: no such limit."""
        if "\0" in value:  # no database of text keeps it
            self.add(field, "must not hold NUL")
        if characters and len(value) > characters:
            self.add(field, f"must have at most {characters} characters, not {len(value)}")
        if size_bytes and (size := len(value.encode())) > size_bytes:
            self.add(field, f"must have at most {size_bytes} bytes, not {size}")
        return value

    def id(self, field: str, value: str, *, required: bool = True) -> str:
        """An id, a name or a token of ours that a caller gives back."""
        if required and not value:
            self.add(field, "is required")
        return self.text(field, value, characters=MAXIMUM_ID)

    def json(self, field: str, value: str, *, size_bytes: int) -> str:
        """A JSON text of at most so many UTF-8 bytes."""
        if len(self.text(field, value, size_bytes=size_bytes).encode()) > size_bytes:
            return value  # what is too large is not looked into
        try:
            json.loads(value)
        except (ValueError, RecursionError) as error:
            self.add(field, f"must be JSON: {error}")
        return value

    def tenant(self, field: str, value: str) -> str:
        """The name of a tenant, by the sandbox's rules; may be empty."""
        if not _TENANT.fullmatch(value):
            self.add(field, f"must be at most {MAXIMUM_TENANT_BYTES} bytes of [A-Za-z0-9._-]")
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


def check_offered(spec: RunSpec, offered: Capabilities, at: str = "spec.options") -> None:
    """Holds a run against what the sandbox offers, so that it is refused here and not at its first execution.

    Args:
        spec: what the run is made from.
        offered: by the sandbox.
        at: where the options are in the request.

    Raises:
        InvalidRun: its environment is none of the sandbox's, or its limits are over what a job may ask for.
    """
    check, options = Checker(), spec.options
    if options.environment and offered.environments and options.environment not in offered.environments:
        known = ", ".join(offered.environments)
        check.add(f"{at}.environment", f"the sandbox has no {options.environment[:80]!r}; it has: {known}")
    for limit in fields(Limits):
        asked, most = getattr(options.limits, limit.name), getattr(offered.maximums, limit.name)
        if asked is not None and most is not None and asked > most:
            check.add(
                f"{at}.limits.{limit.name}",
                f"must be at most {_shown(most)}, as the sandbox allows, not {_shown(asked)}",
            )
    check.raise_if_any()


def _shown(limit: timedelta | int) -> str:
    return f"{limit.total_seconds():g} s" if isinstance(limit, timedelta) else str(limit)


def folders(paths: Iterable[str]) -> Iterable[str]:
    """The folders that these paths need."""
    for path in paths:
        yield from (str(parent) for parent in PurePosixPath(path).parents if str(parent) not in {".", "/"})
