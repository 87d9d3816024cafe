"""Copies a run's past, checkpoint by checkpoint, into the thread of another."""

from collections.abc import Sequence
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from orchestrator.errors import WrongState


async def copy_checkpoints(saver: BaseCheckpointSaver[Any], source: str, target: str, path: Sequence[str]) -> None:
    """Copies checkpoints, oldest first, with their ids, into another thread. Done again, it changes nothing."""
    parent: dict[str, str] = {}
    for checkpoint_id in path:
        found = await saver.aget_tuple({"configurable": _place(source, checkpoint_id)})
        if found is None:
            raise WrongState(f"checkpoint {checkpoint_id} of {source} was deleted meanwhile")
        into = {"thread_id": target, "checkpoint_ns": "", **parent}
        versions = found.checkpoint["channel_versions"]
        await saver.aput({"configurable": into}, found.checkpoint, found.metadata, versions)
        parent = {"checkpoint_id": checkpoint_id}


def _place(run_id: str, checkpoint_id: str) -> dict[str, str]:
    return {"thread_id": run_id, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}
