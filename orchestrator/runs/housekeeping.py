"""Keeps what outlives runs and replicas bounded, in the background.

Ended runs go every minute; what needs a walk, and the heartbeats of replicas that are long dead, every hour.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from orchestrator.errors import ArtifactError, StoreError
from orchestrator.runs.pruning import Pruner
from orchestrator.runs.store import ReplicaRows

INTERVAL = timedelta(minutes=1)
ROUNDS_PER_WALK = 60
DEAD_AFTER = timedelta(days=1)  # by the clocks of two machines: far more than they may differ by

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def housekeeping(pruner: Pruner, replicas: ReplicaRows) -> AsyncIterator[None]:
    """Does it for as long as the context lasts, and for the first time at once."""
    task = asyncio.create_task(_rounds(pruner, replicas), name="housekeeping")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _rounds(pruner: Pruner, replicas: ReplicaRows) -> None:
    count = 0
    while True:
        try:
            await _clean(pruner, replicas, walk=count % ROUNDS_PER_WALK == 0)
        except (ArtifactError, StoreError):
            logger.exception("housekeeping failed; it is tried again")
        except Exception:  # one bad row or file must not let all others pile up
            logger.exception("fault in housekeeping; it is tried again")
        count += 1
        await asyncio.sleep(INTERVAL.total_seconds())


async def _clean(pruner: Pruner, replicas: ReplicaRows, *, walk: bool) -> None:
    if walk:
        await replicas.forget(datetime.now(UTC) - DEAD_AFTER)
        pruned = await pruner.prune()
        runs, artifacts = pruned.runs, pruned.artifacts
    else:
        runs, artifacts = await pruner.prune_runs(), 0
    if runs or artifacts:
        logger.info("old runs deleted", extra={"runs": runs, "artifacts": artifacts})
