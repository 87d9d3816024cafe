"""Workflows: graphs that ask models for code, have it executed, and decide what to do with what they learn."""

from orchestrator.workflows.artifacts import Artifacts, load, load_files, overlay, save, save_files
from orchestrator.workflows.asking import MODEL_PARAMETERS
from orchestrator.workflows.codegen import NAME as CODEGEN
from orchestrator.workflows.codegen import break_off, build, conclude
from orchestrator.workflows.context import CodegenContext, Models
from orchestrator.workflows.driving import EVERY_NODE, Drained, Finished, Paused, Question, drive
from orchestrator.workflows.editrules import NamedArtifact
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
from orchestrator.workflows.filesets import edit_fault
from orchestrator.workflows.graph_types import Graph
from orchestrator.workflows.plain import Plain, as_plain, canonical, decode, encode
from orchestrator.workflows.spec import CODER, DEFAULT_PATH, CodegenTask, RunOptions, RunSpec
from orchestrator.workflows.state import (
    RECORDS,
    Attempt,
    CodegenState,
    Conclusion,
    Outcome,
    Progress,
    Stop,
    Strategy,
    Verdict,
)
from orchestrator.workflows.tape import STEP, Codec, Effect, Request, Step, Tape, Untaped, since
from orchestrator.workflows.templates import check_prompt
from orchestrator.workflows.workflow import WORKFLOWS, Workflow, progress_so_far

__all__ = [
    "CODEGEN",
    "CODER",
    "DEFAULT_PATH",
    "EVERY_NODE",
    "MODEL_PARAMETERS",
    "RECORDS",
    "STEP",
    "WORKFLOWS",
    "Artifacts",
    "Attempt",
    "AttemptFinished",
    "Codec",
    "CodegenContext",
    "CodegenState",
    "CodegenTask",
    "Conclusion",
    "Drained",
    "Effect",
    "ExecutionFinished",
    "Finished",
    "Graph",
    "ModelReplied",
    "ModelTokens",
    "Models",
    "NamedArtifact",
    "NodeFinished",
    "NodeStarted",
    "Outcome",
    "Paused",
    "Plain",
    "Progress",
    "Question",
    "Request",
    "RouteDecision",
    "RunOptions",
    "RunSpec",
    "Step",
    "Stop",
    "Strategy",
    "Tape",
    "Untaped",
    "Verdict",
    "Workflow",
    "WorkflowEvent",
    "as_plain",
    "break_off",
    "build",
    "canonical",
    "check_prompt",
    "conclude",
    "decode",
    "drive",
    "edit_fault",
    "encode",
    "load",
    "load_files",
    "overlay",
    "progress_so_far",
    "save",
    "save_files",
    "since",
]
