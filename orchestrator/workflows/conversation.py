"""What the model is told: for each strategy, a prompt of the parts that fit its context, thin enough for a small model.

The task and the latest failure come first; a small model does better with one failing test and its compared values
than with a log.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from orchestrator.models import Message, estimate_tokens
from orchestrator.workflows.artifacts import load, load_files
from orchestrator.workflows.context import CodegenContext
from orchestrator.workflows.failures import describe_failure, essence, failing_tests, last_line
from orchestrator.workflows.interface import required_names, test_source
from orchestrator.workflows.sandbox import Comparison, Execution, Failure, File, TestCase, TestReport
from orchestrator.workflows.spec import CODER, CodegenTask
from orchestrator.workflows.state import BUILDS_ON_BASE, Attempt, Plan, Strategy
from orchestrator.workflows.templates import Part, fenced, fit, template_of

FAILURES_SHOWN = 3
_OWN_PROMPTS: Mapping[str, str] = {}
_TRACEBACK_LINES = 16
_TRACEBACK_CHARS = 1600
_MESSAGE_CHARS = 1200
_VALUE_CHARS = 300
_SOURCE_CHARS = 3000  # a longer test says less than its failure does
_WHERE = re.compile(r"^ *\+ +where (?P<value>.+) = (?P<call>[\w.]+\(.*\))$", re.MULTILINE)  # pytest's own explanation
_TESTS_INTRO = "It must pass these tests, which are in another file (do not repeat them):\n\n"
_RANK_FAILURE, _RANK_TESTS, _RANK_FILES = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Base:
    """The attempt that the prompt is about: its files and what they did."""

    files: tuple[File, ...]
    report: TestReport | None
    execution: Execution | None


async def load_base(attempt: Attempt, context: CodegenContext) -> Base:
    """Reads an attempt back from the artifact store."""
    store = context.artifacts
    report = await load(store, TestReport, attempt.report_hash) if attempt.report_hash else None
    execution = await load(store, Execution, attempt.execution_hash) if attempt.execution_hash else None
    return Base(await load_files(store, attempt.code_hash), report, execution)


def compose(
    plan: Plan, task: CodegenTask, base: Base | None, budget_tokens: int, prompts: Mapping[str, str] = _OWN_PROMPTS
) -> tuple[Message, ...]:
    """The prompt for a plan, in at most about `budget_tokens`.

    Args:
        plan: what to ask for; one that builds on a base without having one is asked as a draft.
        task: the run's task.
        base: the attempt that `plan.base` names.
        budget_tokens: room for the whole prompt.
        prompts: text in the place of prompt files, by their name.

    Raises:
        ContextTooLong: the task and the latest failure alone do not fit.
    """
    prompt = template_of(_template_name(plan.strategy, base), prompts)
    system = template_of("system", prompts).render()
    fixed = {"path": task.solution_path}
    room = budget_tokens - estimate_tokens(system) - estimate_tokens(prompt.text)
    kept = fit([part for part in _parts(plan, task, base) if part.slot in prompt.slots], room)
    slots = {slot: "\n\n".join(part.text for part in kept if part.slot == slot) for slot in prompt.slots - fixed.keys()}
    return Message("system", system), Message("user", prompt.render(**slots, **fixed))


def _template_name(strategy: Strategy, base: Base | None) -> str:
    if base is None or strategy in {Strategy.DRAFT, Strategy.FRESH}:
        return "draft"
    return strategy.value


def _parts(plan: Plan, task: CodegenTask, base: Base | None) -> Iterator[Part]:
    yield Part("task", task.task.strip())
    yield Part("note", plan.note)
    yield Part("interface", interface_text(task))
    corrects = base is not None and plan.strategy in BUILDS_ON_BASE
    if base is not None:
        yield from _failure_parts(task, base)
    shown = base.files if base is not None and corrects else task.files
    given = {file.path: file for file in task.files}
    for file in shown:
        if corrects and (file.path == task.solution_path or given.get(file.path) != file):
            yield Part("code", _file_text(file, named=file.path != task.solution_path))
        else:
            rank = _RANK_FAILURE if file.path == task.solution_path else _RANK_FILES
            yield Part("files", f"The file `{file.path}`:\n\n{_file_text(file)}", rank)
    if not task.hide_tests:
        yield from _test_parts(task)


def _test_parts(task: CodegenTask) -> Iterator[Part]:
    sources = [*task.tests, *([File("check", task.check_script.encode())] if task.check_script else [])]
    for number, file in enumerate(sources):
        intro = "" if number else (_TESTS_INTRO if task.tests else "This program checks it:\n\n")
        yield Part("tests", f"{intro}{_file_text(file)}", _RANK_TESTS)


def interface_text(task: CodegenTask) -> str:
    """What the file must define, from the entry point and from what the tests import; empty where neither says."""
    names = dict.fromkeys([task.entry_point] if task.entry_point else [])
    names.update(dict.fromkeys(required_names(task.tests, task.solution_path)))
    text = f"The file must define: {', '.join(f'`{name}`' for name in names)}." if names else ""
    if sum(file.path.endswith(".py") for file in task.files) > 1:
        text += " To change another file too, give it in a block of its own that begins with the line `# file: PATH`."
    return text.strip()


def _file_text(file: File, *, named: bool = False) -> str:
    try:
        text = file.content.decode()
    except UnicodeDecodeError:
        return f"(binary, {len(file.content)} bytes)"
    language = "python" if PurePosixPath(file.path).suffix in {".py", ""} else ""
    return fenced(f"# file: {file.path}\n{text}" if named else text, language)


def _failure_parts(task: CodegenTask, base: Base) -> Iterator[Part]:
    texts = list(_failure_texts(task, base))
    for number, text in enumerate(texts[:FAILURES_SHOWN]):
        yield Part("failures", text, rank=_RANK_FAILURE if number else 0)


def _failure_texts(task: CodegenTask, base: Base) -> Iterator[str]:
    report, execution = base.report, base.execution
    if report is None:
        if execution is not None:
            yield _program_text(task, execution)
        return
    for error in report.collection_errors:
        text = _failure_text(essence(error.failure), with_frames=not task.hide_tests)
        yield f"The tests could not be loaded:\n\n{text}"
    seen: set[str] = set()
    for test in failing_tests(report):
        source = "" if task.hide_tests else test_source(task.tests, test.node_id)
        shown = source if source not in seen and len(source) <= _SOURCE_CHARS else ""
        yield _test_text(test, shown, hidden=task.hide_tests)
        seen.add(source)
    if not failing_tests(report) and not report.collection_errors:
        yield report.reason or (execution.reason if execution is not None else "") or "No test passed."


def _program_text(task: CodegenTask, execution: Execution) -> str:
    what = "The program that checks it fails" if task.check_script else "Running it fails"
    error = execution.stderr.text()
    # A traceback of the check script quotes its source, so hidden checks show the error alone.
    output = last_line(error) if task.hide_tests else _tail(error) or _tail(execution.stdout.text())
    how = execution.reason or f"exit code {execution.exit_code}"
    return f"{what} ({how})" + (f":\n\n{fenced(output, '')}" if output else ".")


def _test_text(test: TestCase, source: str, *, hidden: bool) -> str:
    name = test.node_id.split("::", 1)[-1]
    head = f"Test `{name}` fails" + (f":\n\n{fenced(source)}\n\nwith" if source else " with")
    return f"{head}\n\n{_failure_text(test.failure, with_frames=not hidden)}"


def _failure_text(failure: Failure | None, *, with_frames: bool) -> str:
    if failure is None:
        return "no result"
    lines = [_clip(failure.message, _MESSAGE_CHARS) or describe_failure(failure)]
    if failure.type and not lines[0].startswith((failure.type, "assert ")):
        lines[0] = f"{failure.type}: {lines[0]}"
    if failure.comparison is not None:
        lines.append(_compared(failure.comparison, failure.message))
    elif with_frames and (frames := _tail(failure.traceback)):
        lines = [frames] if lines[0] in frames else [frames, *lines]
    return fenced("\n".join(lines), "")


def _compared(compared: Comparison, message: str) -> str:
    """The values compared; where one side is known to be a call's, what the call gave and what it must give."""
    calls = {found["value"]: found["call"] for found in _WHERE.finditer(message)}
    for given, wanted in ((compared.left, compared.right), (compared.right, compared.left)):
        if compared.operator == "==" and given in calls and wanted not in calls:
            call, given_text, wanted_text = (_clip(text, _VALUE_CHARS) for text in (calls[given], given, wanted))
            return f"{call} returns {given_text}\nbut must return {wanted_text}"
    left, right = _clip(compared.left, _VALUE_CHARS), _clip(compared.right, _VALUE_CHARS)
    operator = compared.operator
    return f"The left side of `{operator}` was {left}\nThe right side of `{operator}` was {right}"


def _tail(text: str) -> str:
    lines = text.rstrip().splitlines()[-_TRACEBACK_LINES:]
    return "\n".join(lines)[-_TRACEBACK_CHARS:].strip("\n")


def _clip(text: str, limit: int) -> str:
    text = text.strip()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def prompt_budget(context: CodegenContext, output_tokens: int) -> int:
    """Tokens for the prompt: what the reply leaves of the model's context, and never less than half of it."""
    window = context.models.spec(CODER).context_tokens
    return max(window - output_tokens, window // 2)
