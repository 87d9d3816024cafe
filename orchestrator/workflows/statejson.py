"""A state as canonical JSON: what is shown of it and what is compared of it, and the state back from that."""

import json
from collections.abc import Mapping
from typing import Any, get_type_hints

from orchestrator.workflows.plain import as_plain, canonical, of_plain
from orchestrator.workflows.state import CodegenState

PREVIEW_CHARS = 200
FIELDS: Mapping[str, Any] = get_type_hints(CodegenState)
"""The type of each field of a state."""


def state_json(values: Mapping[str, Any]) -> str:
    """The state as canonical JSON: equal states have equal texts, byte for byte."""
    return canonical({name: as_plain(FIELDS[name], value) for name, value in values.items() if name in FIELDS})


def read_state(text: str) -> dict[str, Any]:
    """The state back from its JSON. Raises pydantic.ValidationError where a value is none of today's state."""
    return {name: of_plain(FIELDS[name], value) for name, value in json.loads(text).items() if name in FIELDS}


def field_sizes(values: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of each field as JSON."""
    return {name: len(text) for name, text in _field_texts(values)}


def field_previews(values: Mapping[str, Any]) -> dict[str, str]:
    """The beginning of each field as JSON."""
    return {name: text[:PREVIEW_CHARS] for name, text in _field_texts(values)}


def _field_texts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, canonical(as_plain(FIELDS[name], value))) for name, value in values.items() if name in FIELDS]
