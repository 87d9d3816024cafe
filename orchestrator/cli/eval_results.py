"""The file of results: one JSON line a task, appended as tasks end; an interrupted evaluation goes on from it.

Each line carries a fingerprint of the task and of every setting that its result depends on: a line of other settings
is kept and not counted, and a line torn by a crash is cut off.
"""

import fcntl
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from codemend.orchestrator.v1 import runs_pb2
from pydantic import TypeAdapter, ValidationError

from orchestrator.cli import wording
from orchestrator.cli.errors import UsageFault

_NOT_FINAL = {"ERROR", "CANCELLED"}  # tried again by the next evaluation into the same file


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt: how it was asked for, and its verdict."""

    number: int
    strategy: str
    passed: bool
    tests_passed: int
    tests_total: int
    summary: str
    code_hash: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Record:
    """One task's result.

    Attributes:
        fingerprint: of the task and the settings.
        outcome: of the run; ERROR also where no run came about.
        code_hash: SHA-256 of the files delivered; empty where there are none.
        seconds: real time from creating the run to its result.
    """

    id: str
    fingerprint: str
    outcome: str
    reason: str = ""
    attempts: list[AttemptRecord] = field(default_factory=list)
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    code_hash: str = ""
    run_id: str = ""

    @property
    def final(self) -> bool:
        """Whether this is a verdict about the code; an error is none."""
        return self.outcome not in _NOT_FINAL

    @property
    def passed(self) -> bool:
        """Whether the task was solved."""
        return self.outcome == "PASSED"

    def passed_by(self, attempt: int) -> bool:
        """Whether an attempt numbered up to `attempt` passed."""
        return any(one.passed and one.number <= attempt for one in self.attempts)


_RECORD = TypeAdapter(Record)
_BEGINNING = b'{"id": "'  # of every line written here


def record_of(run: runs_pb2.Run, *, task_id: str, fingerprint: str, seconds: float) -> Record:
    """The record of a run that ended."""
    result = run.result
    hashes = {attempt.number: attempt.code_hash for attempt in result.attempts}
    return Record(
        id=task_id,
        fingerprint=fingerprint,
        outcome=wording.run_outcome(result.outcome),
        reason=result.reason,
        attempts=[
            AttemptRecord(
                number=one.number,
                strategy=one.strategy,
                passed=one.passed,
                tests_passed=one.tests_passed,
                tests_total=one.tests_total,
                summary=one.summary,
                code_hash=one.code_hash,
                seconds=round(one.duration.ToTimedelta().total_seconds(), 3),
            )
            for one in result.attempts
        ],
        model_calls=result.usage.model_calls,
        input_tokens=result.usage.input_tokens,
        output_tokens=result.usage.output_tokens,
        seconds=round(seconds, 3),
        code_hash=hashes.get(result.delivered_attempt, ""),
        run_id=run.run_id,
    )


class ResultFile:
    """The file, open for one evaluation; a second one is refused meanwhile.

    Args:
        path: made with its directories where it is missing.

    Raises:
        UsageFault: it cannot be opened, is in use, or is no file of results.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise UsageFault("--out", f"cannot write {str(path)!r}: {error.strerror or error}") from error
        try:
            self._lock()
            self._records = self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._file.close()

    def done(self, task_id: str, fingerprint: str) -> Record | None:
        """The newest verdict on this task under these settings."""
        return self._records.get((task_id, fingerprint))

    def append(self, record: Record) -> None:
        """Writes one record; it is in the file when this returns."""
        self._file.write(json.dumps(asdict(record), ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        self._file.flush()
        self._keep(self._records, record)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageFault("--out", f"another evaluation writes to {str(self.path)!r}") from None

    def _read(self) -> dict[tuple[str, str], Record]:
        self._file.seek(0)
        *lines, torn = self._file.read().split(b"\n")
        records: dict[tuple[str, str], Record] = {}
        for number, line in enumerate(lines, start=1):
            self._keep(records, self._parse(line, number))
        if torn and not torn.startswith(_BEGINNING[: len(torn)]):
            self._parse(torn, len(lines) + 1)  # not ours: refused, and left as it is
        if torn:
            self._file.truncate(sum(len(line) + 1 for line in lines))
        return records

    def _parse(self, line: bytes, number: int) -> Record:
        try:
            return _RECORD.validate_json(line)
        except ValidationError:
            raise UsageFault("--out", f"{str(self.path)!r} is no file of results: line {number} is no record") from None

    @staticmethod
    def _keep(records: dict[tuple[str, str], Record], record: Record) -> None:
        if record.final:
            records[record.id, record.fingerprint] = record
