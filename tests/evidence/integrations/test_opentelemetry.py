"""OpenTelemetry ties the run of a job to its publish, by headers that ours brings along."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from support.servers.ledger import Ledger
from support.waiting import eventually

pytest.importorskip(
    "opentelemetry.instrumentation.celery",
    reason="opentelemetry-instrumentation-celery is not installed",
)
pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_superfetch import job_killed, job_recovered
from examples.observability.tracing import watch


def spans(ledger: Ledger) -> dict[str, dict[str, Any]]:
    """The spans by name."""
    with redis.Redis.from_url(ledger.url, decode_responses=True) as client:
        found = [json.loads(raw) for raw in client.lrange("spans", 0, -1)]
    return {span["name"]: span for span in found}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("superfetch", [True, False], ids=["ours", "stock"])
def test_the_span_of_a_run_is_tied_to_that_of_its_publish(superfetch, pool, worker, app, ledger):
    worker(app="traced", superfetch=superfetch, pool=pool)
    app.send_task("traced.sends", ["a"])
    names = {"run/traced.sends", "apply_async/shop.note", "run/shop.note"}
    eventually(lambda: names <= spans(ledger).keys())
    found = spans(ledger)
    sender, publish, run = (
        found[name] for name in ("run/traced.sends", "apply_async/shop.note", "run/shop.note")
    )
    assert publish["parent_id"] == sender["context"]["span_id"]
    tied = {run["parent_id"], *(link["context"]["span_id"] for link in run["links"])}
    assert publish["context"]["span_id"] in tied
    assert run["context"]["trace_id"] == publish["context"]["trace_id"]


def test_what_becomes_of_a_pill_is_in_the_trace_of_its_publish(worker, app, ledger):
    """As `examples/observability/tracing.py` has it: the runs themselves have left no span."""
    worker(app="traced", options={"strike_limit": 2})
    app.send_task("traced.sends", ["pill", "shop.kill_child"])
    name = "superfetch.killed shop.kill_child"
    eventually(lambda: name in spans(ledger), 60)
    found = spans(ledger)
    assert "run/shop.kill_child" not in found
    publish = found["apply_async/shop.kill_child"]["context"]
    for one, strikes in (("superfetch.recovered shop.kill_child", 1), (name, 2)):
        assert found[one]["context"]["trace_id"] == publish["trace_id"]
        assert found[one]["parent_id"] == publish["span_id"]
        assert found[one]["attributes"]["superfetch.strikes"] == strikes
    assert found[name]["status"]["status_code"] == "ERROR"


@pytest.fixture
def nobody_listens_any_more() -> Iterator[None]:
    before = [(one, [*one.receivers]) for one in (job_killed, job_recovered)]
    yield
    for signal, receivers in before:
        signal.receivers[:] = receivers
        signal.sender_receivers_cache.clear()


@pytest.mark.usefixtures("nobody_listens_any_more")
def test_recoveries_are_counted_and_a_job_without_a_trace_has_a_span_all_the_same(
    worker, shop, ledger, cli
):
    """A pass in this process, whose providers keep all in memory."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    watch(tracers, MeterProvider([reader]))
    victim = worker(concurrency=1)
    job = shop.hold.delay("h")
    eventually(lambda: ledger.starts())
    victim.die()
    cli("reap")
    [span] = exporter.get_finished_spans()
    assert span.name == "superfetch.recovered shop.hold"
    assert span.attributes["messaging.message.id"] == job.id
    told = json.loads(reader.get_metrics_data().to_json())
    [metric] = told["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    [point] = metric["data"]["data_points"]
    assert (metric["name"], point["value"]) == ("superfetch.jobs.recovered", 1)
    assert point["attributes"] == {"task": "shop.hold", "queue": "celery"}
