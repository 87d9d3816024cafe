"""What a workflow keeps outside its state: file sets, reports and executions, each under the SHA-256 of its content.

The encoding is canonical, so equal file sets have equal names whoever made them, and a name vouches for its content.
Where the bytes lie is the business of whoever implements `Artifacts`.
"""

import json
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import ArtifactMissing
from orchestrator.workflows.sandbox import File

T = TypeVar("T")


class Artifacts(Protocol):
    """A store of bytes by their SHA-256, in hex."""

    async def put(self, content: bytes) -> str:
        """Keeps the bytes and gives back their name. Raises ArtifactTooLarge."""
        ...

    async def get(self, name: str) -> bytes:
        """The bytes of that name, checked against it. Raises ArtifactMissing."""
        ...


_adapters: dict[Any, TypeAdapter[Any]] = {}  # making one takes milliseconds


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def encode(kind: type[T], value: T) -> bytes:
    """A dataclass as canonical JSON."""
    plain = _adapter(kind).dump_python(value, mode="json")
    return json.dumps(plain, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()


async def save(store: Artifacts, kind: type[T], value: T) -> str:
    """Keeps a dataclass and gives back its name."""
    return await store.put(encode(kind, value))


async def load(store: Artifacts, kind: type[T], name: str) -> T:
    """Reads back what `save` kept.

    Raises:
        ArtifactMissing: it is not there, or is something else.
    """
    content = await store.get(name)
    try:
        return _adapter(kind).validate_json(content)
    except ValidationError as error:
        raise ArtifactMissing(f"artifact {name} holds no {kind}") from error


FileSet = tuple[File, ...]


async def save_files(store: Artifacts, files: Iterable[File]) -> str:
    """Keeps a set of files, whatever their order, and gives back its name: the hash of the code."""
    return await save(store, FileSet, tuple(sorted(files, key=lambda file: file.path)))


async def load_files(store: Artifacts, name: str) -> FileSet:
    """The files of that name, in order of path."""
    return await load(store, FileSet, name)


def overlay(below: Iterable[File], above: Iterable[File]) -> FileSet:
    """Both sets of files in one, `above` in the place of files of the same path; in order of path."""
    merged = {file.path: file for file in [*below, *above]}
    return tuple(merged[path] for path in sorted(merged))
