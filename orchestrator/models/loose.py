"""Finds Python in a reply that has no usable fence: bare code, or code with prose around it.

Top-level statements are read one by one; what does not parse, and what parses only because a word is an expression,
is prose.
"""

import re

from orchestrator.models import fences, pysource

_CONTINUES = re.compile(r"(else|elif|except|finally)\b|[)\]}]")  # at column 0, yet part of the statement above
_DEFINITION = re.compile(r"(async[ \t]+def|def|class)[ \t]+\w|@\w")
_LONGEST_STATEMENT = 12  # column-0 lines of one statement: decorators, closing brackets, text that is not indented
_LONGEST_TEXT = 200  # the same for a triple-quoted string
_MOST_LINES = 20_000
_MOST_WORK = 4_000_000  # characters given to the parser, a few seconds of it; text that never parses is tried often
_PARSE_WORK = 100  # what a parse costs beside its characters, in characters


class _Reader:
    """Parses pieces of a text as long as its budget of work lasts."""

    def __init__(self) -> None:
        self._left = _MOST_WORK

    @property
    def tired(self) -> bool:
        """Whether the budget is used up."""
        return self._left <= 0

    def statement(self, lines: list[str], starts: list[int], at: int) -> tuple[int, str | None]:
        """How many of the pieces from `at` on make up one statement, and of what kind it is."""
        limit = _LONGEST_STATEMENT
        count = 1
        while count <= limit and at + count < len(starts) and not self.tired:
            piece = "\n".join(lines[starts[at] : starts[at + count]])
            self._left -= 2 * (len(piece) + _PARSE_WORK)
            if (kind := pysource.kind_of(piece)) is not None:
                return count, kind
            if pysource.is_unterminated_text(piece):
                limit = _LONGEST_TEXT
            count += 1
        return 1, None


def runs(text: str) -> tuple[list[str], str]:
    """Runs of code in `text`, and what is wrong with the first definition that does not parse (empty: nothing)."""
    lines = [line for line in fences.split_lines(text) if not fences.is_fence(line)][:_MOST_LINES]
    starts = [index for index, line in enumerate(lines) if _starts_statement(line)] + [len(lines)]
    found: list[str] = []
    run: list[str] = []
    fault, at = "", 0
    reader = _Reader()
    while at < len(starts) - 1:
        count, kind = reader.statement(lines, starts, at)
        if reader.tired:
            return [], "the reply has too much text that is no code"
        piece = lines[starts[at] : starts[at + count]]
        if kind == "code" or (kind == "neutral" and run):
            run += piece
        elif kind != "neutral":
            found += _closed(run)
            run = []
            if kind is None and _DEFINITION.match(lines[starts[at]]):
                fault = fault or pysource.read("\n".join(piece)).error
        at += count
    return [*found, *_closed(run)], fault


def _closed(run: list[str]) -> list[str]:
    return ["\n".join(run) + "\n"] if run else []


def _starts_statement(line: str) -> bool:
    return bool(line.strip()) and line[0] not in " \t" and not _CONTINUES.match(line)
