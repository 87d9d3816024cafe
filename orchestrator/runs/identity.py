"""Ids of runs, and what makes two requests the same."""

import hashlib
import secrets
from datetime import UTC, datetime
from typing import TypeVar

from orchestrator.workflows import RunSpec, encode

T = TypeVar("T")


def new_run_id(now: datetime) -> str:
    """An id that begins with its time, so that ids sort by age and tell it."""
    return f"run_{int(now.timestamp() * 1000):012x}{secrets.token_hex(8)}"


def created_at(run_id: str) -> datetime | None:
    """The time in a run's id; None where it is no such id."""
    digits = run_id.removeprefix("run_")[:12]
    try:
        return datetime.fromtimestamp(int(digits, 16) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def digest(spec: RunSpec) -> str:
    """Equal for equal requests."""
    return digest_of(RunSpec, spec)


def digest_of(kind: type[T], request: T) -> str:
    """The same for a request of another kind."""
    return hashlib.sha256(encode(kind, request)).hexdigest()
