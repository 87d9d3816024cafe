"""Finds fenced blocks in Markdown, line by line: CommonMark's rules, with patience where models bend them.

A fence closes with the same character, at least as long as it opened, and with nothing after it. Unlike CommonMark,
an opening fence may be indented at will (models lose the list item around it), a closing one up to three columns more
than its opening one. What a block means is not decided here.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<marks>`{3,}|~{3,})(?P<info>.*)", re.DOTALL)
_ONE_LINE = re.compile(r"[ \t]*(?P<marks>`{3,64})(?P<inside>[^`].*?)(?P=marks)[ \t]*")

_INDENT_SLACK = 3  # columns
_MOST_EXTENSIONS = 16
MOST_BLOCKS = 512  # looked at in one text; what is made of the blocks takes time with the square of their number

Unfinished = Callable[[str, str], bool]
"""Told a block's info string and content: whether the content evidently goes on, so that the fence in it was text."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        info: what follows the opening fence on its line, stripped.
        content: the lines between the fences, each with its newline, without the opening fence's indentation.
        closed: whether a closing fence came.
        before: the last line with text before the opening fence, stripped.
        start: index of the opening fence's line.
        end: index of the line after the block.
    """

    info: str
    content: str
    closed: bool
    before: str
    start: int
    end: int


def split_lines(text: str) -> list[str]:
    """Lines without their ends; only LF and CRLF end a line (form feeds and the like are text)."""
    return text.replace("\r\n", "\n").split("\n")


def scan(text: str, unfinished: Unfinished | None = None) -> list[Block]:
    """The fenced blocks, in order: all of them, or the first `MOST_BLOCKS` and one more.

    Args:
        text: Markdown.
        unfinished: when given and true for a block's content, the next closing fence is tried as its end.
    """
    lines = split_lines(text)
    blocks: list[Block] = []
    at, before = 0, ""
    while at < len(lines) and len(blocks) <= MOST_BLOCKS:
        block = _one_line(lines[at], at, before) or _block_at(lines, at, before, unfinished)
        if block is None:
            before = lines[at].strip() or before
            at += 1
        else:
            blocks.append(block)
            at, before = block.end, ""
    return blocks


def is_fence(line: str) -> bool:
    """Whether a line starts like a fence."""
    return _FENCE.fullmatch(line) is not None


def _opening(line: str) -> re.Match[str] | None:
    found = _FENCE.fullmatch(line)
    return None if found is None or (found["marks"][0] == "`" and "`" in found["info"]) else found


def _one_line(line: str, at: int, before: str) -> Block | None:
    """A whole block on one line (CommonMark sees inline code, models mean a block): all of it is the info string."""
    found = _ONE_LINE.fullmatch(line)
    if found is None:
        return None
    return Block(info=found["inside"].strip(), content="", closed=True, before=before, start=at, end=at + 1)


def _block_at(lines: list[str], at: int, before: str, unfinished: Unfinished | None) -> Block | None:
    opening = _opening(lines[at])
    if opening is None:
        return None
    info = opening["info"].strip()
    first: int | None = None
    for end in islice(_closings(lines, at + 1, opening), _MOST_EXTENSIONS):
        first = end if first is None else first
        if unfinished is None or not unfinished(info, _content(lines[at + 1 : end], opening)):
            break
    else:
        end = len(lines) if first is None else first
    closed = first is not None
    content = _content(lines[at + 1 : end], opening)
    return Block(info, content, closed=closed, before=before, start=at, end=end + closed)


def _closings(lines: list[str], start: int, opening: re.Match[str]) -> Iterator[int]:
    """Indices of the lines from `start` that could close the fence, each looked for when it is asked for."""
    marks, widest = opening["marks"], len(opening["indent"]) + _INDENT_SLACK
    for index in range(start, len(lines)):
        closing = _FENCE.fullmatch(lines[index])
        if (
            closing is not None
            and closing["marks"].startswith(marks)
            and not closing["info"].strip()
            and len(closing["indent"]) <= widest
        ):
            yield index


def _content(lines: list[str], opening: re.Match[str]) -> str:
    width = len(opening["indent"])
    return "".join(f"{_outdent(line, width)}\n" for line in lines)


def _outdent(line: str, width: int) -> str:
    """`line` without its first blanks, at most `width` of them."""
    blanks = len(line) - len(line.lstrip(" \t"))
    return line[min(blanks, width) :]
