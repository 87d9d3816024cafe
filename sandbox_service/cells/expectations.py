"""Where the code under test is likely to run, before the judge has read the tests and says so.

What is kept is a guess for each set of tests that came lately, in memory and bounded. A wrong guess costs a cell that
is ended unused, or a wait for the judge's plan; no result depends on it.
"""

import hashlib
from collections import OrderedDict

from sandbox_service.domain import TestIsolation, TestRun

_KEPT = 1024
"""Sets of tests; each takes about 200 bytes."""


class Expectations:
    """Of one kind of cell.

    Args:
        unseen: what is expected of tests that never came before: SEPARATE where a cell costs less than the wait for the
            plan, SHARED where it is the other way around.
    """

    def __init__(self, unseen: TestIsolation) -> None:
        self._unseen = unseen
        self._seen: OrderedDict[bytes, TestIsolation] = OrderedDict()

    def of(self, run: TestRun) -> TestIsolation:
        """Where the code of a run will probably be."""
        key = _key(run)
        if key not in self._seen:
            return self._unseen
        self._seen.move_to_end(key)
        return self._seen[key]

    def learn(self, run: TestRun, isolation: TestIsolation) -> None:
        """Takes down what the judge settled."""
        key = _key(run)
        self._seen[key] = isolation
        self._seen.move_to_end(key)
        if len(self._seen) > _KEPT:
            self._seen.popitem(last=False)


def _key(run: TestRun) -> bytes:
    """Of all that the judge looks at: the trusted tests and the installed packages."""
    digest = hashlib.blake2b(run.environment.encode(), digest_size=16)
    for file in run.tests:
        for part in (file.path.encode("utf-8", "surrogateescape"), file.content):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
