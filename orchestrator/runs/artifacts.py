"""The artifact store on disk: one file an artifact, named by the SHA-256 of its content, written atomically.

Several processes may share a folder, since equal names mean equal contents. Reading checks the content against its
name.
"""

import asyncio
import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from orchestrator.errors import ArtifactError, ArtifactMissing, ArtifactTooLarge

MAXIMUM_BYTES = 64 * 1024 * 1024
_NAME = re.compile(r"[0-9a-f]{64}")
_THREADS = 4  # disk calls at one time; they block, so they have threads of their own

T = TypeVar("T")


class DirectoryStore:
    """Artifacts in a folder, which is made when it is not there. Close it at the end."""

    def __init__(self, root: Path, *, maximum_bytes: int = MAXIMUM_BYTES) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = root
        self._maximum_bytes = maximum_bytes
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="artifacts")

    async def put(self, content: bytes) -> str:
        """Keeps the bytes and gives back their name.

        Raises:
            ArtifactTooLarge: there are more of them than one artifact may have.
            ArtifactError: the disk did not take them.
        """
        if len(content) > self._maximum_bytes:
            raise ArtifactTooLarge(f"an artifact of {len(content)} bytes is over the limit of {self._maximum_bytes}")
        name = hashlib.sha256(content).hexdigest()
        await self._on_disk(lambda: self._write(self._path(name), content))
        return name

    async def get(self, name: str) -> bytes:
        """The bytes of that name.

        Raises:
            ArtifactMissing: they are not there, or are not what the name says.
            ArtifactError: the disk did not give them.
        """
        path = self._path(name)
        content = await self._on_disk(lambda: path.read_bytes() if path.is_file() else None)
        if content is None or hashlib.sha256(content).hexdigest() != name:
            raise ArtifactMissing(f"artifact {name} is missing or damaged")
        return content

    async def measure(self, age: timedelta, needed: frozenset[str] = frozenset()) -> tuple[int, int]:
        """How many there are that `prune` would delete, and how many bytes they have."""
        before = time.time() - age.total_seconds()
        sizes = await self._on_disk(lambda: [size for _, size in self._older(before, needed)])
        return len(sizes), sum(sizes)

    async def prune(self, age: timedelta, needed: frozenset[str] = frozenset()) -> int:
        """Deletes what nobody kept or kept again for that long, but for these; gives back how many there were."""
        before = time.time() - age.total_seconds()
        return await self._on_disk(lambda: self._delete_older(before, needed))

    def close(self) -> None:
        """Waits for the disk."""
        self._threads.shutdown()

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ArtifactMissing(f"{name[:80]!r} is no name of an artifact")
        return self._root / name[:2] / name

    async def _on_disk(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as error:
            raise ArtifactError(f"the artifact store failed: {error.strerror or error}") from error

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)  # kept again: young again
            if path.stat().st_size == len(content):
                return
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _older(self, before: float, needed: frozenset[str]) -> Iterator[tuple[Path, int]]:
        for path in self._root.glob("??/*"):
            if path.name in needed:
                continue
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                if found.st_mtime < before:
                    yield path, found.st_size

    def _delete_older(self, before: float, needed: frozenset[str]) -> int:
        count = 0
        for path, _ in self._older(before, needed):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                count += 1
        return count
