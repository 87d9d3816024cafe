"""What process 1 of a cell tells of its job, read as strictly as what a stranger sends, whatever way it came."""

import json
from collections.abc import Mapping
from typing import Any

_MOST_NS = 1 << 62
_MOST_SECONDS, _MOST_KIB = 1e7, 1 << 40
_MOST_LIMITS = 16
_FAULT_CHARS = 2000


def message(packet: bytes) -> Mapping[str, Any]:
    """One message.

    Raises:
        ValueError: it is no JSON object.
    """
    try:
        value = json.loads(packet)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - what came is data, not an argument
    return value


def fault(said: Mapping[str, Any]) -> str:
    """What went wrong in the cell, as told with `fault`."""
    return str(said["fault"])[:_FAULT_CHARS]


def start(said: Mapping[str, Any]) -> int:
    """When the program started, in nanoseconds of the cell's clock. Raises ValueError."""
    return _whole(said["started"], _MOST_NS)


def ending(said: Mapping[str, Any]) -> dict[str, Any]:
    """How the program ended: `status` (as of waitpid), `ended` (nanoseconds), `violation` and `met`.

    Raises:
        ValueError, TypeError, KeyError: no honest cell tells this.
    """
    return {
        "status": _whole(said["status"], 0xFFFF),
        "ended": _whole(said["ended"], _MOST_NS),
        "violation": [_whole(number, 1 << 32, -1) for number in list(said.get("violation") or ())[:2]],
        "met": [str(name)[:32] for name in list(said.get("met") or ())[:_MOST_LIMITS]],
    }


def usage(said: Mapping[str, Any]) -> dict[str, Any]:
    """What the job used and met: `cpu` (seconds), `peak_kib`, `disk_full` and `file_limit_met`. Raises as `ending`."""
    flags = {name: said.get(name) is True for name in ("disk_full", "file_limit_met")}
    return flags | {"cpu": _seconds(said["cpu"]), "peak_kib": _whole(said["peak_kib"], _MOST_KIB)}


def _whole(value: object, most: int, least: int = 0) -> int:
    if not isinstance(value, int) or not least <= value <= most:
        raise ValueError("a number out of range")
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, (int, float)) or not 0 <= value < _MOST_SECONDS:
        raise ValueError("a time out of range")
    return float(value)
