"""The sandbox service with a record of its idempotency keys: `python -m support.recording_sandbox`, as a real process.

Each work that begins or ends under a key is a line in the file that RECORD names, written before anything else happens,
so that a test can tell how often a job ran whatever became of its caller.
"""

import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import Message

from sandbox_service import server
from sandbox_service.__main__ import main
from sandbox_service.idempotency import IdempotencyKeys, Scope
from sandbox_service.settings import Settings
from support.service import service_process

_TESTS = Path(__file__).parents[1]


class RecordedKeys(IdempotencyKeys[Message]):
    """Keys that write down what is begun and what has come to a result."""

    def __init__(self, descriptor: int, keys: IdempotencyKeys[Message]) -> None:
        self.__dict__.update(keys.__dict__)
        self._descriptor = descriptor

    async def once(self, scope: Scope, key: str, fingerprint: bytes, work: Callable[[], Awaitable[Message]]) -> Message:
        """See `IdempotencyKeys.once`."""

        async def recorded() -> Message:
            self._write("began", key)
            result = await work()
            self._write("ended", key)
            return result

        return await super().once(scope, key, fingerprint, recorded)

    def _write(self, what: str, key: str) -> None:
        os.write(self._descriptor, f"{what} {key}\n".encode())


@dataclass(frozen=True)
class RecordingSandbox:
    """A service that serves, and what it has written down."""

    address: str
    record: Path

    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """How often work was begun, and how often it came to a result, by key."""
        lines = [line.partition(" ") for line in self.record.read_text().splitlines()]
        began = Counter(key for what, _, key in lines if what == "began")
        return began, Counter(key for what, _, key in lines if what == "ended")


@asynccontextmanager
async def recording_sandbox(folder: Path, **env: str) -> AsyncIterator[RecordingSandbox]:
    """Starts one whose record lies in the folder. `env` are variables such as SANDBOX_CONCURRENCY."""
    record = folder / "record"
    record.touch()
    path = os.pathsep.join(filter(None, [str(_TESTS), os.environ.get("PYTHONPATH", "")]))
    given = {"RECORD": str(record), "PYTHONPATH": path, **env}
    arguments = ["--address", "127.0.0.1:0"]
    async with service_process("support.recording_sandbox", arguments, given, without=("SANDBOX_",)) as service:
        yield RecordingSandbox(service.address, record)


def _serve() -> None:
    descriptor = os.open(os.environ["RECORD"], os.O_WRONLY | os.O_APPEND)
    make_keys = server.make_keys

    def recorded_keys(settings: Settings) -> IdempotencyKeys[Message]:
        return RecordedKeys(descriptor, make_keys(settings))

    server.make_keys = recorded_keys
    sys.exit(main())


if __name__ == "__main__":
    _serve()
