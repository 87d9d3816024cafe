"""From a request to a run's specification, with the server's defaults filled in. All violations are told at once."""

import ast
import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePosixPath

from codemend.orchestrator.v1 import runs_pb2

from orchestrator.api.checks import Checker, folders
from orchestrator.models import CallOptions
from orchestrator.runs import RunFilter, RunState, created_at
from orchestrator.workflows import (
    CODEGEN,
    CODER,
    DEFAULT_PATH,
    WORKFLOWS,
    CodegenTask,
    RunOptions,
    RunSpec,
    check_prompt,
)
from orchestrator.workflows.sandbox import File

MAXIMUM_TASK_BYTES = 64 * 1024
MAXIMUM_ATTEMPTS = 100
MAXIMUM_CANDIDATES = 16
MAXIMUM_OUTPUT_TOKENS = 32_768
MAXIMUM_TOKEN_BUDGET = 2**62
MAXIMUM_TIMEOUT = timedelta(hours=24)
MAXIMUM_NAME = 256
MAXIMUM_LABELS, MAXIMUM_LABEL_KEY, MAXIMUM_LABEL_VALUE = 32, 64, 256
MAXIMUM_REQUEST_ID = 128
MAXIMUM_REASON = 1024
MAXIMUM_PRIORITY = 1_000_000
MAXIMUM_PROMPTS, MAXIMUM_PROMPT_BYTES = 16, 64 * 1024
MAXIMUM_PAGE = 200
USUAL_PAGE = 50
TENANT_KEY = "x-codemend-tenant"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a run gets where its request says nothing."""

    max_attempts: int = 4
    timeout: timedelta = timedelta(minutes=10)


def read_spec(
    request: runs_pb2.CreateRunRequest | runs_pb2.GenerateRequest, defaults: Defaults, tenant: str = ""
) -> RunSpec:
    """The run that is asked for, by a tenant that the call's metadata names.

    Raises:
        InvalidRun: with every violation.
    """
    check = Checker()
    check.text("request_id", request.request_id, characters=MAXIMUM_REQUEST_ID)
    check.tenant(TENANT_KEY, tenant)
    spec = request.spec
    if not request.HasField("spec"):
        check.add("spec", "is required")
    elif spec.WhichOneof("input") is None:
        check.add("spec.codegen", "is required")
    if spec.workflow not in {"", CODEGEN}:
        check.add("spec.workflow", f"must be empty or {CODEGEN!r}, not {spec.workflow[:80]!r}")
    task = _task(spec.codegen, check) if spec.HasField("codegen") else CodegenTask(task="")
    options = read_options("spec.options", spec.options, defaults, check)
    labels = read_labels("spec.labels", spec.labels, check)
    check.raise_if_any()
    return RunSpec(CODEGEN, task, options, labels, tenant)


def read_run_id(run_id: str) -> str:
    """The id of a run. Raises InvalidRun where it is empty or cannot be one."""
    check = Checker()
    check.id("run_id", run_id)
    check.raise_if_any()
    return run_id


def read_watch(request: runs_pb2.WatchRunRequest) -> tuple[str, int]:
    """The id of a run and the number after which its events are asked for. Raises InvalidRun."""
    check = Checker()
    check.id("run_id", request.run_id)
    if request.after_sequence < 0:
        check.add("after_sequence", f"must not be negative, not {request.after_sequence}")
    check.raise_if_any()
    return request.run_id, request.after_sequence


def read_cancel(request: runs_pb2.CancelRunRequest) -> tuple[str, str]:
    """The id of a run and the reason to end it. Raises InvalidRun."""
    check = Checker()
    check.id("run_id", request.run_id)
    check.text("reason", request.reason, characters=MAXIMUM_REASON)
    check.raise_if_any()
    return request.run_id, request.reason or "cancelled by CancelRun"


def read_list(request: runs_pb2.ListRunsRequest, tenant: str) -> RunFilter:
    """Which runs are asked for. Raises InvalidRun."""
    check = Checker()
    check.tenant(TENANT_KEY, tenant)
    size = check.number("page_size", request.page_size, least=0, most=MAXIMUM_PAGE)
    states = set()
    for number in request.states:
        name = runs_pb2.RunState.Name(number).removeprefix("RUN_STATE_") if number in runs_pb2.RunState.values() else ""
        if name not in RunState.__members__:
            check.add("states", f"{number} is no state of a run")
        else:
            states.add(RunState[name])
    if request.workflow not in {"", CODEGEN}:
        check.add("workflow", f"must be empty or {CODEGEN!r}, not {request.workflow[:80]!r}")
    token = request.page_token
    check.id("page_token", token, required=False)
    if token and created_at(token) is None:
        check.add("page_token", "is not the token of a page")
    labels = read_labels("labels", request.labels, check)
    check.raise_if_any()
    return RunFilter(tenant, frozenset(states), request.workflow, labels, token, size or USUAL_PAGE)


def _task(message: runs_pb2.CodegenInput, check: Checker) -> CodegenTask:
    at = "spec.codegen"
    if not message.task.strip():
        check.add(f"{at}.task", "is required")
    check.text(f"{at}.task", message.task, size_bytes=MAXIMUM_TASK_BYTES)
    check.text(f"{at}.check_script", message.check_script, size_bytes=MAXIMUM_TASK_BYTES)
    if message.check_script and _does_nothing(message.check_script):
        check.add(f"{at}.check_script", "must have at least one statement: what does nothing would pass any code")
    name = message.entry_point
    if name and (not name.isidentifier() or keyword.iskeyword(name)):
        check.add(f"{at}.entry_point", f"must be the name of a function or class, not {name[:80]!r}")
    files = check.files(f"{at}.files", message.files)
    tests = check.files(f"{at}.tests", message.tests)
    if tests and message.check_script:
        check.add(f"{at}.check_script", "must not be given together with tests")
    if tests and not any(_is_collected(file.path) for file in tests):
        check.add(f"{at}.tests", "must have at least one file that pytest collects: test_*.py or *_test.py")
    return CodegenTask(
        task=message.task,
        files=files,
        entry_point=name,
        tests=tests,
        check_script=message.check_script,
        hide_tests=message.hide_tests,
        solution_path=_solution_path(message.solution_path, files, check),
    )


def _does_nothing(script: str) -> bool:
    """Whether it is Python of comments, bare values and `pass` alone. What does not parse fails when it is run."""
    try:
        body = ast.parse(script).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(
        isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in body
    )


def _is_collected(path: str) -> bool:
    name = PurePosixPath(path).name
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def _solution_path(path: str, files: tuple[File, ...], check: Checker) -> str:
    at = "spec.codegen.solution_path"
    if not path:
        return files[0].path if len(files) == 1 and files[0].path.endswith(".py") else DEFAULT_PATH
    check.path(at, path)
    if not path.endswith(".py"):
        check.add(at, f"must end in .py, not {path[-80:]!r}")
    others = {file.path for file in files}
    if path in set(folders(others)) or others & set(folders([path])):
        check.add(at, f"{path!r} would be a file where `files` need a folder, or the other way round")
    return path


def read_options(at: str, message: runs_pb2.RunOptions, defaults: Defaults, check: Checker) -> RunOptions:
    """Options of a run, with the defaults filled in; `check` takes what is wrong with those at `at`."""
    attempts = check.number(f"{at}.max_attempts", message.max_attempts, least=0, most=MAXIMUM_ATTEMPTS)
    candidates = check.number(f"{at}.candidates", message.candidates, least=0, most=MAXIMUM_CANDIDATES) or 1
    if 0 < attempts < candidates:
        check.add(f"{at}.candidates", f"must be at most max_attempts ({attempts}), not {candidates}")
    budget = check.number(f"{at}.token_budget", message.token_budget, least=0, most=MAXIMUM_TOKEN_BUDGET)
    timeout = defaults.timeout
    if message.HasField("timeout"):
        timeout = check.duration(f"{at}.timeout", message.timeout, most=MAXIMUM_TIMEOUT) or timeout
    return RunOptions(
        max_attempts=attempts or max(defaults.max_attempts, candidates),
        candidates=candidates,
        token_budget=budget,
        timeout=timeout,
        models={
            role: _model(f"{at}.models[{role[:80]}]", role, options, check)
            for role, options in sorted(message.models.items())
        },
        environment=check.text(f"{at}.environment", message.environment, characters=MAXIMUM_NAME),
        limits=check.limits(f"{at}.limits", message.limits, most=MAXIMUM_TIMEOUT),
        omit_tokens=message.omit_tokens,
        interrupt_before=read_nodes(f"{at}.interrupt_before", message.interrupt_before, check),
        interrupt_after=read_nodes(f"{at}.interrupt_after", message.interrupt_after, check),
        prompts=_prompts(f"{at}.prompts", message.prompts, check),
        priority=check.number(f"{at}.priority", message.priority, least=0, most=MAXIMUM_PRIORITY),
    )


def read_nodes(at: str, names: Sequence[str], check: Checker) -> tuple[str, ...]:
    """Nodes to stop at: names of the workflow's nodes, or "*" for all of them."""
    known = WORKFLOWS[CODEGEN].nodes
    for name in names:
        if name not in {"*", *known}:
            check.add(at, f'there is no node {name[:80]!r}; the nodes are {", ".join(known)}, or "*" for all')
    return tuple(dict.fromkeys(names))


def _prompts(at: str, prompts: Mapping[str, str], check: Checker) -> dict[str, str]:
    if len(prompts) > MAXIMUM_PROMPTS:
        check.add(at, f"must have at most {MAXIMUM_PROMPTS} prompts, not {len(prompts)}")
    for name, text in sorted(prompts.items()):
        check.text(f"{at}[{name[:80]}]", text, size_bytes=MAXIMUM_PROMPT_BYTES)
        if fault := check_prompt(name, text):
            check.add(f"{at}[{name[:80]}]", fault)
    return dict(sorted(prompts.items()))


def _model(at: str, role: str, message: runs_pb2.ModelOptions, check: Checker) -> CallOptions:
    if role != CODER:
        check.add(at, f"there is no such role; {CODEGEN!r} has the role {CODER!r} alone")
    tokens = check.number(f"{at}.max_output_tokens", message.max_output_tokens, least=0, most=MAXIMUM_OUTPUT_TOKENS)
    temperature = message.temperature if message.HasField("temperature") else None
    if temperature is not None:
        check.temperature(f"{at}.temperature", temperature)
    model = check.text(f"{at}.model", message.model, characters=MAXIMUM_NAME)
    return CallOptions(model=model, temperature=temperature, max_output_tokens=tokens)


def read_labels(at: str, labels: Mapping[str, str], check: Checker) -> dict[str, str]:
    """Labels in order of name; `check` takes what is wrong with those at `at`."""
    if len(labels) > MAXIMUM_LABELS:
        check.add(at, f"must have at most {MAXIMUM_LABELS} labels, not {len(labels)}")
    for key, value in sorted(labels.items()):
        if not key:
            check.add(at, "a label must have a name")
        check.text(f"{at}[{key[:80]}]", key, characters=MAXIMUM_LABEL_KEY)
        check.text(f"{at}[{key[:80]}]", value, characters=MAXIMUM_LABEL_VALUE)
    return dict(sorted(labels.items()))
