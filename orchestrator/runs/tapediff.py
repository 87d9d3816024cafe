"""Says in words how a replay's request differs from the one on the tape."""

import difflib
import json
from collections.abc import Mapping

from orchestrator.workflows import Plain

DETAIL_BYTES = 16 * 1024
_MOST_LINES = 2_000  # compared from the first difference on: time grows with the square of them, and 16 KiB end sooner
_CONTEXT_LINES = 3
MADE_WITH = "made_with"  # field of a request on the tape that does not decide its answer


def difference(kind: str, before: Plain, after: Plain) -> tuple[str, str]:
    """What differs, as "prompt", "parameters" or "sandbox job", and a unified diff of it, at most 16 KiB.

    Args:
        kind: of the answer that is asked for.
        before: the request on the tape.
        after: the replay's.
    """
    if kind != "model":
        return "sandbox job", _diff("job", _lines(before), _lines(after))
    old, new = _messages(before), _messages(after)
    if old != new:
        return "prompt", _diff("prompt", old, new)
    return "parameters", _diff("parameters", _lines(_rest(before)), _lines(_rest(after)))


def _rest(request: Plain) -> Plain:
    return {name: value for name, value in request.items() if name not in {"messages", MADE_WITH}}


def _messages(request: Mapping[str, Plain]) -> list[str]:
    lines: list[str] = []
    for message in request.get("messages", []):
        lines += [f"[{message.get('role', '')}]", *str(message.get("text", "")).split("\n")]
    return lines


def _lines(value: Plain) -> list[str]:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).split("\n")


def _diff(what: str, before: list[str], after: list[str]) -> str:
    names, shown = (f"recorded {what}", f"{what} now"), (before, after)
    if max(len(before), len(after)) > _MOST_LINES:
        pairs = enumerate(zip(before, after, strict=False))
        same = next((at for at, (one, two) in pairs if one != two), min(len(before), len(after)))
        start = max(0, same - _CONTEXT_LINES)
        names = (f"{names[0]}, from line {start + 1} on", f"{names[1]}, from line {start + 1} on")
        shown = (before[start : start + _MOST_LINES], after[start : start + _MOST_LINES])
    text = "\n".join(difflib.unified_diff(*shown, *names, n=_CONTEXT_LINES, lineterm=""))
    text = text or "they differ in what was taken out of the tape as secret"
    return text.encode("utf-8", "replace")[:DETAIL_BYTES].decode("utf-8", "ignore")
