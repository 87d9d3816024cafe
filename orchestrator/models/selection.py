"""Decides which of a reply's blocks are the answer.

For one file: with an entry point, the last block that defines it wins (a reply quotes the old code first), joined
with the other blocks that define what it needs and does not define itself. Without one, all blocks that define
something are joined, except those whose definitions a later block repeats. Usage examples, tests, interpreter
sessions and output never count as the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.models import naming, pysource
from orchestrator.models.pysource import Source

ONE_BLOCK = "answer with the complete code in one fenced block"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A piece of a reply that may be code.

    Attributes:
        source: what is known of it.
        labelled: whether the reply calls it Python.
        path: the file that it says to be; empty: it does not say.
        python: whether it may be Python at all.
        closed: whether its fence is closed; only then is a syntax error in it the model's own.
    """

    source: Source
    labelled: bool
    path: str = ""
    python: bool = True
    closed: bool = True

    @property
    def usable(self) -> bool:
        """Whether it holds source that could be run."""
        return self.python and bool(self.source.text.strip()) and not self.source.transcript


def is_multi_file(candidates: Sequence[Candidate], default_path: str) -> bool:
    """Whether the reply is a set of named files."""
    named = {one.path for one in candidates if one.path and not naming.is_test_file(one.path)}
    modules = {path for path in named if path.endswith((".py", ".pyi"))}
    if len(modules) > 1 or (default_path in named and len(named) > 1):
        return True
    imported = {name for one in candidates if one.path not in modules for name in pysource.imports(one.source.text)}
    return any(_module(path) in imported for path in modules - {default_path})


def choose_files(candidates: Sequence[Candidate], default_path: str, entry: str) -> tuple[dict[str, str], str]:
    """The named files of a reply, of two with the same name the later one; or a fault."""
    files: dict[str, Source] = {}
    for one in candidates:
        if not one.path or (naming.is_test_file(one.path) and one.path != default_path) or one.source.transcript:
            continue
        if not one.closed and (one.source.error or not one.python):
            return {}, f"the block of {one.path} is not closed; answer again with all files complete"
        files[one.path] = one.source
    if default_path not in files:
        fault = _place_main(files, candidates, default_path, entry)
        if fault:
            return {}, fault
    main = files[default_path]
    if entry and not main.error and entry not in main.names:
        return {}, f"{default_path} does not define `{entry}` at its top level"
    return {path: source.text for path, source in files.items()}, ""


def choose_one(candidates: Sequence[Candidate], entry: str) -> tuple[str, str]:
    """The source of the one file that a reply is about; or "" and a fault."""
    usable = [one for one in candidates if one.usable]
    code = [one.source for one in usable if not one.source.error and not one.source.tests]
    broken = [one for one in usable if one.source.error and (one.labelled or len(usable) == 1)]
    if entry:
        found = _with_entry(code, entry)
        broken = [one for one in broken if one.source.textually_defines(entry)] or (broken if not code else [])
    else:
        found = _without_entry(code, [one.source for one in usable if one.labelled])
    if found:
        return found, ""
    if broken:
        last = broken[-1]
        if last.closed:
            return last.source.text, ""
        return "", f"the code block is not closed and does not parse: {last.source.error}; {ONE_BLOCK}"
    return "", _why_nothing(candidates, usable, entry)


def _with_entry(code: Sequence[Source], entry: str) -> str:
    owners = [one for one in code if entry in one.names - one.imported]
    if not owners and len(code) == 1 and entry in code[0].names:
        owners = list(code)
    if not owners:
        return ""
    main = owners[-1]
    others = [one for one in code if one is main or entry not in one.names]
    return _joined(_with_needed(main, others), fallback=main)


def _with_needed(main: Source, others: Sequence[Source]) -> list[Source]:
    """`main` and whatever defines what it needs, and what that needs, in the reply's order."""
    chosen = [main]
    pending = set(main.needs)
    while pending:
        name = pending.pop()
        if any(name in one.names for one in chosen):
            continue
        provider = next((one for one in reversed(others) if name in one.names), None)
        if provider is not None:
            chosen.append(provider)
            pending |= provider.needs
    return [one for one in others if any(one is taken for taken in chosen)]


def _without_entry(code: Sequence[Source], labelled: Sequence[Source]) -> str:
    defining = [one for one in code if one.definitions]
    if defining:
        kept = [
            one
            for index, one in enumerate(defining)
            if not any(one.definitions <= later.definitions for later in defining[index + 1 :])
        ]
        return _joined(kept, fallback=max(defining, key=lambda one: len(one.definitions)))
    scripts = [one for one in code if one.statements]
    called_python = [one for one in scripts if any(one is other for other in labelled)]
    return max(called_python or scripts, key=lambda one: len(one.text), default=Source("")).text


def _joined(sources: Sequence[Source], fallback: Source) -> str:
    if len(sources) == 1:
        return sources[0].text
    text = "\n\n".join(one.text for one in sources)
    return text if not pysource.read(text).error else fallback.text


def _place_main(files: dict[str, Source], candidates: Sequence[Candidate], default_path: str, entry: str) -> str:
    """Gives the wanted name to the file that is meant; returns a fault where none can be."""
    unnamed = [one.source for one in candidates if not one.path and one.usable and not one.source.error]
    owners = [source for source in unnamed if source.definitions and (not entry or entry in source.names)]
    if owners and not owners[-1].tests:
        files[default_path] = owners[-1]
        return ""
    named = [path for path, source in files.items() if entry and entry in source.names - source.imported]
    wanted = f"the reply names {', '.join(sorted(files))} and no {default_path}; name the main file {default_path}"
    if len(named) != 1:
        return wanted
    if any(_module(named[0]) in pysource.imports(source.text) for path, source in files.items() if path != named[0]):
        return wanted
    files[default_path] = files.pop(named[0])
    return ""


def _module(path: str) -> str:
    return path.rsplit(".", 1)[0].replace("/", ".")


def _why_nothing(candidates: Sequence[Candidate], usable: Sequence[Candidate], entry: str) -> str:
    if any(one.source.transcript for one in candidates):
        return f"the reply holds an interpreter session and no source file; {ONE_BLOCK}"
    if entry and any(not one.source.error for one in usable):
        return f"no code in the reply defines `{entry}` at its top level; {ONE_BLOCK} that does"
    if any(one.source.tests for one in usable):
        return f"the reply holds tests and no code to be tested; {ONE_BLOCK}"
    return f"the reply holds no code; {ONE_BLOCK}"
