"""What a running service holds of the machine: memory, descriptors, processes, mounts, control groups."""

import re
from dataclasses import dataclass
from pathlib import Path

from support.footprint import Footprint, children, footprint

MIB = 1024 * 1024


@dataclass(frozen=True)
class Held:
    """At one moment, with no job running unless it is said: memory in bytes, the rest are counts."""

    service_bytes: int
    templates_bytes: int
    descriptors: int
    processes: int
    groups: int
    mounts: int
    files: int


def held(service: int, folder: Path) -> Held:
    """Looks at the service and its templates."""
    there: Footprint = footprint(service, folder)
    return Held(
        service_bytes=memory(service),
        templates_bytes=sum(memory(pid) for pid in templates(service)),
        descriptors=len(list(Path(f"/proc/{service}/fd").iterdir())),
        processes=len(there.processes),
        groups=len(there.groups),
        mounts=len(there.mounts),
        files=len(there.files),
    )


def templates(service: int) -> set[int]:
    """The processes that fork jobs: process 1 of each of the service's namespaces."""
    return {pid for child in children(service) for pid in children(child)}


def memory(pid: int) -> int:
    """Resident memory that is not a file's; zero where the process is gone."""
    try:
        match = re.search(r"^RssAnon:\s+([0-9]+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0


def leaks(before: Held, after: Held) -> list[str]:
    """What has grown, each in a sentence; empty where nothing has.

    Memory may grow by a tenth and 16 MiB, descriptors by 4: allocators keep what was freed, channels are opened again.
    """
    found = []
    for name in ("service_bytes", "templates_bytes"):
        old, new = getattr(before, name), getattr(after, name)
        if new > old * 1.1 + 16 * MIB:
            found.append(f"{name.removesuffix('_bytes')}: {old / MIB:.1f} MiB before, {new / MIB:.1f} MiB after")
    for name, spare in (("descriptors", 4), ("processes", 0), ("groups", 0), ("mounts", 0), ("files", 0)):
        old, new = getattr(before, name), getattr(after, name)
        if new > old + spare:
            found.append(f"{name}: {old} before, {new} after")
    return found
