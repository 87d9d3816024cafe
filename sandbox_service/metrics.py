"""What an operator can count and chart: jobs, times, refusals, protections, the health of cells, in Prometheus's words.

Names and labels are here, and their values are a bounded set: never a tenant, a session or a job. How they are read
over HTTP is in `exposition`.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Protocol, runtime_checkable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from sandbox_service.cells import CellKind
from sandbox_service.domain import Job, JobOutcome, Program
from sandbox_service.errors import (
    CellFailure,
    CellUnavailable,
    DeadlineTooShort,
    InvalidJob,
    QueueFull,
    SandboxError,
    ServiceDraining,
    TenantQueueFull,
)
from sandbox_service.scheduler import Stats

PREFIX = "codemend_sandbox"
SHORT_TIMES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LONG_TIMES = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the histograms' buckets, in seconds."""

_REASONS: dict[type[SandboxError], str] = {
    TenantQueueFull: "tenant_limit",
    QueueFull: "queue_full",
    DeadlineTooShort: "deadline",
    ServiceDraining: "draining",
}
_FAULTS: dict[type[BaseException], str] = {
    InvalidJob: "INVALID",
    CellUnavailable: "CELL_UNAVAILABLE",
    CellFailure: "CELL_FAILURE",
}
_KILLED = "CANCELLED"
_UNKNOWN = "FAULT"


@runtime_checkable
class ReportsHealth(Protocol):
    """A kind of cell that has something to say of itself, such as the containers of its pool."""

    def health(self) -> Mapping[str, float]:
        """Figures by name, a fixed and small set of names. Called at each scrape; must not block."""


class Metrics:
    """An Observer of the scheduler, and the registry that everything is read from."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(namespace=PREFIX, registry=self.registry)
        self._jobs = self._counter("jobs", "Jobs that ended, by kind and by how.", ("kind", "status"))
        self._reports = self._counter("test_reports", "Test reports, by outcome.", ("outcome",))
        self._refusals = self._counter("refusals", "Jobs that never started, by reason.", ("reason",))
        self._queued = self._histogram("queue_seconds", "From a job's arrival to its place.", SHORT_TIMES)
        self._cell = self._histogram(
            "cell_seconds", "Set-up and tear-down of a cell: its place's time without the program's.", SHORT_TIMES
        )
        self._run = self._histogram("run_seconds", "Wall time of a program.", LONG_TIMES)
        for reason in _REASONS.values():  # a counter that is not there cannot be told from one that is zero
            self._refusals.labels(reason)

    def refused(self, error: SandboxError) -> None:
        """Counts a job that never started."""
        self._refusals.labels(_first(_REASONS, error, "other")).inc()

    def started(self, job: Job, waited: timedelta) -> None:
        """Counts a job's time in the queue."""
        self._queued.labels(_kind(job)).observe(waited.total_seconds())

    def ended(self, job: Job, held: timedelta, outcome: JobOutcome | None, error: BaseException | None) -> None:
        """Counts a job's end and its times."""
        if outcome is None:
            self._jobs.labels(_kind(job), _KILLED if error is None else _first(_FAULTS, error, _UNKNOWN)).inc()
            return
        result = outcome.result
        self._jobs.labels(_kind(job), result.status.value).inc()
        if outcome.report is not None:
            self._reports.labels(outcome.report.outcome.value).inc()
        self._run.labels(_kind(job)).observe(result.wall_time.total_seconds())
        self._cell.labels(_kind(job)).observe(max((held - result.wall_time).total_seconds(), 0.0))

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A gauge that is read at each scrape. `read` must not block."""
        Gauge(f"{PREFIX}_{name}", text, registry=self.registry).set_function(read)

    def watch_scheduler(self, stats: Callable[[], Stats], *, places: int) -> None:
        """Gauges of what runs and waits."""
        self.watch("jobs_running", "Jobs that hold a place.", lambda: stats().running)
        self.watch("jobs_waiting", "Jobs that wait, of all tenants.", lambda: stats().waiting)
        self.watch("tenants_waiting", "Tenants with a job that waits.", lambda: stats().tenants_waiting)
        self.watch("places", "Jobs that can run at one time.", lambda: places)

    def watch_cells(self, kind: CellKind) -> None:
        """Gauges of the cells' protections, and of their health where the kind tells it."""
        self.registry.register(_Cells(kind))

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", text, ("kind",), registry=self.registry, buckets=buckets)


class _Cells(Collector):
    """Reads a kind of cell at each scrape."""

    def __init__(self, kind: CellKind) -> None:
        self._kind = kind

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The families of metrics."""
        walls = GaugeMetricFamily(
            f"{PREFIX}_protection_in_force", "1 where a protection is in force for every job.", labels=("name", "cell")
        )
        for wall in self._kind.protections():
            walls.add_metric((wall.name, self._kind.name), float(wall.in_force))
        yield walls
        if isinstance(self._kind, ReportsHealth):
            health = GaugeMetricFamily(
                f"{PREFIX}_cell_health", "What the kind of cell tells of itself.", labels=("name", "cell")
            )
            for name, value in self._kind.health().items():
                health.add_metric((name, self._kind.name), value)
            yield health


def _kind(job: Job) -> str:
    return "program" if isinstance(job, Program) else "tests"


def _first(table: Mapping[type, str], error: BaseException, otherwise: str) -> str:
    return next((table[kind] for kind in type(error).__mro__ if kind in table), otherwise)
