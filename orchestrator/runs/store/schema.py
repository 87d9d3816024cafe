"""The tables that runs are kept in, and the ordered migrations that bring an older database to them.

One schema for SQLite and Postgres. Times are microseconds since 1970 in UTC, read back as datetimes; structured values
are JSON text written by their owner, never queried into.
"""

from datetime import UTC, datetime, timedelta

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class UtcTime(TypeDecorator[datetime]):
    """An aware datetime as whole microseconds, exact in both directions."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002 - its signature
        """Into the database."""
        return None if value is None else (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Out of the database."""
        return None if value is None else _EPOCH + value * _MICROSECOND


METADATA = MetaData()

RUNS = Table(
    "codemend_runs",
    METADATA,
    Column("run_id", String(64), primary_key=True),
    Column("tenant", String(128), nullable=False),
    Column("request_id", String(128)),  # null: the call was not idempotent
    Column("workflow", String(64), nullable=False),
    Column("graph_version", Integer, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("spec", LargeBinary, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("epoch", Integer, nullable=False),  # counts claims: whoever writes with an older one is refused
    Column("owner", String(128)),  # the replica at work on it
    Column("create_time", UtcTime, nullable=False),
    Column("start_time", UtcTime),
    Column("end_time", UtcTime),
    Column("deadline", UtcTime),  # null while it waits for a person
    Column("time_left_us", BigInteger),  # set while it waits for a person
    Column("cancel_reason", Text),
    Column("breakpoints", Text, nullable=False),
    Column("wait", Text),
    Column("resume", Text),
    Column("result", Text),
    Column("last_sequence", BigInteger, nullable=False),
    Column("origin_kind", String(16)),
    Column("origin_run_id", String(64)),
    Column("origin_checkpoint_id", String(64)),
    Column("origin_live_from", String(64)),
    Column("recoveries", Integer, nullable=False),
    Column("artifacts_since", UtcTime, nullable=False),  # no artifact of it is older: of a fork, its origin's time
    UniqueConstraint("tenant", "request_id", name="codemend_runs_request"),
    Index("codemend_runs_queue", "state", "tenant", "priority", "create_time"),
    Index("codemend_runs_by_start", "start_time"),
    Index("codemend_runs_by_tenant", "tenant", "run_id"),
    Index("codemend_runs_by_owner", "owner", "state"),
    Index("codemend_runs_by_end", "end_time"),
    Index("codemend_runs_by_origin", "origin_run_id"),
    Index("codemend_runs_by_artifacts", "artifacts_since"),
)

RUN_LABELS = Table(
    "codemend_run_labels",
    METADATA,
    Column("run_id", String(64), ForeignKey("codemend_runs.run_id", ondelete="CASCADE"), primary_key=True),
    Column("label", String(64), primary_key=True),
    Column("value", String(256), nullable=False),
    Index("codemend_run_labels_by_value", "label", "value"),
)

RUN_EVENTS = Table(
    "codemend_run_events",
    METADATA,
    Column("run_id", String(64), ForeignKey("codemend_runs.run_id", ondelete="CASCADE"), primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("time", UtcTime, nullable=False),
    Column("event_key", String(200)),  # null: may be told again, as tokens are
    Column("kind", String(32), nullable=False),
    Column("payload", Text, nullable=False),
)

TAPE = Table(
    "codemend_tape",
    METADATA,
    Column("run_id", String(64), ForeignKey("codemend_runs.run_id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("step_id", String(128), nullable=False),  # of the graph's step: the same when the step is begun again
    Column("name", String(128), nullable=False),  # what it is within the run, whatever the step's id
    Column("kind", String(16), nullable=False),
    Column("request_digest", String(64), nullable=False),
    Column("request", Text, nullable=False),
    Column("response", Text, nullable=False),
    Column("elapsed_us", BigInteger, nullable=False),
    UniqueConstraint("run_id", "step_id", "name", name="codemend_tape_step"),
)

ARTIFACTS = Table(
    "codemend_artifacts",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("content", LargeBinary, nullable=False),
    Column("kept_time", UtcTime, nullable=False),
    Index("codemend_artifacts_by_time", "kept_time"),
)

CASES = Table(
    "codemend_cases",
    METADATA,
    Column("case_id", String(64), primary_key=True),
    Column("tenant", String(128), nullable=False),
    Column("name", String(128), nullable=False),
    Column("run_id", String(64)),
    Column("create_time", UtcTime, nullable=False),
    Column("workflow", String(64), nullable=False),
    Column("graph_version", Integer, nullable=False),
    Column("tape_entries", Integer, nullable=False),
    Column("expectation", Text, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("tenant", "name", name="codemend_cases_name"),
)

REPLICAS = Table(
    "codemend_replicas",
    METADATA,
    Column("replica_id", String(128), primary_key=True),
    Column("incarnation", String(64), nullable=False),  # of the process: a restarted one is another
    Column("heartbeat", UtcTime, nullable=False),
    Column("graph_versions", Text, nullable=False),
)

SCHEMA_VERSION = Table("codemend_schema", METADATA, Column("version", Integer, primary_key=True, autoincrement=False))

MIGRATIONS: tuple[tuple[str, ...], ...] = ()
"""Statements that bring a database from version n to n + 1, for n = 1, 2, …; version 1 is the first that was used."""
