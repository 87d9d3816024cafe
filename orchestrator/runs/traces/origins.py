"""Where the past of a run comes from that shares one with another."""

from orchestrator.errors import RunNotFound
from orchestrator.runs.records import Origin, OriginKind
from orchestrator.runs.store import RunRows


async def fork_behind(runs: RunRows, origin: Origin | None) -> Origin | None:
    """Where a fork branched off: this one, or the one that this is a replay of, over however many replays.

    Returns:
        None where there is no fork, or no record of it any more.
    """
    while origin is not None and origin.kind is OriginKind.REPLAY:
        try:
            origin = (await runs.get(origin.run_id)).origin
        except RunNotFound:
            origin = None
    return origin
