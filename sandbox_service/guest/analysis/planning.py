"""Settles, before the candidate is imported, which tests must report and where the candidate runs."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sandbox_service.guest.analysis.expected import expected
from sandbox_service.guest.analysis.scope import candidate_modules, hidden_libraries, lent_names, library_modules
from sandbox_service.guest.analysis.sources import Sources, read
from sandbox_service.guest.analysis.traffic import obstacle
from sandbox_service.guest.confinement import rootfs

AUTO, SEPARATE, SHARED = "AUTO", "SEPARATE", "SHARED"
_IDS_A_FRAME = 1000
_REFUSAL_CHARS = 512


@dataclass(frozen=True, slots=True)
class Plan:
    """What is settled.

    Attributes:
        isolation: SEPARATE or SHARED.
        reason: why it is SHARED although nobody asked for it.
        refused: why the tests cannot run at all; empty: they can.
        expected: node ids that must report, without parameters.
        open: why there may be more of them; empty: there are none.
        modules: top-level names of the candidate's modules.
        lent: names that a file of the tests may itself give to the candidate, by its path; None: not known which.
        libraries: library modules that the tests import.
    """

    isolation: str
    reason: str
    refused: str
    expected: tuple[str, ...]
    open: str
    modules: frozenset[str]
    lent: Mapping[str, frozenset[str] | None]
    libraries: frozenset[str]

    def frames(self) -> Iterator[dict[str, Any]]:
        """The plan as the service reads it."""
        for start in range(0, len(self.expected), _IDS_A_FRAME):
            yield {"kind": "expected", "ids": list(self.expected[start : start + _IDS_A_FRAME])}
        yield {
            "kind": "plan",
            "isolation": self.isolation,
            "reason": self.reason,
            "refused": self.refused,
            "open": self.open,
            "read_only": _is_read_only(),
        }


def make(start: dict[str, Any]) -> Plan:
    """Reads the tests and settles what is to be settled.

    Args:
        start: `isolation` as it was asked for, `reason` (why the service itself says SHARED), `select`, and `beside`:
            the top-level names of the candidate's files.
    """
    sources = read(rootfs.TESTS)
    ids, is_open = expected(sources, start["select"])
    asked, reason, refused = start["isolation"], start["reason"], ""
    isolation = SHARED
    if asked != SHARED:
        found = obstacle(sources)
        if not found:
            isolation, refused = SEPARATE, _hiding(sources, start["beside"])
        elif asked == SEPARATE:
            isolation, refused = SEPARATE, f"SEPARATE was asked for, and needs plain data alone: {found}"
        else:
            reason = found
    modules = candidate_modules(sources) if isolation == SEPARATE else frozenset[str]()
    return Plan(
        isolation, reason, refused[:_REFUSAL_CHARS], tuple(ids), is_open, modules,
        lent={f"{rootfs.TESTS}/{source.path}": lent_names(source.tree) for source in sources.files},
        libraries=library_modules(sources),
    )  # fmt: skip


def _hiding(sources: Sources, beside: list[str]) -> str:
    hidden = hidden_libraries(sources, frozenset(beside).__contains__)
    if not hidden:
        return ""
    return (
        f"the code under test has a module {hidden[0]}, and the tests import a library's of that name: ask for SHARED"
    )


def _is_read_only() -> bool:
    """Whether nothing can be written to the tests' place; tried, not assumed."""
    if os.access(rootfs.TESTS, os.W_OK):
        return False
    return not any(os.access(entry.path, os.W_OK) for entry in os.scandir(rootfs.TESTS))


def see_tests(isolation: str) -> None:
    """Puts the tests on the import path, and behind them the candidate where it is imported here."""
    if isolation == SHARED:
        sys.path[:0] = [rootfs.TESTS, rootfs.WORK]
    else:
        sys.path.insert(0, rootfs.TESTS)
        keep_code_out()


def keep_code_out() -> None:
    """Takes every place of the candidate's off the import path, whoever put it there.

    A module of the standard library that is imported late could lie there.
    """
    fine = (rootfs.TESTS, os.path.realpath(sys.base_prefix), rootfs.PACKAGES)
    sys.path[:] = [path for path in sys.path if os.path.realpath(path).startswith(fine)]
