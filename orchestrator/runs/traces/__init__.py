"""What runs did, step by step: their points, where two of them part, and how one is played again."""

from orchestrator.runs.traces.comparing import OF_ITS_TIME, Divergence, Trace, compare
from orchestrator.runs.traces.copying import copy_checkpoints
from orchestrator.runs.traces.origins import fork_behind
from orchestrator.runs.traces.points import FieldChange, Point, changes, own_path, path_to, read_points
from orchestrator.runs.traces.replaying import edited_as, last_node, replay

__all__ = [
    "OF_ITS_TIME",
    "Divergence",
    "FieldChange",
    "Point",
    "Trace",
    "changes",
    "compare",
    "copy_checkpoints",
    "edited_as",
    "fork_behind",
    "last_node",
    "own_path",
    "path_to",
    "read_points",
    "replay",
]
