"""Peers from PyPI, each driven in a process of its own; they have an environment that the product never imports."""

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from bench.bare import IMAGES, NotHereError, Workplace
from bench.jobs import SCRIPT, TESTS
from bench.measure import Call, Contestant

PACKAGES = ("llm-sandbox[docker]", "swe-rex")
PEERS = {
    "llm-sandbox, bubblewrap": "namespaces and seccomp; no memory or process limit",
    "llm-sandbox, docker": "one container for all jobs",
    "swe-rex, local": "none",
}
_DRIVER = Path(__file__).with_name("peer_driver.py")
_INSTALL_SECONDS, _START_SECONDS = 240, 60


def environment(folder: Path) -> Path:
    """The interpreter that has the peers; makes its environment below `folder` where it is not there yet.

    Raises:
        NotHereError: the peers could not be installed.
    """
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, capture_output=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *PACKAGES],
            check=True, capture_output=True, timeout=_INSTALL_SECONDS, text=True,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        raise NotHereError(f"{' '.join(PACKAGES)} cannot be installed: {str(error.stderr).strip()[-200:]}") from error
    except subprocess.TimeoutExpired as error:
        raise NotHereError(f"{' '.join(PACKAGES)} were not installed in {_INSTALL_SECONDS} s") from error
    (folder / "complete").touch()
    return python


@contextlib.asynccontextmanager
async def peer(name: str, python: Path, place: Workplace) -> AsyncIterator[Contestant]:
    """Starts the peer's driver.

    Raises:
        NotHereError: the peer does not start here.
    """
    config = {
        "peer": name, "python": place.argv(SCRIPT)[0], "prefix": sys.base_prefix, "work": str(place.work),
        "packages": str(place.packages), "folder": str(place.folder), "images": IMAGES,
    }  # fmt: skip
    with (place.folder / f"{name.replace(', ', '-')}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            python, _DRIVER, json.dumps(config), stdin=-1, stdout=-1, stderr=log,
            env={**place.environment, "PYTHONPATH": str(_DRIVER.parents[1])}, cwd=place.folder,
        )  # fmt: skip
    driver = _Driver(process)
    try:
        await driver.ready()
        yield Contestant(name, PEERS[name], {job: driver.call(job) for job in (SCRIPT, TESTS)})
    finally:
        await driver.stop()


class _Driver:
    """The driver's process: lines `number job` go in, `number` and an error text or nothing come out, in any order."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), _START_SECONDS)
        except TimeoutError:
            raise NotHereError(f"it did not start in {_START_SECONDS} s") from None
        if line.strip() != b"ready":
            raise NotHereError(line.decode(errors="replace").strip() or "its driver ended without a word")
        self._reader = asyncio.create_task(self._read())

    def call(self, job: str) -> Call:
        async def one() -> None:
            assert self._process.stdin is not None
            number = next(self._numbers)
            answer = self._waiting[number] = asyncio.get_running_loop().create_future()
            self._process.stdin.write(f"{number} {job}\n".encode())
            if error := await answer:
                raise RuntimeError(error)

        return one

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            number, _, error = line.decode(errors="replace").partition(" ")
            if answer := self._waiting.pop(int(number), None):
                answer.set_result(error.strip())
        for answer in self._waiting.values():
            answer.set_result("its driver ended")

    async def stop(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 20)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        if self._reader is not None:
            await self._reader
