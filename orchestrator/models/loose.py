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


def runs(text: str) -> tuple[list[str], str]:
    """Runs of code in `text`, and what is wrong with the first definition that does not parse (empty: nothing)."""
    lines = [line for line in fences.split_lines(text) if not fences.is_fence(line)][:_MOST_LINES]
    starts = [index for index, line in enumerate(lines) if _starts_statement(line)] + [len(lines)]
    found: list[str] = []
    run: list[str] = []
    fault, at = "", 0
    while at < len(starts) - 1:
        count, kind = _statement(lines, starts, at)
        piece = lines[starts[at] : starts[at + count]]
        if kind == "code" or (kind == "neutral" and run):
            run += piece
        elif kind != "neutral":
            found, run = _closed(found, run), []
            if kind is None and _DEFINITION.match(lines[starts[at]]):
                fault = fault or pysource.read("\n".join(piece)).error
        at += count
    return _closed(found, run), fault


def _closed(found: list[str], run: list[str]) -> list[str]:
    return [*found, "\n".join(run) + "\n"] if run else found


def _starts_statement(line: str) -> bool:
    return bool(line.strip()) and line[0] not in " \t" and not _CONTINUES.match(line)


def _statement(lines: list[str], starts: list[int], at: int) -> tuple[int, str | None]:
    """How many of the pieces from `at` on make up one statement, and of what kind it is."""
    limit = _LONGEST_STATEMENT
    count = 1
    while count <= limit and at + count < len(starts):
        piece = "\n".join(lines[starts[at] : starts[at + count]])
        if (kind := pysource.kind_of(piece)) is not None:
            return count, kind
        if pysource.is_unterminated_text(piece):
            limit = _LONGEST_TEXT
        count += 1
    return 1, None
