"""Carries `codegen` runs out: builds each run's context, runs the graph on a thread of its own, makes its result."""

from collections.abc import Sequence
from datetime import timedelta

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from orchestrator.runs.archive import dump_events, load_events
from orchestrator.runs.events import RunEvent
from orchestrator.runs.outcome import result_of
from orchestrator.runs.run import Run
from orchestrator.runs.states import RunResult
from orchestrator.workflows import Artifacts, CodegenContext, Conclusion, Models, RunSpec, build
from orchestrator.workflows import run as run_graph
from orchestrator.workflows.sandbox import Sandbox


class CodegenEngine:
    """The engine of the `codegen` workflow; one serves all runs of the process."""

    def __init__(
        self,
        *,
        models: Models,
        sandbox: Sandbox,
        artifacts: Artifacts,
        saver: AsyncSqliteSaver | None,
        sandbox_patience: timedelta,
    ) -> None:
        self._models = models
        self._sandbox = sandbox
        self._artifacts = artifacts
        self._sandbox_patience = sandbox_patience
        self._graph = build(saver)

    async def work(self, run: Run) -> Conclusion:
        """Runs the graph."""
        spec = _spec(run)
        context = CodegenContext(
            task=spec.task,
            options=spec.options,
            models=self._models,
            sandbox=self._sandbox,
            artifacts=self._artifacts,
            deadline=run.deadline,
            emit=run.recorder.emit,
            emit_tokens=None if spec.options.omit_tokens else run.recorder.emit_tokens,
            sandbox_patience=self._sandbox_patience,
            progress=run.progress,
            run_id=run.run_id,
            tenant=spec.tenant,
        )
        return await run_graph(self._graph, context, run.run_id)

    async def result(self, run: Run, conclusion: Conclusion) -> RunResult:
        """The result, with the best attempt's files read back under the hash that was executed."""
        return await result_of(conclusion, run.progress, _spec(run).task.files, self._artifacts)

    async def archive(self, run: Run) -> None:
        """Moves the events into the artifact store."""
        name = await self._artifacts.put(dump_events(run.log.events))

        async def load() -> Sequence[RunEvent]:
            return load_events(await self._artifacts.get(name))

        run.log.archive(load)


def _spec(run: Run) -> RunSpec:
    if run.spec is None:
        raise RuntimeError(f"{run.run_id} has ended")
    return run.spec
