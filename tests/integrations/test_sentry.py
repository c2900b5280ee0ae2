"""Sentry hears of a task that fails, and of a poison pill, which no task could tell it of."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from support.servers.ledger import Ledger
from support.waiting import eventually

pytest.importorskip("sentry_sdk", reason="sentry-sdk is not installed")


def events(ledger: Ledger, about: str) -> list[dict[str, Any]]:
    """What Sentry was told, if it says ``about``."""
    with redis.Redis.from_url(ledger.url, decode_responses=True) as client:
        return [json.loads(raw) for raw in client.lrange("sentry", 0, -1) if about in raw]


@pytest.mark.parametrize("superfetch", [True, False], ids=["ours", "stock"])
def test_the_event_of_a_failing_task_names_it(
    superfetch: bool, worker: Any, shop: SimpleNamespace, ledger: Ledger
) -> None:
    worker(app="sentried", superfetch=superfetch)
    failed = shop.fail.delay("a")
    [event] = eventually(lambda: events(ledger, "fails on purpose"))
    assert event["exception"]["values"][-1]["type"] == "ValueError"
    assert event["transaction"] == "shop.fail"
    assert event["extra"]["celery-job"]["task_name"] == "shop.fail"
    assert event["tags"]["celery_task_id"] == failed.id


def test_the_kill_of_a_poison_pill_is_an_event(
    worker: Any, shop: SimpleNamespace, ledger: Ledger
) -> None:
    worker(app="sentried", options={"strike_limit": 1})
    pill = shop.kill_child.delay("pill")
    [event] = eventually(lambda: events(ledger, "was killed"))
    assert event["level"] == "error"
    assert pill.id in json.dumps(event["logentry"])
