"""The nodes that ask the model: `generate` and `repair` are this one function, told apart by the plan's strategy.

An empty, truncated or unparsable reply becomes an attempt without code, never a draft to execute; so does code that
was tried before.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from orchestrator.errors import ArtifactError, OutOfTime, TemplateError
from orchestrator.models import (
    CallOptions,
    ContextTooLong,
    Extraction,
    Message,
    ModelError,
    Reply,
    extract_code,
)
from orchestrator.workflows.answers import MODEL, OWNER
from orchestrator.workflows.artifacts import load_files, overlay, save_files
from orchestrator.workflows.context import CodegenContext
from orchestrator.workflows.conversation import compose, load_base, prompt_budget
from orchestrator.workflows.events import ModelReplied
from orchestrator.workflows.failures import one_line
from orchestrator.workflows.filesets import MOST_BYTES, MOST_FILES, clash, size_of
from orchestrator.workflows.interface import required_names
from orchestrator.workflows.plain import as_plain, clean_text
from orchestrator.workflows.sandbox import File
from orchestrator.workflows.spec import CODER, CodegenTask
from orchestrator.workflows.state import (
    BUILDS_ON_BASE,
    Attempt,
    CodegenState,
    Draft,
    Outcome,
    Plan,
    Stop,
    Verdict,
)
from orchestrator.workflows.tape import STEP, Effect, Request

WARM_TEMPERATURE = 0.8  # another sample must differ from the last; at 0.2 small models repeat themselves
MODEL_PARAMETERS = ("temperature", "max_output_tokens", "context_tokens")
"""Of a ModelSpec: what prompts and options of calls are made with."""
_MAX_PATH_BYTES, _MAX_PART_BYTES = 1024, 255  # the sandbox's own limits


async def ask(state: CodegenState, context: CodegenContext) -> CodegenState:
    """Asks the model for what the plan says, and takes the code from its reply."""
    plan = state["plan"]
    if (stop := await context.limit_met(f"before attempt {plan.number}", spends_tokens=True)) is not None:
        return {"stop": stop, "draft": None}
    options = call_options(plan, context)
    try:
        messages = await _prompt(plan, context, options)
        reply = await _reply(messages, options, plan, context)
    except ModelError as error:
        return _broken(plan, error)
    except (TemplateError, ArtifactError) as error:
        stop = Stop(Outcome.ERROR, one_line(str(error)))
        return {"attempts": [_without_code(plan, Verdict.ERROR, stop.reason)], "stop": stop, "draft": None}
    except OutOfTime as error:
        stop = Stop(Outcome.BUDGET_EXHAUSTED, str(error))
        return {"attempts": [_without_code(plan, Verdict.STOPPED, stop.reason)], "stop": stop, "draft": None}
    return await _take(reply, plan, context)


async def _reply(messages: Sequence[Message], options: CallOptions, plan: Plan, context: CodegenContext) -> Reply:
    content = {
        "role": CODER,
        "messages": as_plain(tuple[Message, ...], tuple(messages)),
        "options": as_plain(CallOptions, options),
    }

    spec = context.models.spec(CODER)
    made_with = {name: getattr(spec, name) for name in MODEL_PARAMETERS}

    async def call() -> Reply:
        return await context.models.complete(CODER, messages, options=options, on_delta=_listener(plan, context))

    async def live() -> Reply:
        return await context.within_time(call, "while the model answered")

    reply = await context.tape.take(Request(Effect.MODEL, content, made_with), live, MODEL)
    STEP.get().usage = reply.usage
    return reply


def call_options(plan: Plan, context: CodegenContext) -> CallOptions:
    """The run's own overrides, with more warmth for another sample and more room after a reply that was cut off."""
    options, spec = context.overrides(), context.models.spec(CODER)
    if plan.warm:
        usual = spec.temperature if options.temperature is None else options.temperature
        options = replace(options, temperature=max(usual, WARM_TEMPERATURE))
    if plan.wide:
        usual_tokens = options.max_output_tokens or spec.max_output_tokens
        options = replace(options, max_output_tokens=max(usual_tokens, min(2 * usual_tokens, spec.context_tokens // 2)))
    return options


async def _prompt(plan: Plan, context: CodegenContext, options: CallOptions) -> tuple[Message, ...]:
    attempt = context.progress.find(plan.base) if plan.base else None
    base = await load_base(attempt, context) if attempt is not None else None
    room = prompt_budget(context, options.max_output_tokens or context.models.spec(CODER).max_output_tokens)
    return compose(plan, context.task, base, room, context.prompts)


def _listener(plan: Plan, context: CodegenContext) -> Callable[[str], None] | None:
    send = context.emit_tokens
    if send is None:
        return None
    return lambda text: send(plan.number, clean_text(text))


def _broken(plan: Plan, error: ModelError) -> CodegenState:
    what = "the task does not fit the model" if isinstance(error, ContextTooLong) else "the model could not be used"
    reason = one_line(f"{what}: {error}")
    STEP.get().usage = error.usage
    return {
        "attempts": [replace(_without_code(plan, Verdict.ERROR, reason), usage=error.usage)],
        "usage": error.usage,
        "stop": Stop(Outcome.ERROR, reason),
        "draft": None,
    }


def _without_code(plan: Plan, verdict: Verdict, summary: str) -> Attempt:
    spent = STEP.get().elapsed
    return Attempt(plan.number, plan.strategy, verdict, base=plan.base, summary=summary, duration=spent)


async def _take(reply: Reply, plan: Plan, context: CodegenContext) -> CodegenState:
    """Makes a draft of the reply's code, or an attempt that says why there is none."""
    files, fault = await asyncio.to_thread(read_code, reply, context.task)  # parsing may take a second
    whole = () if fault else overlay(await _below(plan, context), files)
    fault = fault or too_much(files, whole)
    replied = ModelReplied(plan.number, reply.model, reply.finish_reason, reply.usage, reply.duration, fault)
    context.emit(replied)
    found: CodegenState = {"usage": reply.usage, "draft": None}
    if fault:
        attempt = replace(
            _without_code(plan, Verdict.UNUSABLE, one_line(fault)),
            truncated=reply.finish_reason == "length",
            fingerprint=f"unusable: {one_line(fault)}",
            usage=reply.usage,
        )
        return {**found, "attempts": [attempt]}
    code_hash = await save_files(context.artifacts, whole)
    if (owner := await _owner(code_hash, plan, context)) != plan.number:
        summary = f"the same code as attempt {owner}, not executed again"
        attempt = _without_code(plan, Verdict.DUPLICATE, summary)
        return {**found, "attempts": [replace(attempt, code_hash=code_hash, usage=reply.usage)]}
    draft = Draft(plan.number, plan.strategy, plan.base, code_hash, STEP.get().elapsed, reply.usage)
    return {**found, "draft": draft}


async def _owner(code_hash: str, plan: Plan, context: CodegenContext) -> int:
    """Number of the attempt that has this code to execute; the others with the same are duplicates of it.

    Which of several candidates was first is chance, so the winner's claim is written down, too: begun again after a
    crash in another order, each would else take another one for the first, and none be executed.
    """
    first = context.progress.claim(code_hash, plan.number)
    races = context.options.candidates > 1 and not plan.base
    told = first if races or first != plan.number else None
    owner = await context.tape.decided(Effect.RACE, told, OWNER)
    if owner is None:
        return plan.number
    context.progress.give(code_hash, owner)
    return owner


async def _below(plan: Plan, context: CodegenContext) -> Iterable[File]:
    """What a reply's files are laid over: a correction changes its base, anything else starts from the task's files."""
    attempt = context.progress.find(plan.base)
    if attempt is None or plan.strategy not in BUILDS_ON_BASE:
        return context.task.files
    return await load_files(context.artifacts, attempt.code_hash)


def read_code(reply: Reply, task: CodegenTask) -> tuple[tuple[File, ...], str]:
    """The files in a reply, or none and a sentence that says what is wrong with it."""
    names = [task.entry_point] if task.entry_point else list(required_names(task.tests, task.solution_path))
    extraction = Extraction({}, "")
    for name in dict.fromkeys([*names[:1], ""]):  # code that lacks the name is still code: its failure says more
        extraction = extract_code(
            reply.text, finish_reason=reply.finish_reason, default_path=task.solution_path, entry_point=name
        )
        if not extraction.fault:
            break
    if extraction.fault:
        return (), extraction.fault
    files = _placed(extraction.files, task)
    if wrong := next((path for path in files if not is_safe_path(path)), None):
        return (), f"the reply names a file {one_line(wrong, 80)!r}, which is no relative path"
    if both := clash({*files, *(file.path for file in task.files)}):
        return (), f"the reply uses {one_line(both, 80)!r} as a file and as a folder"
    if task.solution_path not in files and all(file.path != task.solution_path for file in task.files):
        return (), f"the reply does not hold the file {task.solution_path}"
    return tuple(File(path, text.encode("utf-8", "replace")) for path, text in files.items()), ""


def too_much(files: Sequence[File], whole: Iterable[File]) -> str:
    """What is wrong with the size of a reply's files, or of the solution that they make; empty where nothing is."""
    if len(files) > MOST_FILES:
        return f"the reply has {len(files)} files, and at most {MOST_FILES} are allowed; answer with fewer"
    if (size := size_of(whole)) > MOST_BYTES:
        return f"the files have {size} bytes in all, and at most {MOST_BYTES} are allowed; answer with less code"
    return ""


def _placed(files: Mapping[str, str], task: CodegenTask) -> Mapping[str, str]:
    """A single block is the solution, unless its first line names another given file, as the prompt asks for."""
    if len(files) == 1:
        ((_, text),) = files.items()
        named = text.split("\n", 1)[0].removeprefix("# file:").strip()
        return {named if named in {file.path for file in task.files} else task.solution_path: text}
    return files


def is_safe_path(path: str) -> bool:
    """Whether the sandbox would take it: relative, without `..`, empty or over-long parts, NUL or lone surrogates."""
    try:
        size = len(path.encode())
        parts = [part.encode() for part in path.split("/")]
    except UnicodeEncodeError:
        return False
    if "\x00" in path or size > _MAX_PATH_BYTES or PurePosixPath(path).is_absolute():
        return False
    return all(part not in {b"", b".", b".."} and len(part) <= _MAX_PART_BYTES for part in parts)
