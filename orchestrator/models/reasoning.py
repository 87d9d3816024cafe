"""Separates what a model thought aloud from what it answers.

Tags are looked for only where a model's template puts them: at the start of the reply, or alone at the start of a
line for a closing tag whose opening tag never came. Code that merely mentions them is left alone.
"""

import re
from bisect import bisect_left

_OPENING = re.compile(r"\s*<(think|thinking|reasoning)>", re.IGNORECASE)
_ORPHAN = re.compile(r"^[ \t]*</(?:think|thinking|reasoning)>", re.IGNORECASE | re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})", re.MULTILINE)


def separate(text: str) -> tuple[str, str]:
    """Splits a reply into the answer and the reasoning; without any tag, all of it is the answer."""
    thoughts: list[str] = []
    at = 0
    while opening := _OPENING.match(text, at):
        closing = re.compile(f"</{opening[1]}>", re.IGNORECASE).search(text, opening.end())
        thoughts.append(text[opening.end() : closing.start() if closing else None])
        at = closing.end() if closing else len(text)
    text = text[at:]
    if orphan := _last_orphan(text):
        thoughts.append(text[: orphan.start()])
        text = text[orphan.end() :]
    if not thoughts:
        return text, ""
    return text.lstrip(), "\n".join(thought.strip() for thought in thoughts).strip()


def _last_orphan(text: str) -> re.Match[str] | None:
    """The last closing tag at the start of a line that is not inside a fenced block."""
    found = None
    fences = [fence.start() for fence in _FENCE.finditer(text)]
    for orphan in _ORPHAN.finditer(text):
        # An odd number of fences before it and a fence after it: the tag is a line of somebody's code.
        before = bisect_left(fences, orphan.start())
        found = found if before % 2 == 1 and before < len(fences) else orphan
    return found
