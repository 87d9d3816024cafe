"""From a conclusion to a result: the attempt to deliver, its stored files, and the diff from what was given."""

import asyncio
import difflib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from orchestrator.runs.states import RunResult
from orchestrator.workflows import Artifacts, Conclusion, Progress, load_files
from orchestrator.workflows.sandbox import File

DIFF_FILE_BYTES = 128 * 1024  # a larger file is only said to differ: comparing takes time with the square of the lines
DIFF_BYTES = 256 * 1024  # of all diffs together; the files after that are only said to differ
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="diff")  # comparing large files must not hold the event loop


async def result_of(
    conclusion: Conclusion,
    progress: Progress,
    given: Iterable[File],
    artifacts: Artifacts,
    node_time: Mapping[str, timedelta],
) -> RunResult:
    """The result of a run that ended so, with the time that its nodes took.

    Raises:
        ArtifactError: the delivered files cannot be read back.
    """
    attempt = progress.find(conclusion.delivered)
    diff_hash = ""
    if attempt is not None:
        files = await load_files(artifacts, attempt.code_hash)
        text = await asyncio.get_running_loop().run_in_executor(_THREAD, diff, tuple(given), files)
        diff_hash = await artifacts.put(text.encode("utf-8", "surrogatepass")) if text else ""
    return RunResult(
        outcome=conclusion.outcome,
        reason=conclusion.reason,
        delivered_attempt=conclusion.delivered,
        files_hash=attempt.code_hash if attempt is not None else "",
        report_hash=attempt.report_hash if attempt is not None else "",
        execution_hash=attempt.execution_hash if attempt is not None else "",
        diff_hash=diff_hash,
        attempts=tuple(progress.attempts),
        usage=progress.usage,
        node_time=node_time,
    )


def diff(before: Iterable[File], after: Iterable[File]) -> str:
    """Unified diff, file by file, as `patch -p1` takes it. What is no text, or too large, is only said to differ."""
    old = {file.path: file.content for file in before}
    new = {file.path: file.content for file in after}
    pieces: list[str] = []
    size = 0
    for path in sorted(old.keys() | new.keys()):
        if old.get(path) == new.get(path):
            continue
        piece = _file_diff(path, old.get(path), new.get(path))
        if size + len(piece) > DIFF_BYTES:
            piece = _differs(path)
        size += len(piece)
        pieces.append(piece)
    return "".join(pieces)


def _differs(path: str) -> str:
    return f"Files a/{path} and b/{path} differ\n"


def _file_diff(path: str, old: bytes | None, new: bytes | None) -> str:
    if max(len(old or b""), len(new or b"")) > DIFF_FILE_BYTES:
        return _differs(path)
    try:
        lines = (_lines(old), _lines(new))
    except UnicodeDecodeError:
        return _differs(path)
    names = (f"a/{path}" if old is not None else "/dev/null", f"b/{path}" if new is not None else "/dev/null")
    rows = difflib.unified_diff(*lines, *names)
    return "".join(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows)


def _lines(content: bytes | None) -> list[str]:
    """Lines as `diff` sees them: ended by LF alone, with CR and form feed as part of them."""
    text = (content or b"").decode()
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
