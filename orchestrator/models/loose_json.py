"""Finds the JSON in what a model says, and undoes the double encoding that some tool callers do."""

import json
from typing import Any

from orchestrator.models import fences

_MOST_STARTS = 64  # a reply with more opening braces than this before its JSON is no answer
_DEPTH = 32


def find(text: str) -> tuple[Any] | None:
    """The JSON value of a reply, in a tuple (it may be null): the whole text, a fenced block, or its first object."""
    blocks = [block.content for block in fences.scan(text)]
    for candidate in (text, *blocks):
        try:
            return (json.loads(candidate),)
        except (ValueError, RecursionError):
            continue
    decoder, start = json.JSONDecoder(), -1
    for _ in range(_MOST_STARTS):
        start = text.find("{", start + 1)
        if start < 0:
            break
        try:
            return (decoder.raw_decode(text, start)[0],)
        except (ValueError, RecursionError):
            continue
    return None


def decode_twice_encoded(value: Any, schema: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON is any value
    """`value` with every text decoded that stands where the schema wants an object or array, and no other."""
    return _decode(value, schema, schema, 0)


def _decode(value: Any, schema: dict[str, Any], root: dict[str, Any], depth: int) -> Any:  # noqa: ANN401
    wanted = _variants(schema, root, depth)
    types = {variant.get("type") for variant in wanted}
    if isinstance(value, str) and types & {"object", "array"} and "string" not in types:
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            return value
        value = decoded if isinstance(decoded, dict | list) else value
    if depth >= _DEPTH:
        return value
    if isinstance(value, dict):
        return {name: _decode(item, _member(wanted, name), root, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        items: dict[str, Any] = next(
            (variant["items"] for variant in wanted if isinstance(variant.get("items"), dict)), {}
        )
        return [_decode(item, items, root, depth + 1) for item in value]
    return value


def _member(variants: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for variant in variants:
        if isinstance(found := variant.get("properties", {}).get(name), dict):
            return found
        if isinstance(found := variant.get("additionalProperties"), dict):
            return found
    return {}


def _variants(schema: dict[str, Any], root: dict[str, Any], depth: int) -> list[dict[str, Any]]:
    """The schema with references followed and alternatives laid side by side."""
    if depth >= _DEPTH:
        return [schema]
    if isinstance(reference := schema.get("$ref"), str):
        target = root.get("$defs", {}).get(reference.rsplit("/", 1)[-1], {})
        return _variants(target, root, depth + 1)
    parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
    return [found for part in parts for found in _variants(part, root, depth + 1)] or [schema]
