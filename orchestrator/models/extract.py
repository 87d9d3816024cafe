"""Gets the code out of a model's reply, or says in a sentence that the model can act on why there is none.

The rules, in order:
 1. A reply cut off at the token limit gives no code, whatever it holds.
 2. A reply that is Python as a whole is the code.
 3. Two or more named Python files, or one with the wanted name beside other named files, are taken by their names;
    test files are left out, since tests are not the candidate's to write.
 4. Otherwise one file is made of the blocks (see `selection`). A complete block that holds a syntax error is still
    the model's answer: running it says more than refusing it.
 5. Without a usable block, code between prose counts, unless a definition in it does not parse.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from orchestrator.models import fences, loose, naming, pysource, selection
from orchestrator.models.reasoning import separate
from orchestrator.models.selection import Candidate

_TEMPLATE_END = re.compile(r"(?:<\|[\w|]+\|>|</s>)\s*$")  # end-of-turn marks of servers without the model's template
_PYTHON_FILE = (".py", ".pyi")
_NESTING = 3
MOST_CHARS = 512 * 1024  # of a reply that is read; parsing it takes time and a hundred times its size in memory
_CUT_OFF = "the reply was cut off at the token limit; answer again with the complete code, shorter"


@dataclass(frozen=True, slots=True)
class Extraction:
    """What a reply gave.

    Attributes:
        files: path -> source; empty where there is a fault.
        fault: empty where the files are usable; otherwise one sentence for the model.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""


def extract_code(reply_text: str, *, finish_reason: str, default_path: str, entry_point: str = "") -> Extraction:
    """Extracts the files of a reply. Never raises, on any text.

    Args:
        reply_text: the reply; leftovers of reasoning are tolerated.
        finish_reason: as the endpoint gave it.
        default_path: where code without a name goes, and the file that must exist.
        entry_point: a name that the code must define at its top level; empty: any.
    """
    if finish_reason == "length":
        return Extraction(fault=_CUT_OFF)
    if len(reply_text) > MOST_CHARS:
        return Extraction(fault=f"the reply has more than {MOST_CHARS} characters; answer again with less code")
    answer, thoughts = separate(reply_text.replace("\r\n", "\n"))
    text = _TEMPLATE_END.sub("", answer if answer.strip() else thoughts)
    if not text.strip():
        return Extraction(fault="the reply is empty; answer with the complete code in one fenced block")
    if default_path.endswith(_PYTHON_FILE):
        return _python(text, default_path, entry_point.split(".", 1)[0])
    return _longest_block(text, default_path)


def _python(text: str, default_path: str, entry: str) -> Extraction:
    whole = pysource.read(text)
    if whole.statements and not whole.wordy:
        return _single([Candidate(whole, labelled=True)], default_path, entry)
    pieces = (found for block in fences.scan(text, _goes_on) for found in _candidates(block, _NESTING))
    candidates = list(islice(pieces, fences.MOST_BLOCKS + 1))
    if len(candidates) > fences.MOST_BLOCKS:
        return Extraction(fault=f"the reply has more than {fences.MOST_BLOCKS} blocks; {selection.ONE_BLOCK}")
    if selection.is_multi_file(candidates, default_path):
        files, fault = selection.choose_files(candidates, default_path, entry)
        return Extraction(fault=fault) if fault else Extraction(files)
    if not any(_is_an_answer(candidate) for candidate in candidates):
        return _from_prose(text, candidates, default_path, entry)
    return _single(candidates, default_path, entry)


def _single(candidates: list[Candidate], path: str, entry: str) -> Extraction:
    code, fault = selection.choose_one(candidates, entry)
    return Extraction(fault=fault) if fault else Extraction({path: code})


def _is_an_answer(candidate: Candidate) -> bool:
    """Whether a block is meant as code, be it right or wrong."""
    meant = candidate.labelled or (candidate.closed and candidate.source.textually_defines())
    return candidate.usable and (meant or not candidate.source.error)


def _from_prose(text: str, candidates: list[Candidate], path: str, entry: str) -> Extraction:
    found, fault = loose.runs(text)
    if fault:
        return Extraction(fault=f"{fault}; answer with the complete code in one fenced block")
    if found:
        return _single([Candidate(pysource.read(run), labelled=True) for run in found], path, entry)
    return _single(candidates, path, entry)


def _goes_on(info: str, content: str) -> bool:
    word = naming.language_of(info)
    return word in {"", "python"} and pysource.is_unterminated_text(content)


def _candidates(block: fences.Block, depth: int) -> list[Candidate]:
    """The pieces of code in a block: itself, or what lies in it where it is Markdown or holds stray fences."""
    label = naming.label(block)
    source = pysource.read(block.content)
    if label.code:  # code on the fence's own line
        joined = pysource.read(f"{label.code}\n{block.content}")
        source = source if joined.error else joined
    inner = [line for line in block.content.split("\n") if fences.is_fence(line)]
    if inner and depth and (label.language == "markdown" or (label.language == "" and source.error)):
        nested = fences.scan(block.content, _goes_on)
        return [
            found for one in nested for found in _candidates(replace(one, closed=one.closed or block.closed), depth - 1)
        ]
    if inner and label.language == "python" and source.error:
        source = _without_fences(block.content, source)
    python = label.language in {"", "python"}
    return [Candidate(source, labelled=label.language == "python", path=label.path, python=python, closed=block.closed)]


def _without_fences(content: str, source: pysource.Source) -> pysource.Source:
    """The content without stray fence lines, or up to the first one, whichever parses; else as it was."""
    lines = content.split("\n")
    stripped = [line for line in lines if not fences.is_fence(line)]
    first = next(index for index, line in enumerate(lines) if fences.is_fence(line))
    for attempt in (stripped, lines[:first]):
        mended = pysource.read("\n".join(attempt))
        if not mended.error and mended.statements:
            return mended
    return source


def _longest_block(text: str, path: str) -> Extraction:
    """For languages that nothing is known of here: the longest complete block, or else the whole reply."""
    blocks = fences.scan(text)
    if any(not block.closed and block.content.strip() for block in blocks):
        return Extraction(fault="the code block is not closed; answer again with the complete code")
    code = max((block.content for block in blocks), key=len, default=text)
    if not code.strip():
        return Extraction(fault="the reply holds no code; answer with the complete code in one fenced block")
    return Extraction({path: code.rstrip() + "\n"})
