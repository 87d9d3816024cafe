"""How large a case may be: as large as a run can get that was asked for within the limits of requests, and no larger.

A run has at most 100 attempts of three steps each, one more step at each end, and what edits add to that. Whoever
imports or plays a case can rely on these limits; what they save is the time and memory of everybody else.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from gc import disable, enable, isenabled

from orchestrator.workflows import Plain

MAXIMUM_STEPS = 2_000  # 100 attempts take 302; edits that go back and try again may make more of it
MAXIMUM_UPDATES = 200  # each is one edit that somebody made by hand
MAXIMUM_ENTRIES = 4_000  # 100 attempts have 200 answers, and 100 limits or races at most
MAXIMUM_ARTIFACTS = 1_000  # code, report and execution of 100 attempts, and the code that edits brought
MAXIMUM_ARTIFACT_BYTES = 16 * 1024 * 1024
MAXIMUM_NAME = 128  # of a case, a node, an entry of the tape
MAXIMUM_NEXT = 64  # nodes that come after a step
MAXIMUM_LINE_BYTES = 32 * 1024 * 1024
MAXIMUM_VALUES = 600_000  # JSON values of a line: 100 attempts make 450,000, as every step has the whole state
MAXIMUM_KEYS = 10_000  # different names of fields, of which records have a few hundred: each new one costs the most
MAXIMUM_TEXT = (
    6 * 1024 * 1024
)  # characters: what programs printed comes in a message of 4 MiB, and base64 is a third more
_MOST_FIELDS = 32  # of an entry or a step: a handful is known, and each other one would be an error of its own
_MOST_VALUES = 4_000  # of a part that has no states: a request's files, tests, labels and prompts are a few hundred
_KEY = re.compile(rb'"([^"]*)"\s*:')
_KEY_BYTES = 64  # names that end alike in so many bytes count as one

Faults = list[tuple[str, str]]
"""Fields, and a sentence with the limit for each."""


def too_many(*, path: int, updates: int, tape: int, expected: int, artifacts: int) -> Faults:
    """What of a case's counts is over its limit."""
    counts = (
        ("path", path, MAXIMUM_STEPS, "steps"),
        ("path", updates, MAXIMUM_UPDATES, "steps whose source is an update"),
        ("tape", tape, MAXIMUM_ENTRIES, "entries"),
        ("expectation.path", expected, MAXIMUM_STEPS, "nodes"),
        ("artifacts", artifacts, MAXIMUM_ARTIFACTS, "artifacts"),
    )
    return [
        (field, f"must have at most {most} {what}, not {count}") for field, count, most, what in counts if count > most
    ]


def check_raw(raw: bytes) -> str:
    """Why a line is not to be parsed at all, which takes time and memory by the number of its values; empty: it may be.

    What looks like a value or a name within a text is counted as well.
    """
    if (values := raw.count(b",") + raw.count(b"[") + raw.count(b"{")) > MAXIMUM_VALUES:
        return f"must have at most {MAXIMUM_VALUES} commas and brackets, not {values}"
    if raw.count(b":") > MAXIMUM_KEYS:
        keys: set[bytes] = set()
        for found in _KEY.finditer(raw):
            keys.add(found[1][-_KEY_BYTES:])
            if len(keys) > MAXIMUM_KEYS:
                return f"must have at most {MAXIMUM_KEYS} different names of fields"
    return ""


def unreadable(plain: Plain) -> Faults:
    """What of a case as JSON has more parts than its limits allow, of those for which each part would be an error.

    Args:
        plain: the case, whatever it is.
    """
    if not isinstance(plain, dict):
        return []
    parts = {name: plain.get(name) for name in ("path", "tape", "artifacts")}
    path, tape, artifacts = (part if isinstance(part, list | dict) else [] for part in parts.values())
    expectation = plain.get("expectation")
    expected = expectation.get("path") if isinstance(expectation, dict) else []
    faults = too_many(
        path=len(path),
        updates=sum(isinstance(step, dict) and step.get("source") == "update" for step in path),
        tape=len(tape),
        expected=len(expected) if isinstance(expected, list) else 0,
        artifacts=len(artifacts),
    )
    for name in ("path", "tape"):
        faults += _faults_of_items(name, parts[name])
    for name, part in plain.items():
        if name not in parts and _is_over(part, _MOST_VALUES):
            faults.append((name[:MAXIMUM_NAME], f"must hold at most {_MOST_VALUES} values"))
    if len(plain) > _MOST_FIELDS:
        faults.append(("", f"must have at most {_MOST_FIELDS} fields, not {len(plain)}"))
    return faults


def _has_long_text(plain: Plain) -> bool:
    """Whether a text among these values is over its limit."""
    waiting = [plain]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and len(value) > MAXIMUM_TEXT:
            return True
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return False


def _faults_of_items(name: str, items: Plain) -> Faults:
    """What is wrong with the first entry or step that is over a limit."""
    for index, item in enumerate(items if isinstance(items, list) else ()):
        at = f"{name}.{index}"
        if not isinstance(item, dict):
            continue
        if len(item) > _MOST_FIELDS:
            return [(at, f"must have at most {_MOST_FIELDS} fields, not {len(item)}")]
        if isinstance(following := item.get("next"), list) and len(following) > MAXIMUM_NEXT:
            return [(f"{at}.next", f"must have at most {MAXIMUM_NEXT} nodes, not {len(following)}")]
        if _has_long_text(item):
            return [(at, f"must have no text of more than {MAXIMUM_TEXT} characters")]
    return []


def _is_over(plain: Plain, most: int) -> bool:
    """Whether there are more values than `most`; it looks at no more than that."""
    waiting, seen = [plain], 0
    while waiting:
        value = waiting.pop()
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        seen += 1
        if seen + len(waiting) + len(inner) > most:
            return True
        waiting += inner
    return False


@contextmanager
def uncollected() -> Iterator[None]:
    """Makes many objects without a search for garbage after each few.

    Every search goes over all objects that are there and lets no other thread run: parsing half a million lists takes
    60 ms without, and most of a second with them.
    """
    if not isenabled():
        yield
        return
    disable()
    try:
        yield
    finally:
        enable()
