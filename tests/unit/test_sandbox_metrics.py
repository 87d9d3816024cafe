"""Metrics: what is counted, under which names and labels, and how a scraper reads it over HTTP."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from codemend.rpc import Address, AddressError
from prometheus_client.parser import text_string_to_metric_families
from support.cells import HeldCells, succeeded

from sandbox_service.domain import DEFAULT_LIMITS, Program, ReportOutcome, TestReport, TestRun
from sandbox_service.errors import (
    CellFailure,
    CellUnavailable,
    DeadlineTooShort,
    QueueFull,
    ServiceDraining,
    TenantQueueFull,
)
from sandbox_service.exposition import MAXIMUM_CONNECTIONS, MAXIMUM_REQUEST_BYTES, exposed
from sandbox_service.metrics import Metrics
from sandbox_service.scheduler import Scheduler

SECOND = timedelta(seconds=1)
PROGRAM, TESTS = Program(DEFAULT_LIMITS, argv=("x",)), TestRun(DEFAULT_LIMITS)


def value(metrics, metric, **labels):
    return metrics.registry.get_sample_value(f"codemend_sandbox_{metric}", labels)


def test_jobs_are_counted_by_kind_and_status_with_their_times():
    metrics = Metrics()
    metrics.started(PROGRAM, 2 * SECOND)
    metrics.ended(PROGRAM, 3 * SECOND, succeeded(wall_time=SECOND), None)
    metrics.ended(TESTS, SECOND, replace(succeeded(), report=TestReport(ReportOutcome.TAMPERED)), None)
    assert value(metrics, "jobs_total", kind="program", status="SUCCEEDED") == 1
    assert value(metrics, "jobs_total", kind="tests", status="SUCCEEDED") == 1
    assert value(metrics, "test_reports_total", outcome="TAMPERED") == 1
    assert value(metrics, "queue_seconds_sum", kind="program") == 2
    assert value(metrics, "cell_seconds_sum", kind="program") == 2
    assert value(metrics, "run_seconds_sum", kind="program") == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "CANCELLED"),
        (CellFailure("x"), "CELL_FAILURE"),
        (CellUnavailable("x"), "CELL_UNAVAILABLE"),
        (OSError("x"), "FAULT"),
    ],
)
def test_jobs_without_a_result_are_counted_by_why(error, status):
    metrics = Metrics()
    metrics.ended(PROGRAM, SECOND, None, error)
    assert value(metrics, "jobs_total", kind="program", status=status) == 1
    assert value(metrics, "run_seconds_count", kind="program") is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (QueueFull("x", SECOND), "queue_full"),
        (TenantQueueFull("t", "x", SECOND), "tenant_limit"),
        (DeadlineTooShort("x"), "deadline"),
        (ServiceDraining("x"), "draining"),
    ],
)
def test_refusals_are_counted_by_reason_and_start_at_zero(error, reason):
    metrics = Metrics()
    assert value(metrics, "refusals_total", reason=reason) == 0
    metrics.refused(error)
    assert value(metrics, "refusals_total", reason=reason) == 1


async def test_gauges_tell_what_runs_and_waits():
    cells, metrics = HeldCells(), Metrics()
    scheduler = Scheduler(cells, concurrency=1, queue_size=5, observer=metrics)
    metrics.watch_scheduler(scheduler.stats, places=1)
    jobs = [asyncio.create_task(scheduler.submit(PROGRAM)) for _ in range(3)]
    await cells.running(1)
    gauges = {name: value(metrics, name) for name in ("jobs_running", "jobs_waiting", "tenants_waiting", "places")}
    assert gauges == {"jobs_running": 1, "jobs_waiting": 2, "tenants_waiting": 1, "places": 1}
    await scheduler.stop()
    await asyncio.gather(*jobs, return_exceptions=True)
    assert value(metrics, "jobs_total", kind="program", status="CANCELLED") == 1
    assert value(metrics, "refusals_total", reason="draining") == 2


def test_protections_are_gauges_by_name():
    metrics = Metrics()
    metrics.watch_cells(HeldCells())
    assert value(metrics, "protection_in_force", name="rlimits", cell="held") == 1
    assert value(metrics, "protection_in_force", name="own_uid", cell="held") == 0
    assert value(metrics, "cell_health", name="warm", cell="held") is None


def test_a_kind_of_cell_that_tells_its_health_has_it_in_the_metrics():
    class Pool(HeldCells):
        def health(self):
            return {"warm": 3, "failed_starts": 1}

    metrics = Metrics()
    metrics.watch_cells(Pool())
    assert value(metrics, "cell_health", name="warm", cell="held") == 3


@pytest.fixture
async def address():
    metrics = Metrics()
    metrics.refused(QueueFull("x", SECOND))
    async with exposed(metrics.registry, Address("127.0.0.1", 0)) as bound:
        yield bound


async def ask(address, request):
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode(), body


async def is_served(address):
    try:
        head, _ = await ask(address, b"GET /metrics HTTP/1.1\r\n\r\n")
    except OSError:
        return False
    return head.startswith("HTTP/1.1 200 ")


async def test_a_scraper_reads_all_metrics(address):
    head, body = await ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert f"Content-Length: {len(body)}\r\n" in head
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    refusals = {sample.labels["reason"]: sample.value for sample in families["codemend_sandbox_refusals"].samples}
    assert refusals["queue_full"] == 1
    assert "codemend_sandbox_process_resident_memory_bytes" in families


async def test_a_scraper_that_asks_for_openmetrics_gets_it(address):
    request = b"GET /metrics?x=1 HTTP/1.1\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n"
    head, body = await ask(address, request)
    assert "Content-Type: application/openmetrics-text" in head
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize("version", ["abc", "1.x", "", "9" * 50])
async def test_a_scraper_with_a_version_that_is_none_gets_the_metrics_all_the_same(address, version):
    request = f"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text; version={version}\r\n\r\n"
    head, body = await ask(address, request.encode())
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert b"codemend_sandbox_refusals" in body


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\xff\xfe \x00 \r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * MAXIMUM_REQUEST_BYTES, 431),
    ],
)
async def test_anything_else_gets_its_status(address, request_, status):
    head, body = await ask(address, request_)
    assert head.startswith(f"HTTP/1.1 {status} ")
    assert (body == b"") == request_.startswith(b"HEAD")


async def test_only_so_many_connections_are_served_at_one_time_and_a_place_is_free_again(address):
    held = [await asyncio.open_connection(address.host, address.port) for _ in range(MAXIMUM_CONNECTIONS)]
    assert not await is_served(address)
    for _, writer in held:
        writer.close()
        await writer.wait_closed()
    async with asyncio.timeout(5):
        while not await is_served(address):
            pass


async def test_an_address_that_is_taken_is_named(address):
    with pytest.raises(AddressError, match=rf"cannot listen on 127.0.0.1:{address.port} for metrics: .*in use"):
        async with exposed(Metrics().registry, address):
            pass
