"""What a run is made from: the task of the `codegen` workflow and the options of any run, checked and with defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from orchestrator.models import CallOptions
from orchestrator.workflows.sandbox import File, Limits

CODER = "coder"  # the one model role of `codegen`
DEFAULT_PATH = "solution.py"


@dataclass(frozen=True, slots=True)
class CodegenTask:
    """The input of the `codegen` workflow.

    Attributes:
        task: the task in words.
        files: files to start from.
        entry_point: name that the solution must define; empty: whatever the tests import.
        tests: trusted tests, never changed; not together with `check_script`.
        check_script: source of a program that exits with 0 when the solution beside it is right.
        hide_tests: keep the tests' text from the model.
        solution_path: path of the file to write.
    """

    task: str
    files: tuple[File, ...] = ()
    entry_point: str = ""
    tests: tuple[File, ...] = ()
    check_script: str = ""
    hide_tests: bool = False
    solution_path: str = DEFAULT_PATH


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run is carried out.

    Attributes:
        max_attempts: attempts in all, first drafts included.
        candidates: first drafts made side by side; at most `max_attempts`.
        token_budget: tokens in and out of all model calls; zero: no limit.
        timeout: time of the whole run, waiting in the queue included.
        models: overrides of each role's model.
        environment: sandbox environment; empty: its default.
        limits: limits of each execution.
        omit_tokens: leave model tokens out of the events.
        interrupt_before: nodes before which the run waits; "*": before each.
        interrupt_after: nodes after which it waits; "*": after each.
        prompts: text in the place of prompt files, by their name.
        priority: of the waiting runs of one tenant, lower ones go first.
    """

    max_attempts: int = 4
    candidates: int = 1
    token_budget: int = 0
    timeout: timedelta = timedelta(minutes=10)
    models: Mapping[str, CallOptions] = field(default_factory=dict)
    environment: str = ""
    limits: Limits = field(default_factory=Limits)
    omit_tokens: bool = False
    interrupt_before: tuple[str, ...] = ()
    interrupt_after: tuple[str, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A run to be made: which workflow, on what, how, and for which tenant (may be empty)."""

    workflow: str
    task: CodegenTask
    options: RunOptions = field(default_factory=RunOptions)
    labels: Mapping[str, str] = field(default_factory=dict)
    tenant: str = ""
