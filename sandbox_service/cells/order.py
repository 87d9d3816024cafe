"""What a job looks like to the guest, and what the guest brings back: the job's memory file and its collected files."""

import fcntl
import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from sandbox_service.domain import File, Job, TestRun
from sandbox_service.errors import CellFailure
from sandbox_service.guest.collect import MAX_FILES, MAX_TOTAL_BYTES

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_MAX_HEADER_BYTES = 8 * 1024 * 1024  # two lists of 256 paths of 1,024 characters, each at most 12 bytes in JSON
_CELL_INODES = 16
"""Directories that every cell has; neither they nor what the caller gives count against the program's own."""
_SPARE_PROCESSES = 16
"""The rlimit lies this much above the control group's limit where there is one, so that the group, which counts its
hits, is met first."""


def header(
    job: Job, start: Mapping[str, Any], uid: int, *, memory_counted: bool
) -> tuple[dict[str, Any], Iterable[bytes]]:
    """The job's header as `guest.walls` and `guest.program` read it, and the bytes of its files."""
    tests = job.tests if isinstance(job, TestRun) else ()
    limits = job.limits
    described = {
        "uid": uid,
        "start": dict(start),
        "env": dict(job.env),
        "collect": list(job.collect),
        "files": [_entry(file) for file in job.files],
        "tests": [_entry(file) for file in tests],
        "limits": {
            "cpu_seconds": math.ceil(limits.cpu_time.total_seconds()),
            "file_bytes": limits.file_bytes,
            "open_files": limits.open_files,
            "rlimit_processes": limits.processes + (_SPARE_PROCESSES if memory_counted else 0),
            "address_space": 0 if memory_counted else limits.memory_bytes,
            "disk_bytes": limits.disk_bytes + sum(file.disk_bytes for file in tests),
            "inodes": limits.inodes + _CELL_INODES + sum(1 + file.path.count("/") for file in (*job.files, *tests)),
        },
    }
    return described, (file.content for file in (*job.files, *tests))


def _entry(file: File) -> dict[str, Any]:
    return {"path": file.path, "size": len(file.content), "executable": file.executable}


def memory_file(content: bytes) -> int:
    """A descriptor of a file in memory that nobody can change any more; the caller closes it."""
    descriptor = os.memfd_create("codemend-job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def collected(descriptor: int) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """Reads what `guest.collect.bring` wrote.

    Raises:
        CellFailure: it is not of that form, or over its caps.
    """
    size = os.fstat(descriptor).st_size
    if size > _MAX_HEADER_BYTES + MAX_TOTAL_BYTES:
        raise CellFailure(f"the cell brought {size} bytes of files")
    data = os.pread(descriptor, size, 0)
    try:
        length = int.from_bytes(data[:4], "big")
        listed = json.loads(data[4 : 4 + length])
        offset, files = 4 + length, []
        for path, count, executable in listed["files"][:MAX_FILES]:
            files.append(File(str(path), data[offset : offset + int(count)], bool(executable)))
            offset += int(count)
        return tuple(files), tuple(str(path) for path in listed["left_out"][:MAX_FILES])
    except (ValueError, TypeError, KeyError) as error:
        raise CellFailure(f"the cell brought files in a form that cannot be read: {error}") from error
