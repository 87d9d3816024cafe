"""Watches over a test run whose code under test shares its process: canaries among the tests, and looks in between."""

import ast
from typing import Any

import pytest
from _pytest.assertion import rewrite

from sandbox_service.guest.analysis.planning import Plan
from sandbox_service.guest.exchange.sender import Send
from sandbox_service.guest.testing.canaries import Canary, make, places
from sandbox_service.guest.testing.tampering import TrustedCode, Watch

_SAID_CHARS = 256
_SAMPLE = "import unittest\n\nclass T(unittest.TestCase):\n    def test(self):\n        assert self.x(1) == [2]\n"


class Guard:
    """The checks of one process; `begin` gives them a run to watch.

    Made before the first job, when the framework is still as it should be.
    """

    def __init__(self) -> None:
        self._code = TrustedCode()
        self._code.listen()
        self._watch = Watch()
        self._canaries: list[Canary] = []
        self._places: list[int] = []
        self._expected: frozenset[str] = frozenset()
        self._done = 0
        self._found = False
        self._send: Send | None = None

    def prepare(self, session: pytest.Session) -> None:
        """Looks for the first time, where all jobs' processes will be forked from.

        Raises:
            RuntimeError: something is not as it must be already.
        """
        make(session)  # pytest writes into its own classes when it makes a test for the first time
        self._watch.add_hooks(session.config.pluginmanager)
        if found := self._watch.look():
            raise RuntimeError(f"{found} before the first job")

    def warm(self) -> None:
        """Touches what a run will touch, while no job is there yet."""
        tree = ast.parse(_SAMPLE)
        rewrite.rewrite_asserts(tree, _SAMPLE.encode())
        compile(tree, "sample", "exec", dont_inherit=True)

    def begin(self, session: pytest.Session, plan: Plan, send: Send) -> int:
        """Begins to watch. Returns the number of canaries that will be told of."""
        self._send, self._expected = send, frozenset(plan.expected)
        self._watch.add_libraries(plan.libraries)
        self._watch.add_hooks(session.config.pluginmanager)
        self._code.lent = plan.lent
        self._canaries = make(session)
        return len(self._canaries)

    def place(self, tests: int) -> None:
        """Says how many tests there are to run, and looks around: the candidate has been imported."""
        if self._send is not None:
            self._places = places(len(self._canaries), tests)
            self._look()

    def due(self) -> list[Canary]:
        """Canaries whose turn it is before the next test."""
        if self._send is None:
            return []
        count = sum(place <= self._done for place in self._places)
        self._done += 1
        self._places = self._places[count:]
        turn, self._canaries = self._canaries[:count], self._canaries[count:]
        if turn:
            self._look()
        return turn

    def rest(self) -> list[Canary]:
        """Those that run after the last test."""
        turn, self._canaries = self._canaries, []
        return turn if self._send is not None else []

    def judge(self, canary: Canary, entry: dict[str, Any]) -> None:
        """Tells what became of a canary."""
        failure = entry.get("failure") or {}
        failed = entry["outcome"] == "FAILED" and failure.get("type") == canary.kind
        if self._send is not None:
            saw = f"{entry['outcome']} {failure.get('type', '')}"[:_SAID_CHARS]
            self._send({"kind": "canary", "failed": failed, "saw": saw})

    def look_at(self, item: pytest.Item) -> None:
        """Looks whether a test is still what the trusted file says, just before it runs."""
        if self._send is None or item.nodeid.partition("[")[0] not in self._expected:
            return
        found = self._code.look(getattr(item, "function", None))
        if not found and vars(item).keys() & {"runtest", "setup", "teardown"}:
            found = "it was changed"
        if found:
            self._say(f"{item.nodeid}: {found}")

    def end(self) -> None:
        """Looks for the last time."""
        if self._send is not None:
            self._look()

    def _look(self) -> None:
        if found := self._watch.look():
            self._say(found)

    def _say(self, what: str) -> None:
        if not self._found and self._send is not None:
            self._found = True
            self._send({"kind": "tampered", "what": what[:_SAID_CHARS]})
