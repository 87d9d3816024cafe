"""Opens everything behind runs, in order, and closes it in the reverse one: database, saver, engine, worker, sweeps."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from orchestrator.runs.artifacts import DirectoryStore
from orchestrator.runs.checkpoints import open_saver
from orchestrator.runs.dispatch import Dispatcher
from orchestrator.runs.engine import Engine, EngineParts
from orchestrator.runs.housekeeping import housekeeping
from orchestrator.runs.manager import Policy, RunManager
from orchestrator.runs.observing import Nobody, Observer
from orchestrator.runs.pruning import Pruner, Retention
from orchestrator.runs.redaction import Redactor
from orchestrator.runs.replica import Replica
from orchestrator.runs.store import (
    ArtifactRows,
    CaseRows,
    Database,
    EventRows,
    Limits,
    Queue,
    ReplicaRows,
    RunRows,
    TapeRows,
    open_database,
)
from orchestrator.runs.sweeping import Sweeper
from orchestrator.runs.watching import Watching
from orchestrator.runs.worker import Worker
from orchestrator.workflows import WORKFLOWS, Models
from orchestrator.workflows.sandbox import Sandbox

VERSIONS = {name: workflow.version for name, workflow in WORKFLOWS.items()}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What runs are kept in and carried out with.

    Attributes:
        data_dir: where everything lies where `database_url` is empty.
        database_url: `postgresql://…`; empty: SQLite in `data_dir`.
        replica_id: of this process, the same when it is started again.
        policy: how many runs this process takes.
        limits: how many runs all replicas take.
        retention: how long runs are kept.
        sandbox_patience: how long an unreachable sandbox is tried again.
        secrets: texts that are never written to a tape.
    """

    data_dir: Path
    database_url: str = ""
    replica_id: str = "local"
    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    retention: Retention = field(default_factory=Retention)
    sandbox_patience: timedelta = timedelta(seconds=60)
    secrets: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """URL of the database."""
        return self.database_url or f"sqlite:///{(self.data_dir / 'runs.sqlite').absolute()}"


@dataclass(frozen=True, slots=True)
class RunParts:
    """What serves runs."""

    database: Database
    runs: RunRows
    events: EventRows
    tapes: TapeRows
    cases: CaseRows
    artifacts: DirectoryStore | ArtifactRows
    saver: BaseCheckpointSaver[Any]
    engine: Engine
    manager: RunManager


@contextlib.asynccontextmanager
async def running_runs(
    settings: RunSettings, models: Models, sandbox: Sandbox, observer: Observer | None = None
) -> AsyncIterator[RunParts]:
    """Everything behind runs, at work; at the end, runs at work are handed back.

    Raises:
        OSError: the data directory cannot be used.
        StoreError: the database cannot be used.
    """
    async with contextlib.AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(settings.url))
        artifacts: DirectoryStore | ArtifactRows
        artifacts = DirectoryStore(settings.data_dir / "artifacts") if database.is_sqlite else ArtifactRows(database)
        stack.callback(artifacts.close)
        runs, events, tapes = RunRows(database), EventRows(database), TapeRows(database)
        replicas = ReplicaRows(database)
        replica = Replica(replicas, settings.replica_id, json.dumps(VERSIONS, sort_keys=True))
        saver = await stack.enter_async_context(open_saver(settings.url, replica.check_lease))
        watching = Watching(runs, events)
        parts = EngineParts(
            models=models,
            sandbox=sandbox,
            artifacts=artifacts,
            runs=runs,
            events=events,
            tapes=tapes,
            saver=saver,
            sandbox_patience=settings.sandbox_patience,
            redact=Redactor(settings.secrets),
            observer=observer or Nobody(),
        )
        engine = Engine(parts)
        worker = Worker(engine, runs, events, replica, wake=watching.wake, tell=watching.tell)
        queue = Queue(database, settings.limits)
        dispatcher = Dispatcher(queue, worker, replica, VERSIONS, settings.policy.concurrency)
        manager = RunManager(
            runs=runs,
            watching=watching,
            engine=engine,
            worker=worker,
            dispatcher=dispatcher,
            policy=settings.policy,
            owner=replica.owner,
        )
        await stack.enter_async_context(replica.running(worker.give_up_all))
        await stack.enter_async_context(watching.running())
        await stack.enter_async_context(dispatcher.running())
        sweeper = Sweeper(runs, events, manager, worker=worker, dispatcher=dispatcher, replica=replica)
        await stack.enter_async_context(sweeper.running())
        pruner = Pruner(database, saver, artifacts, settings.retention)
        await stack.enter_async_context(housekeeping(pruner, replicas))
        stack.push_async_callback(manager.drain, timedelta())
        yield RunParts(database, runs, events, tapes, CaseRows(database), artifacts, saver, engine, manager)
