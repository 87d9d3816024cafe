"""What a language is to the sandbox: how its programs and its tests start, and what cells must show of this machine.

Which template forks its cells is said here by name; the templates themselves are `cells.template`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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


@dataclass(frozen=True, slots=True)
class Installed:
    """A language as this machine has it.

    Attributes:
        version: of its interpreter, such as "20.11.1".
        commands: programs that cells see under these names, wherever they lie on this machine.
        assets: folders that cells see, read-only, by their own names below `guest.confinement.rootfs.ASSETS`: a
            reporter of its test framework, a tool.
    """

    version: str
    commands: Mapping[str, Path] = field(default_factory=dict)
    assets: Sequence[Path] = ()


class Language(Protocol):
    """One language."""

    @property
    def name(self) -> str:
        """Its name in the contract."""

    @property
    def templates(self) -> Sequence[Template]:
        """Templates of its own; a language whose programs are exec'ed needs none and names "python"."""

    @property
    def separates(self) -> bool:
        """Whether its tests can run apart from the code under test (isolation SEPARATE)."""

    @property
    def covers(self) -> bool:
        """Whether the coverage of its code can be measured."""

    def find(self) -> Installed | None:
        """Looks for it on this machine; blocks. None where it is not there, or too old: it is not offered then."""

    def start_program(self, program: Program) -> tuple[str, Mapping[str, Any]]:
        """Name of the template, and the `start` entry of the job's header as `guest.process.program` reads it."""

    def start_tests(self, tests: TestRun) -> tuple[str, Mapping[str, Any]]:
        """The same for a test run."""
