"""Prompt files: `{{name}}` is filled in, and both a name without a value and a value without a name are errors.

Also the budget of a prompt: parts are kept or left out whole, the most needed first.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from orchestrator.errors import TemplateError
from orchestrator.models import ContextTooLong, estimate_tokens

_SLOT = re.compile(r"\{\{([^{}]*)\}\}")
_NAME = re.compile(r"[a-z_]+")


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt with named slots."""

    name: str
    text: str

    @property
    def slots(self) -> frozenset[str]:
        """Names of the slots."""
        return frozenset(_SLOT.findall(self.text))

    def render(self, **values: str) -> str:
        """Fills the slots in; what a value holds is never read as a slot. A paragraph that comes out empty is left out.

        Raises:
            TemplateError: a slot has no value, or a value has no slot.
        """
        if missing := sorted(self.slots - values.keys()):
            raise TemplateError(f"prompt {self.name}: no value for {', '.join(missing)}")
        if unused := sorted(values.keys() - self.slots):
            raise TemplateError(f"prompt {self.name}: no place for {', '.join(unused)}")
        paragraphs = (_SLOT.sub(lambda slot: values[slot[1]].strip("\n"), text) for text in self.text.split("\n\n"))
        return "\n\n".join(text.strip("\n") for text in paragraphs if text.strip()) + "\n"


@cache
def template(name: str) -> Template:
    """The prompt file `prompts/NAME.md`.

    Raises:
        TemplateError: there is no such file, or one of its slots has no proper name.
    """
    try:
        text = (files("orchestrator.workflows") / "prompts" / f"{name}.md").read_text("utf-8")
    except OSError as error:
        raise TemplateError(f"there is no prompt {name}") from error
    found = Template(name, text)
    if wrong := sorted(slot for slot in found.slots if not _NAME.fullmatch(slot)):
        raise TemplateError(f"prompt {name}: {wrong[0]!r} is no name of a slot")
    return found


def template_of(name: str, prompts: Mapping[str, str]) -> Template:
    """The prompt of that name: the text given for it, or else the file. Raises TemplateError."""
    return Template(name, prompts[name]) if name in prompts else template(name)


def prompt_names() -> tuple[str, ...]:
    """Names of all prompt files."""
    folder = files("orchestrator.workflows") / "prompts"
    return tuple(sorted(file.name.removesuffix(".md") for file in folder.iterdir() if file.name.endswith(".md")))


def check_prompt(name: str, text: str) -> str:
    """What is wrong with a text that is to stand in the place of a prompt file, in a sentence; empty: nothing."""
    if name not in prompt_names():
        return f"there is no prompt {name[:80]!r}; there are {', '.join(prompt_names())}"
    if not text.strip():
        return "must not be empty"
    wanted, found = template(name).slots, Template(name, text).slots
    if wanted != found:
        shown = [", ".join(f"{{{{{slot}}}}}" for slot in sorted(slots)) or "none" for slots in (wanted, found)]
        return f"must use the slots {shown[0]}, each, and uses {shown[1]}"
    return ""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a prompt for one slot. Parts with a lower `rank` are kept first; rank zero is never left out."""

    slot: str
    text: str
    rank: int = 0


def fit(parts: Sequence[Part], budget_tokens: int) -> tuple[Part, ...]:
    """The parts that fit, in their given order, whole.

    Raises:
        ContextTooLong: the parts of rank zero alone are over the budget.
    """
    left = budget_tokens
    kept = set()
    for index, part in sorted(enumerate(parts), key=lambda item: item[1].rank):
        cost = estimate_tokens(part.text)
        if cost <= left:
            left -= cost
            kept.add(index)
        elif part.rank == 0:
            need = sum(estimate_tokens(other.text) for other in parts if other.rank == 0)
            raise ContextTooLong(
                f"the task needs about {need} tokens and the model's context has room for {budget_tokens}"
            )
    return tuple(part for index, part in enumerate(parts) if index in kept)


def fenced(text: str, info: str = "python") -> str:
    """The text as a fenced block, with a fence longer than any inside it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{info}\n{text.rstrip()}\n{fence}"
