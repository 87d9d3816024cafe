"""Keeps what outlives runs bounded: forgotten runs lose their checkpoints, and old artifacts are deleted."""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from orchestrator.errors import ArtifactError
from orchestrator.runs.artifacts import DirectoryStore
from orchestrator.runs.checkpoints import prune
from orchestrator.runs.manager import RunManager

INTERVAL = timedelta(minutes=1)
ROUNDS_PER_PRUNING = 60  # what needs a walk through everything is done once an hour

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def housekeeping(
    manager: RunManager, saver: AsyncSqliteSaver, artifacts: DirectoryStore, *, keep_for: timedelta
) -> AsyncIterator[None]:
    """Does it in the background for as long as the context lasts, and for the first time at once."""
    task = asyncio.create_task(_rounds(manager, saver, artifacts, keep_for), name="housekeeping")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _rounds(manager: RunManager, saver: AsyncSqliteSaver, artifacts: DirectoryStore, keep_for: timedelta) -> None:
    count = 0
    while True:
        try:
            await clean(manager, saver, artifacts, keep_for=keep_for if count % ROUNDS_PER_PRUNING == 0 else None)
        except (ArtifactError, sqlite3.Error):
            logger.exception("housekeeping failed; it is tried again")
        count += 1
        await asyncio.sleep(INTERVAL.total_seconds())


async def clean(
    manager: RunManager, saver: AsyncSqliteSaver, artifacts: DirectoryStore, *, keep_for: timedelta | None
) -> None:
    """One round. With `keep_for`, also what earlier processes left behind and is older than that."""
    manager.forget_old()
    for run_id in manager.take_forgotten():
        await saver.adelete_thread(run_id)
    if keep_for is not None:
        threads = await prune(saver, keep_for)
        files = await artifacts.prune(keep_for)
        if threads or files:
            logger.info("old leftovers deleted", extra={"runs": threads, "artifacts": files})
