"""Records as JSON text in a column, and back."""

from typing import TypeVar

from orchestrator.workflows import decode, encode

T = TypeVar("T")


def as_text(kind: type[T], value: T | None) -> str | None:
    """The record as text; None stays None."""
    return None if value is None else encode(kind, value).decode()


def from_text(kind: type[T], content: str | None) -> T | None:
    """Reads back what `as_text` wrote."""
    return None if content is None else decode(kind, content)
