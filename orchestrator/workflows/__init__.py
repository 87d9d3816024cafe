"""Workflows: graphs that ask models for code, have it executed, and decide what to do with what they learn."""

from orchestrator.workflows.artifacts import Artifacts, encode, load, load_files, save, save_files
from orchestrator.workflows.codegen import NAME as CODEGEN
from orchestrator.workflows.codegen import Graph, build, conclude, run
from orchestrator.workflows.context import CodegenContext, Models
from orchestrator.workflows.events import (
    AttemptFinished,
    ExecutionFinished,
    ModelReplied,
    ModelTokens,
    NodeFinished,
    NodeStarted,
    RouteDecision,
    WorkflowEvent,
)
from orchestrator.workflows.spec import CODER, DEFAULT_PATH, CodegenTask, RunOptions, RunSpec
from orchestrator.workflows.state import RECORDS, Attempt, Conclusion, Outcome, Progress, Stop, Strategy, Verdict

__all__ = [
    "CODEGEN",
    "CODER",
    "DEFAULT_PATH",
    "RECORDS",
    "Artifacts",
    "Attempt",
    "AttemptFinished",
    "CodegenContext",
    "CodegenTask",
    "Conclusion",
    "ExecutionFinished",
    "Graph",
    "ModelReplied",
    "ModelTokens",
    "Models",
    "NodeFinished",
    "NodeStarted",
    "Outcome",
    "Progress",
    "RouteDecision",
    "RunOptions",
    "RunSpec",
    "Stop",
    "Strategy",
    "Verdict",
    "WorkflowEvent",
    "build",
    "conclude",
    "encode",
    "load",
    "load_files",
    "run",
    "save",
    "save_files",
]
