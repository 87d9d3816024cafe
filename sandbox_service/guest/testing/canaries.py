"""Tests that must fail, run among the real ones: where one does not, something has been done to the framework.

They have the names of ordinary tests and values of their own in every run. They run with the framework's own functions,
in a set-up of their own, so that no fixture and no count of the real tests sees them.
"""

import ast
import random
import types
from pathlib import Path

import pytest
from _pytest import runner
from _pytest.assertion.rewrite import rewrite_asserts
from _pytest.fixtures import FuncFixtureInfo

from sandbox_service.guest.confinement import rootfs

_NOUNS = ("total", "order", "basket", "index", "path", "tree", "matrix", "token", "record", "window", "queue", "label")
_DEEDS = ("adds", "splits", "merges", "sorts", "counts", "parses", "finds", "wraps", "rounds", "filters", "joins")
_BODIES = {
    "AssertionError": (
        "    result = [{a}, {b}]\n    assert result == [{b}, {c}]\n",
        "    result = {{'{noun}': {a}}}\n    assert result['{noun}'] == {b}, '{noun}'\n",
        "    import unittest\n    unittest.TestCase().assertEqual({a}, {b})\n",
    ),
    "Failed": ("    import pytest\n    with pytest.raises(ValueError):\n        int('{a}')\n",),
    "KeyError": ("    {{'{noun}': {a}}}['{noun}_{b}']\n",),
}
"""Exception that ends it -> how a test gets there."""
_OF_ALL_TYPES = (
    "    all = (None, {a}, '{noun}', [], {{}}, (), 1.5, True, set())\n    assert [x for x in all if x == {b}]\n"
)
"""Fails as long as no built-in type has learned to equal what it does not."""


class Canary:
    """One test that must fail, and what must be seen of it."""

    def __init__(self, session: pytest.Session, kind: str, body: str, chance: random.Random) -> None:
        noun, deed = chance.choice(_NOUNS), chance.choice(_DEEDS)
        self.kind = kind
        a, b, c = chance.sample(range(2, 10_000), 3)
        name = f"test_{noun}_{deed}_{chance.choice(_NOUNS)}"
        source = f"def {name}():\n{body.format(a=a, b=b, c=c, noun=noun)}"
        path = Path(f"{rootfs.TESTS}/test_{chance.choice(_NOUNS)}_{chance.randrange(100)}.py")
        tree = ast.parse(source)
        rewrite_asserts(tree, source.encode(), str(path), session.config)
        module = types.ModuleType(path.stem)
        exec(compile(tree, str(path), "exec", dont_inherit=True), vars(module))  # noqa: S102 - its own source
        collector = pytest.Module.from_parent(session, path=path)
        collector.obj = module
        self.item: pytest.Function = pytest.Function.from_parent(
            collector, name=name, callobj=vars(module)[name], fixtureinfo=FuncFixtureInfo((), (), [], {})
        )

    def run(self) -> list[pytest.TestReport]:
        """Runs it as pytest runs a test, and gives its reports."""
        session, option = self.item.session, self.item.config.option
        around, style = session._setupstate, option.tbstyle  # noqa: SLF001 - the real tests' set-up stays where it is
        session._setupstate = runner.SetupState()  # noqa: SLF001 - the same
        option.tbstyle = "value"  # nobody reads its traceback, and to make one takes longer than the test
        try:
            return runner.runtestprotocol(self.item, log=False, nextitem=None)
        finally:
            session._setupstate, option.tbstyle = around, style  # noqa: SLF001 - the same


def make(session: pytest.Session) -> list[Canary]:
    """One canary of each kind and one that compares values of all types, in random order."""
    chance = random.Random()  # noqa: S311 - to be unlike the last run is all that is asked
    canaries = [Canary(session, kind, chance.choice(bodies), chance) for kind, bodies in _BODIES.items()]
    canaries.append(Canary(session, "AssertionError", _OF_ALL_TYPES, chance))
    chance.shuffle(canaries)
    return canaries


def places(canaries: int, tests: int) -> list[int]:
    """Before which test each canary runs; as many as there are tests: after the last."""
    chance = random.Random()  # noqa: S311 - as above
    return sorted([0, tests, *(chance.randint(0, tests) for _ in range(canaries - 2))])
