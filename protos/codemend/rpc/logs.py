"""Structured logs: one JSON object a line on stderr, with the id of the request that the line belongs to.

Whatever a call passes as `extra` becomes a field of its own. Nothing here reads settings.
"""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the request that the current task serves; empty outside of one."""

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

# What every record has; anything else came by `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One line of JSON a record. Values that JSON does not know are written by their `str`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line without its end."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            entry["request_id"] = request_id
        entry |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure_logging(level: str) -> None:
    """Sends all logs to stderr as JSON. Call it once, before any gRPC object is made.

    Args:
        level: one of `LEVELS`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
