"""When a job that came now would start: the fair queue played forward with the expected duration of each tenant's jobs.

Pure functions of a snapshot. A forecast is the least wait that is to be expected: whoever comes later and is served
first is not known yet, and a forecast that becomes too long to play is cut off at the time it has reached.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sandbox_service.fairness import Line

MOST_STARTS = 1024
"""Starts that are played at most; one takes about 2 µs."""


@dataclass(slots=True)
class _Player:
    tag: float
    latest_start: int
    waiting: int
    running: int
    cost: float
    ends: float = 0.0  # sum of the times at which its running jobs end

    def in_advance(self, now: float) -> float:
        """Seconds that its running jobs have been charged and have not held yet."""
        return self.ends - self.running * now


def expected_wait(
    lines: Mapping[str, Line],
    remaining: Iterable[tuple[float, str]],
    *,
    newcomer: str,
    places: int,
    limit: int | None,
    virtual: float,
) -> float:
    """Seconds until a job of `newcomer`, behind all that wait, starts.

    Args:
        lines: of every tenant with a job, and of the newcomer.
        remaining: seconds until each held place is free, with its tenant.
        newcomer: tenant of the job.
        places: places in all.
        limit: places that one tenant may hold; None: any number.
        virtual: virtual time of the queue, the highest settled tag of a start.
    """
    players = {
        name: _Player(line.tag, line.latest_start, line.waiting, line.running, line.cost)
        for name, line in lines.items()
    }
    mine = players[newcomer]
    mine.waiting += 1
    ends = list(remaining)
    heapq.heapify(ends)
    for end, name in ends:
        players[name].ends += end
    ready = [(player.tag, player.latest_start, name) for name, player in players.items() if _may_start(player, limit)]
    heapq.heapify(ready)
    now, first = 0.0, 1 + max(player.latest_start for player in players.values())
    for number in range(first, first + MOST_STARTS):
        while ends and (not ready or len(ends) >= places):
            now, name = heapq.heappop(ends)
            player = players[name]
            was_held_back = not _may_start(player, limit)
            player.running -= 1
            player.ends -= now
            if was_held_back and _may_start(player, limit):
                holders = (players[held] for held in {held for _, held in ends} - {name})
                settled = (one.tag - one.in_advance(now) for one in holders if _may_start(one, limit))
                present = min(virtual, ready[0][0], *settled) if ready else virtual
                player.tag = max(player.tag, present + player.in_advance(now))
                heapq.heappush(ready, (player.tag, player.latest_start, name))
        if not ready:
            break
        _, _, name = heapq.heappop(ready)
        player = players[name]
        player.waiting -= 1
        if player is mine and not mine.waiting:
            break
        virtual = max(virtual, player.tag - player.in_advance(now))
        player.running += 1
        player.ends += now + player.cost
        player.tag += player.cost
        player.latest_start = number
        heapq.heappush(ends, (now + player.cost, name))
        if _may_start(player, limit):
            heapq.heappush(ready, (player.tag, player.latest_start, name))
    return now


def _may_start(player: _Player, limit: int | None) -> bool:
    return player.waiting > 0 and (limit is None or player.running < limit)
