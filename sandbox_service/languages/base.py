"""What a language is to the sandbox.

How its programs and its tests start, and which template keeps its interpreter warm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sandbox_service.domain import Program, TestRun


@dataclass(frozen=True, slots=True)
class Template:
    """One kind of template process.

    Attributes:
        name: its name.
        session: a guest module whose `session` function brings a test framework up to the point where jobs part.
    """

    name: str
    session: str = ""


class Language(Protocol):
    """One language."""

    @property
    def name(self) -> str:
        """Its name in the contract."""

    @property
    def templates(self) -> Sequence[Template]:
        """Templates that it needs."""

    def start_program(self, program: Program) -> tuple[str, Mapping[str, Any]]:
        """Name of the template, and the `start` entry of the job's header as `guest.program` reads it."""

    def start_tests(self, tests: TestRun) -> tuple[str, Mapping[str, Any]]:
        """The same for a test run."""
