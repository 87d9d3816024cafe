"""The metrics of a sandbox service: where its log says that they are, and what a scrape holds."""

import json
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

Families = Mapping[str, Mapping[tuple[str, ...], float]]
"""Family -> (the sample name's ending, *label values) -> value."""


def metrics_address(log: str) -> tuple[str, int]:
    """Host and port of a service that was started with SANDBOX_METRICS_ADDRESS, from its log."""
    records = (json.loads(line) for line in log.splitlines() if line.startswith("{"))  # others may write there too
    bound = next(record["address"] for record in records if record.get("message") == "metrics")
    host, _, port = bound.rpartition(":")
    return host, int(port)


def families(body: str) -> Families:
    """What a scrape says."""
    return {
        family.name: {
            (
                sample.name.removeprefix(family.name),
                *(sample.labels[name] for name in sorted(sample.labels)),
            ): sample.value
            for sample in family.samples
        }
        for family in text_string_to_metric_families(body)
    }
