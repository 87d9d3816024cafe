"""Which lines of a text stayed and which did not: Myers' O(ND) algorithm with bounded work.

Where the bound is met, what lies between the common beginning and the common end counts as replaced as a whole: the
answer is never wrong, only longer than it could be.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Span = tuple[int, int, int, int]
"""Lines [0]:[1] of the old text are replaced by lines [2]:[3] of the new one; one of the two may be empty."""


MAXIMUM_DISTANCE = 1000
"""Lines that went or came, between the common beginning and end, up to which a shortest answer is looked for: its trail
grows with their square."""


@dataclass(slots=True)
class Budget:
    """Steps that several comparisons may take together; one is about a tenth of a microsecond."""

    steps: int


def edits(old: Sequence[bytes], new: Sequence[bytes], budget: Budget) -> list[Span]:
    """The replacements that make `new` of `old`, in order, with at least one common line between two of them."""
    start = 0
    shorter = min(len(old), len(new))
    while start < shorter and old[start] == new[start]:
        start += 1
    end = 0
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    a, b = old[start : len(old) - end], new[start : len(new) - end]
    if not a and not b:
        return []
    path = _shortest(a, b, budget) if a and b else None
    if path is None:
        return [(start, start + len(a), start, start + len(b))]
    return [(x0 + start, x1 + start, y0 + start, y1 + start) for x0, x1, y0, y1 in _spans(path, len(a), len(b))]


def _shortest(a: Sequence[bytes], b: Sequence[bytes], budget: Budget) -> list[tuple[int, int]] | None:
    """Pairs of equal lines of a shortest edit script, in order; None where the budget ends first."""
    numbers: dict[bytes, int] = {}
    old = [numbers.setdefault(line, len(numbers)) for line in a]
    new = [numbers.setdefault(line, len(numbers)) for line in b]
    furthest = {1: 0}
    trail: list[dict[int, int]] = []
    for distance in range(min(len(old) + len(new), MAXIMUM_DISTANCE) + 1):
        trail.append({})
        for diagonal in range(-distance, distance + 1, 2):
            down = diagonal == -distance or (
                diagonal != distance and furthest.get(diagonal - 1, -1) < furthest.get(diagonal + 1, -1)
            )
            x = begun = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            y = x - diagonal
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = trail[-1][diagonal] = x
            budget.steps -= 4 + x - begun
            if x >= len(old) and y >= len(new):
                return _walk_back(trail, len(old), len(new))
        if budget.steps < 0:
            return None
    return None


def _walk_back(trail: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for distance in range(len(trail) - 1, 0, -1):
        before = trail[distance - 1]
        diagonal = x - y
        down = diagonal == -distance or (
            diagonal != distance and before.get(diagonal - 1, -1) < before.get(diagonal + 1, -1)
        )
        came = diagonal + 1 if down else diagonal - 1
        from_x = before[came]
        from_y = from_x - came
        while x > from_x and y > from_y:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = from_x, from_y
    while x > 0 and y > 0:
        x, y = x - 1, y - 1
        pairs.append((x, y))
    return pairs[::-1]


def _spans(pairs: list[tuple[int, int]], old: int, new: int) -> list[Span]:
    spans: list[Span] = []
    x = y = 0
    for px, py in [*pairs, (old, new)]:
        if px > x or py > y:
            spans.append((x, px, y, py))
        x, y = px + 1, py + 1
    return spans
