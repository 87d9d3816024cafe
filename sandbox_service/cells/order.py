"""What a job looks like to the guest, and what the guest brings back: the job's memory file and its collected files."""

import fcntl
import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from sandbox_service.domain import Entry, File, Job, TestRun
from sandbox_service.errors import CellFailure
from sandbox_service.guest.exchange.collect import MAX_FILES, MAX_TOTAL_BYTES

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_MAX_HEADER_BYTES = 8 * 1024 * 1024  # two lists of 256 paths of 1,024 characters, each at most 12 bytes in JSON
MAX_BROUGHT_BYTES = _MAX_HEADER_BYTES + MAX_TOTAL_BYTES
"""Of what a cell brings out for `collect`."""
_CELL_INODES = 16
"""Directories that every cell has; neither they nor what the caller gives count against the program's own."""
_SPARE_PROCESSES = 16
"""The rlimit lies this much above the control group's limit where there is one, so that the group, which counts its
hits, is met first."""


def header(
    job: Job, start: Mapping[str, Any], uid: int, *, memory_counted: bool
) -> tuple[dict[str, Any], Iterable[bytes]]:
    """The job's header as `guest.confinement.walls` and `guest.process.program` read it, and the bytes of its files."""
    tests = job.tests if isinstance(job, TestRun) else ()
    workspace = job.workspace or ()
    limits = job.limits
    described = {
        "uid": uid,
        "start": dict(start),
        "env": dict(job.env),
        "collect": list(job.collect),
        "workspace": [_workspace_entry(entry) for entry in workspace],
        "workspace_bytes": job.workspace_bytes,
        "files": [_entry(file) for file in job.files],
        "tests": [_entry(file) for file in tests],
        "limits": {
            "cpu_seconds": math.ceil(limits.cpu_time.total_seconds()),
            "file_bytes": limits.file_bytes,
            "open_files": limits.open_files,
            "processes": limits.processes,
            "rlimit_processes": limits.processes + (_SPARE_PROCESSES if memory_counted else 0),
            "address_space": 0 if memory_counted else limits.memory_bytes,
            "disk_bytes": limits.disk_bytes + sum(file.disk_bytes for file in tests),
            "inodes": limits.inodes
            + _CELL_INODES
            + len(workspace)
            + len(start.get("links", ()))
            + sum(1 + file.path.count("/") for file in (*job.files, *tests)),
        },
    }
    blobs = [*(entry.content for entry in workspace), *(file.content for file in (*job.files, *tests))]
    return described, blobs


def _entry(file: File) -> dict[str, Any]:
    return {"path": file.path, "size": len(file.content), "executable": file.executable}


def _workspace_entry(entry: Entry) -> dict[str, Any]:
    path = entry.path.decode("utf-8", "surrogateescape")
    return {"path": path, "kind": entry.kind, "size": len(entry.content), "executable": entry.executable}


def memory_file(*parts: bytes) -> int:
    """A descriptor of a file in memory that nobody can change any more; the caller closes it."""
    descriptor = os.memfd_create("codemend-job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(descriptor, view) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def collected(descriptor: int) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """Reads what `guest.exchange.collect.bring` wrote.

    Raises:
        CellFailure: it is not of that form, or over its caps.
    """
    size = os.fstat(descriptor).st_size
    if size > MAX_BROUGHT_BYTES:
        raise CellFailure(f"the cell brought {size} bytes of files")
    return read_collected(os.pread(descriptor, size, 0))


def read_collected(data: bytes) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """The same, of bytes. See `collected` for what it raises."""
    try:
        length = int.from_bytes(data[:4], "big")
        listed = json.loads(data[4 : 4 + length])
        offset, files = 4 + length, []
        for path, count, executable in listed["files"][:MAX_FILES]:
            end = _end(offset, int(count), len(data))
            files.append(File(_plain(str(path)), data[offset:end], bool(executable)))
            offset = end
        return tuple(files), tuple(str(path) for path in listed["left_out"][:MAX_FILES])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise CellFailure(f"the cell brought files in a form that cannot be read: {error}") from error


def _end(offset: int, count: int, size: int) -> int:
    if not 0 <= count <= size - offset:
        raise ValueError(f"{count} bytes of a file, of which {size - offset} came")
    return offset + count


def _plain(path: str) -> str:
    """A path that a file below a directory can have; callers write files under the names that they are told."""
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{path[:64]!r} is no path below the working directory")
    return path
