"""Runs as OpenTelemetry traces: a run, its nodes, and the model call or sandbox job within each.

Only `open_tracing` decides whether there are any: without an endpoint nothing is imported, wrapped or sent. All work on
a run, also that of other replicas, belongs to one trace, since its ids are made of the run's id.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from orchestrator.models import CallOptions, Message, ModelSpec, Reply
from orchestrator.runs import Observer, RunRecord, RunResult
from orchestrator.runs.events import Payload
from orchestrator.workflows import STEP, AttemptFinished, Models, NodeFinished, NodeStarted, RouteDecision
from orchestrator.workflows.sandbox import NO_CALLER, Caller, Execution, ProgramJob, Sandbox, TestJob, TestReport

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, SpanContext, SpanKind, Tracer

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SERVICE_NAME = "codemend-orchestrator"
_STOP_TIME = timedelta(seconds=5)  # for the last spans to be sent; a receiver that is gone must not hold up a stop
_AFTERWORDS = timedelta(milliseconds=200)  # after the end of a node, for what is told of it then
_MAX_CONTENT = 64 * 1024  # characters of a prompt or reply in one attribute

Headers: TypeAlias = Sequence[tuple[str, str]]
_FIXED_IDS: ContextVar[tuple[int, int] | None] = ContextVar("codemend_fixed_trace_ids", default=None)


def no_headers() -> Headers:
    """Where nothing is traced, calls carry nothing of it."""
    return ()


@dataclass(frozen=True, slots=True)
class Traced:
    """What runs are carried out with, looked at by traces where there are any."""

    models: Models
    sandbox: Sandbox
    observer: Observer | None


@contextlib.asynccontextmanager
async def open_tracing(*, content: bool) -> AsyncIterator["Tracing | None"]:
    """Traces where OpenTelemetry's standard variables name an endpoint, else None; what is left is sent at the end.

    Args:
        content: prompts and replies are sent, too.
    """
    if not any(os.environ.get(name) for name in ENDPOINTS) or _is_off():
        yield None
        return
    try:
        provider = _provider()
    except ImportError as error:
        logger.warning("nothing is traced: %s; install codemend[otel]", error)
        yield None
        return
    tracing = Tracing(provider, content=content)
    try:
        yield tracing
    finally:
        tracing.close()
        try:
            async with asyncio.timeout(_STOP_TIME.total_seconds()):
                await asyncio.to_thread(provider.shutdown)
        except TimeoutError:
            logger.warning("the last spans could not be sent in time")


def _is_off() -> bool:
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return disabled or os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none"


def _provider() -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - optional
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - optional
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - optional
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - optional
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator  # noqa: PLC0415 - optional

    class Ids(RandomIdGenerator):
        """Random ids, except where those of a run's own span are asked for."""

        def generate_span_id(self) -> int:
            fixed = _FIXED_IDS.get()
            return fixed[1] if fixed is not None else super().generate_span_id()

        def generate_trace_id(self) -> int:
            fixed = _FIXED_IDS.get()
            return fixed[0] if fixed is not None else super().generate_trace_id()

    resource = Resource.create()
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": SERVICE_NAME}))
    provider = TracerProvider(resource=resource, id_generator=Ids(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class Tracing:
    """Makes the spans; as an observer of runs it is told of their nodes and ends."""

    def __init__(self, provider: "TracerProvider", *, content: bool) -> None:
        self.tracer: Tracer = provider.get_tracer("codemend")
        self.content = content
        self._steps: dict[str, tuple[Span, int]] = {}  # spans of the nodes at work, and their attempts
        self._ending: dict[int, Callable[[], None]] = {}  # what ends those that are over

    def wrap(self, models: Models, sandbox: Sandbox) -> Traced:
        """The same parts, looked at."""
        return Traced(_TracedModels(self, models), _TracedSandbox(self, sandbox), self)

    def told(self, run_id: str, event: Payload) -> None:
        """A node's span begins and ends with it."""
        match event:
            case NodeStarted():
                self._begin(run_id, event)
            case NodeFinished():
                self._end(event)
            case AttemptFinished():
                self._judged(event)
            case RouteDecision():
                self._routed(event)

    def ended(self, record: RunRecord, result: RunResult) -> None:
        """The run's own span, which all others hang below, is sent once, at its end."""
        from opentelemetry.context import Context  # noqa: PLC0415 - optional

        attributes: dict[str, str | int | float] = {
            "codemend.run_id": record.run_id,
            "codemend.workflow": record.workflow,
            "codemend.outcome": result.outcome.value,
            "codemend.attempts": len(result.attempts),
            "gen_ai.usage.input_tokens": result.usage.input_tokens,
            "gen_ai.usage.output_tokens": result.usage.output_tokens,
        }
        token = _FIXED_IDS.set(ids_of(record.run_id))
        try:
            span = self.tracer.start_span(
                f"run {record.workflow}", Context(), attributes=attributes, start_time=_nanoseconds(record.create_time)
            )
        finally:
            _FIXED_IDS.reset(token)
        for attempt in result.attempts:
            span.add_event("attempt", {"codemend.attempt": attempt.number, "codemend.verdict": attempt.verdict.value})
        span.end()

    def _begin(self, run_id: str, started: NodeStarted) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - optional

        above = self._steps.get(started.step_id.rpartition("/")[0])  # a candidate's step lies below the candidate
        parent = above[0].get_span_context() if above is not None else _run_context(run_id)
        attributes: dict[str, str | int] = {
            "codemend.run_id": run_id,
            "codemend.node": started.node,
            "codemend.attempt": started.attempt,
        }
        context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        span = self.tracer.start_span(f"node {started.node}", context, attributes=attributes)
        self._steps[started.step_id] = (span, started.attempt)

    def _end(self, finished: NodeFinished) -> None:
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 - optional

        at_work = self._steps.get(finished.step_id)
        if at_work is None:
            return
        if finished.error:
            at_work[0].set_status(StatusCode.ERROR, "the node ended with an error")
        # A node tells its attempt's verdict and its route right after its end, which still belong to it.
        end = partial(self._close, finished.step_id, at_work, time.time_ns())
        self._ending[id(at_work)] = end
        asyncio.get_running_loop().call_later(_AFTERWORDS.total_seconds(), end)

    def close(self) -> None:
        """Ends the spans of all nodes that have ended; what they may still tell is left out."""
        for end in list(self._ending.values()):
            end()

    def _close(self, step_id: str, at_work: "tuple[Span, int]", end_time: int) -> None:
        if self._ending.pop(id(at_work), None) is None:
            return
        at_work[0].end(end_time)
        if self._steps.get(step_id) is at_work:
            del self._steps[step_id]

    def _routed(self, event: RouteDecision) -> None:
        step = STEP.get(None)
        at_work = self._steps.get(step.step_id) if step is not None else None
        if at_work is not None:
            at_work[0].set_attribute("codemend.route.target", event.target)
            if self.content:  # it has words of tests and of what they printed
                at_work[0].set_attribute("codemend.route.reason", event.reason)

    def _judged(self, event: AttemptFinished) -> None:
        step = STEP.get(None)
        at_work = self._steps.get(step.step_id) if step is not None else None
        if at_work is not None:
            at_work[0].set_attribute("codemend.verdict", event.attempt.verdict.value)

    @contextlib.contextmanager
    def call(self, name: str, attributes: dict[str, str | int | float]) -> "Iterator[Span]":
        """A span of a call that the current step makes; calls made within it carry it on."""
        from opentelemetry import trace  # noqa: PLC0415 - optional

        step = STEP.get(None)
        at_work = self._steps.get(step.step_id) if step is not None else None
        context = trace.set_span_in_context(at_work[0]) if at_work is not None else None
        if at_work is not None:
            attributes["codemend.attempt"] = at_work[1]
        kind: SpanKind = trace.SpanKind.CLIENT
        span = self.tracer.start_span(name, context, kind, attributes)
        # What an error says may hold a prompt: its type alone is told.
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(trace.StatusCode.ERROR)
                raise


def trace_headers() -> Headers:
    """What tells the other side which span a call belongs to, as W3C's `traceparent`."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 - optional

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return tuple(carrier.items())


def ids_of(run_id: str) -> tuple[int, int]:
    """Trace and span id of a run's own span, the same in every process; never zero."""
    digest = hashlib.sha256(run_id.encode()).digest()
    return int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1


def _run_context(run_id: str) -> "SpanContext":
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415 - optional

    trace_id, span_id = ids_of(run_id)
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


class _TracedModels:
    """Models whose calls are spans, with the attributes of OpenTelemetry's conventions for generative AI."""

    def __init__(self, tracing: Tracing, models: Models) -> None:
        self._tracing = tracing
        self._models = models

    def spec(self, role: str) -> ModelSpec:
        """As the models have it."""
        return self._models.spec(role)

    async def complete(
        self,
        role: str,
        messages: Sequence[Message],
        *,
        options: CallOptions = CallOptions(),  # noqa: B008 - frozen
        on_delta: Callable[[str], None] | None = None,
    ) -> Reply:
        """As the models do. Raises ModelError."""
        spec = self._models.spec(role)
        name = options.model or spec.model
        attributes: dict[str, str | int | float] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai_compatible" if spec.base_url else "embedded",
            "gen_ai.request.model": name,
            "gen_ai.request.temperature": spec.temperature if options.temperature is None else options.temperature,
            "gen_ai.request.max_tokens": options.max_output_tokens or spec.max_output_tokens,
        }
        if self._tracing.content:
            sent = [{"role": message.role, "content": message.text} for message in messages]
            attributes["gen_ai.input.messages"] = json.dumps(sent, ensure_ascii=False)[:_MAX_CONTENT]
        with self._tracing.call(f"chat {name}".rstrip(), attributes) as span:
            reply = await self._models.complete(role, messages, options=options, on_delta=on_delta)
            span.set_attribute("gen_ai.response.model", reply.model)
            span.set_attribute("gen_ai.response.finish_reasons", [reply.finish_reason])
            span.set_attribute("gen_ai.usage.input_tokens", reply.usage.input_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", reply.usage.output_tokens)
            if self._tracing.content:
                span.set_attribute("gen_ai.output.messages", reply.text[:_MAX_CONTENT])
            return reply


class _TracedSandbox:
    """A sandbox whose jobs are spans."""

    def __init__(self, tracing: Tracing, sandbox: Sandbox) -> None:
        self._tracing = tracing
        self._sandbox = sandbox

    async def run_program(self, job: ProgramJob, *, deadline: timedelta, caller: Caller = NO_CALLER) -> Execution:
        """As the sandbox does."""
        with self._tracing.call("sandbox Execute", _rpc("Execute")) as span:
            execution = await self._sandbox.run_program(job, deadline=deadline, caller=caller)
            span.set_attribute("codemend.verdict", execution.status.value)
            return execution

    async def run_tests(
        self, job: TestJob, *, deadline: timedelta, caller: Caller = NO_CALLER
    ) -> tuple[TestReport, Execution]:
        """As the sandbox does."""
        with self._tracing.call("sandbox RunTests", _rpc("RunTests")) as span:
            report, execution = await self._sandbox.run_tests(job, deadline=deadline, caller=caller)
            span.set_attribute("codemend.verdict", report.outcome.value)
            return report, execution


def _rpc(method: str) -> dict[str, str | int | float]:
    return {"rpc.system": "grpc", "rpc.service": "codemend.sandbox.v1.SandboxService", "rpc.method": method}
