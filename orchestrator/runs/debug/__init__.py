"""Taking runs apart: looking into them, editing and resuming them, forks, and two of them side by side."""

from orchestrator.runs.debug.editing import Edit, Editor
from orchestrator.runs.debug.forking import Fork, Forker
from orchestrator.runs.debug.looking import Comparison, Looker

__all__ = ["Comparison", "Edit", "Editor", "Fork", "Forker", "Looker"]
