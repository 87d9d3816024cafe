"""Keeps what outlives runs bounded, in the background: ended runs every minute, what needs a walk every hour."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import timedelta

from orchestrator.errors import ArtifactError, StoreError
from orchestrator.runs.pruning import Pruner

INTERVAL = timedelta(minutes=1)
ROUNDS_PER_WALK = 60

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def housekeeping(pruner: Pruner) -> AsyncIterator[None]:
    """Does it for as long as the context lasts, and for the first time at once."""
    task = asyncio.create_task(_rounds(pruner), name="housekeeping")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _rounds(pruner: Pruner) -> None:
    count = 0
    while True:
        try:
            await _clean(pruner, walk=count % ROUNDS_PER_WALK == 0)
        except (ArtifactError, StoreError):
            logger.exception("housekeeping failed; it is tried again")
        count += 1
        await asyncio.sleep(INTERVAL.total_seconds())


async def _clean(pruner: Pruner, *, walk: bool) -> None:
    if walk:
        pruned = await pruner.prune()
        runs, artifacts = pruned.runs, pruned.artifacts
    else:
        runs, artifacts = await pruner.prune_runs(), 0
    if runs or artifacts:
        logger.info("old runs deleted", extra={"runs": runs, "artifacts": artifacts})
