"""gVisor processes that an engine has lost: a start that fails can leave them behind, out of the engine's sight.

They are found on this machine by their command lines, which name the container; where the engine is on another machine
there is nothing to find, and nothing is done.
"""

import logging
import os
import re
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

_log = logging.getLogger(__name__)
_NAMES = ("runsc-sandbox", "runsc-gofer")
_BUNDLE = re.compile(r"--bundle[= ](\S*/([0-9a-f]{64}))(?:\s|$)")


def kill_sandboxes(identities: Collection[str]) -> int:
    """Kills gVisor's processes of these containers, which the engine no longer has; returns how many."""
    killed = 0
    for pid, _bundle, identity in _sandboxes():
        if identity in identities:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
    if killed:
        _log.warning("killed what containers had left behind", extra={"processes": killed})
    return killed


def without_bundle() -> set[str]:
    """Containers of gVisor processes whose bundle is gone, which no engine has while it knows the container."""
    return {identity for _pid, bundle, identity in _sandboxes() if not Path(bundle).exists()}


def _sandboxes() -> Iterator[tuple[int, str, str]]:
    """Process id, bundle and container of each of gVisor's processes."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue  # it has just ended
        found = _BUNDLE.search(line)
        if found and Path(line.split(" ", 1)[0]).name in _NAMES:
            yield int(entry.name), found[1], found[2]
