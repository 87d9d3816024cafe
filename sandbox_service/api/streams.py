"""How many streaming calls there may be: one whose caller neither reads nor leaves holds its place, and no other's.

gRPC cannot end a call before its caller has made room for the end, so a place is free when the call is over on the
wire, and not when its handler has ended.
"""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from sandbox_service.api.once import Context
from sandbox_service.errors import TooManyStreams


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Streaming calls at one time: of all tenants together, and of one."""

    total: int
    per_tenant: int


class StreamPlaces:
    """Counts the streaming calls of a server."""

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Streaming calls now, of all tenants."""
        return self._held.total()

    def take(self, tenant: str, context: Context) -> None:
        """Takes a place for a call, which gives it back when it is over.

        Raises:
            TooManyStreams: the server's or the tenant's number is reached.
        """
        mine = self._held[tenant]
        if mine >= self._limits.per_tenant:
            raise TooManyStreams(f"the tenant has {mine} streaming calls already")
        if (total := self.held) >= self._limits.total:
            raise TooManyStreams(f"this server has {total} streaming calls already")
        self._held[tenant] += 1
        give_back: Any = partial(self._give_back, tenant)  # the stubs ask for a class of their own in place of this
        context.add_done_callback(give_back)

    def _give_back(self, tenant: str, _context: Context) -> None:
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
