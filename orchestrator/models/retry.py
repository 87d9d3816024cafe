"""When to try again: delays with jitter, and what an endpoint's Retry-After header asks for. Nothing here sleeps."""

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

_BASE = timedelta(milliseconds=500)
_CAP = timedelta(seconds=30)
LONGEST_WAIT = timedelta(seconds=120)
"""An endpoint that asks for a longer wait than this is not waited for."""


def backoff(tries: int) -> timedelta:
    """Delay after so many failed tries: exponential with full jitter, so that callers come apart."""
    return min(_CAP, _BASE * 2.0 ** min(tries, 16)) * random.random()  # noqa: S311 - no secret depends on it


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> timedelta | None:
    """What the endpoint asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as an HTTP date.

    Returns:
        The wait, never negative; None where nothing legible is asked.
    """
    for name, unit in (("retry-after-ms", timedelta(milliseconds=1)), ("retry-after", timedelta(seconds=1))):
        try:
            return max(float(headers.get(name, "").strip()) * unit, timedelta())
        except (ValueError, OverflowError):  # no number, or "nan" or "inf": another form, or nonsense
            continue
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    when = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(when - (now or datetime.now(UTC)), timedelta())
