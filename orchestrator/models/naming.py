"""What a block says of itself: its language, and the name of the file that it is meant to be."""

import re
from dataclasses import dataclass

from orchestrator.models.fences import Block

_PYTHON = frozenset({"python", "python3", "py", "py3", "python2", "ipython", "pycon", "sage", "cython", "pyi"})
_MARKDOWN = frozenset({"markdown", "md", "mdx"})
_OTHER_WORDS = """
bash sh shell zsh fish console terminal powershell cmd bat text txt plaintext plain output log none json jsonc yaml yml
toml ini cfg conf xml html css scss csv tsv sql diff patch dockerfile makefile mermaid latex tex math javascript js jsx
typescript ts tsx java kotlin scala c cpp c++ h hpp csharp cs go rust rs ruby rb php perl lua r swift haskell elixir
julia dart http regex graphql proto
"""
_OTHER = frozenset(_OTHER_WORDS.split())
_EXTENSIONS = "pyi?|json|ya?ml|toml|txt|md|rst|csv|tsv|cfg|ini|env|html?|css|jsx?|tsx?|sql|sh|xml|jinja2?"
_PATH = rf"(?P<path>(?:[\w.\-]+/)*[\w\-][\w.\-]*\.(?:{_EXTENSIONS}))"
_ATTRIBUTE = re.compile(rf"(?:title|filename|file|name|path)\s*[=:]\s*[\"']?{_PATH}[\"']?", re.IGNORECASE)
_WORD_PATH = re.compile(_PATH)
_FIRST_LINE = re.compile(rf"(?i)\s*(?:#|//)\s*(?:(?:file|filename|path)\s*(?:name)?\s*:\s*)?[\"'`]?{_PATH}[\"'`]?\s*")
_BEFORE = re.compile(
    rf"(?:[-*+]|\d+[.)])?\s*(?:\#{{1,6}}\s+)?(?:\d+[.)]\s*)?[*_`\"']*(?:(?:file|filename|path)\s*:?\s*)?[*_`\"']*"
    rf"{_PATH}[*_`\"':]*\s*(?:\([^)]*\))?\s*:?[*_]*\s*",
    re.IGNORECASE,
)
_QUOTED = re.compile(rf"[^`*]*(?:`|\*\*)+{_PATH}(?:`|\*\*)+[^`*]*:[*_]*")
_CODE = re.compile(r"(async\s+def|def|class|import|from|for|while|if|with|return)\s|@\w|print\(")
_LONGEST_PATH = 200


@dataclass(frozen=True, slots=True)
class Label:
    """A block's own word on what it is.

    Attributes:
        language: "python", "markdown", "other", or "" where it does not say.
        path: of the file, relative and without "..", or empty.
        code: what stands on the fence's line and may be the first line of the code.
    """

    language: str
    path: str
    code: str


def label(block: Block) -> Label:
    """Reads the info string, the line before the fence and the first line of the content, in this order."""
    word, rest = _first_word(block.info)
    language = _language(word)
    attribute = _ATTRIBUTE.search(block.info)
    path = attribute["path"] if attribute else ""
    if not path:
        for candidate in (word, rest.split(" ", 1)[0] if rest else ""):
            if found := _WORD_PATH.fullmatch(candidate):
                path = found["path"]
                break
    if not path and (found := _BEFORE.fullmatch(block.before) or _QUOTED.fullmatch(block.before)):
        path = found["path"]
    if not path and (found := _FIRST_LINE.fullmatch(block.content.split("\n", 1)[0])):
        path = found["path"]
    path = _safe(path)
    if not language and path.endswith((".py", ".pyi")):
        language = "python"
    code = rest if language == "python" else block.info
    return Label(language, path, code if _CODE.match(code) else "")


def _first_word(info: str) -> tuple[str, str]:
    """The info string's first word and the rest; `{.python}`, `python:a.py` and `python,ignore` are taken apart."""
    found = re.match(r"\{?\.?([^\s,:{}=]+(?:\.[^\s,:{}=]+)?)[\s,:{}]*(.*)", info)
    return (found[1], found[2].strip()) if found else ("", "")


def _language(word: str) -> str:
    lowered = word.lower()
    if lowered in _PYTHON:
        return "python"
    if lowered in _MARKDOWN:
        return "markdown"
    return "other" if lowered in _OTHER else ""


def _safe(path: str) -> str:
    path = path.removeprefix("./")
    outside = path.startswith("/") or ".." in path.split("/") or len(path) > _LONGEST_PATH
    return "" if outside else path


def is_test_file(path: str) -> bool:
    """Whether a path is one that pytest would collect or read on its own accord."""
    name = path.rsplit("/", 1)[-1]
    return bool(re.fullmatch(r"test_.*\.py|.*_test\.py|conftest\.py", name))


def language_of(info: str) -> str:
    """Language that an info string names: "python", "markdown", "other", or "" where it names none."""
    return _language(_first_word(info)[0])
