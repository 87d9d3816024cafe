"""What a workflow keeps outside its state: file sets, reports and executions, each under the SHA-256 of its content.

The encoding is canonical, so equal file sets have equal names whoever made them, and a name vouches for its content.
Where the bytes lie is the business of whoever implements `Artifacts`.
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from pydantic import ValidationError

from orchestrator.errors import ArtifactMissing
from orchestrator.workflows.plain import decode, encode
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
        return decode(kind, content)
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
