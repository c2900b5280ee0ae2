"""OpenTelemetry ties the run of a job to its publish, by headers that ours brings along."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from celery import Celery

from support.servers.ledger import Ledger
from support.waiting import eventually

pytest.importorskip(
    "opentelemetry.instrumentation.celery",
    reason="opentelemetry-instrumentation-celery is not installed",
)
pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")


def spans(ledger: Ledger) -> dict[str, dict[str, Any]]:
    """The spans by name."""
    with redis.Redis.from_url(ledger.url, decode_responses=True) as client:
        found = [json.loads(raw) for raw in client.lrange("spans", 0, -1)]
    return {span["name"]: span for span in found}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("superfetch", [True, False], ids=["ours", "stock"])
def test_the_span_of_a_run_is_tied_to_that_of_its_publish(
    superfetch: bool, pool: str, worker: Any, app: Celery, ledger: Ledger
) -> None:
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
