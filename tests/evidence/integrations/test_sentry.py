"""Sentry hears of a task that fails, and of a poison pill, which no task could tell it of."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from support.servers.ledger import Ledger
from support.waiting import eventually

pytest.importorskip("sentry_sdk", reason="sentry-sdk is not installed")


def events(ledger: Ledger, about: str) -> list[dict[str, Any]]:
    """What Sentry was told, if it says ``about``, and not only in what went before it."""
    with redis.Redis.from_url(ledger.url, decode_responses=True) as client:
        told = [json.loads(raw) for raw in client.lrange("sentry", 0, -1)]
    return [one for one in told if about in json.dumps({**one, "breadcrumbs": None})]


@pytest.mark.parametrize("superfetch", [True, False], ids=["ours", "stock"])
def test_the_event_of_a_failing_task_names_it(superfetch, worker, shop, ledger):
    worker(app="sentried", superfetch=superfetch)
    failed = shop.fail.delay("a")
    [event] = eventually(lambda: events(ledger, "fails on purpose"))
    assert event["exception"]["values"][-1]["type"] == "ValueError"
    assert event["transaction"] == "shop.fail"
    assert event["extra"]["celery-job"]["task_name"] == "shop.fail"
    assert event["tags"]["celery_task_id"] == failed.id


def test_the_kill_of_a_poison_pill_is_an_event(worker, shop, ledger):
    worker(app="sentried", options={"strike_limit": 1})
    pill = shop.kill_child.delay("pill")
    [event] = eventually(lambda: events(ledger, "moved to the dead set"))
    assert event["level"] == "error"
    assert pill.id in json.dumps(event["logentry"])


RECIPE = {"RECIPE": "1"}


def test_a_kill_is_one_event_and_groups_by_its_task(worker, shop, ledger):
    """As `examples/observability/sentry.py` has it; a strike before is none."""
    worker(app="sentried", options={"strike_limit": 2}, env=RECIPE)
    pills = [shop.kill_child.delay(name) for name in ("one", "two")]
    eventually(lambda: len(events(ledger, "moved to the dead set")) == 2, 60)
    shop.fail.delay("last")
    eventually(lambda: events(ledger, "fails on purpose"), message="what fails is told as ever")
    killed = events(ledger, "superfetch-killed")
    assert {one["tags"]["celery_task_id"] for one in killed} == {pill.id for pill in pills}
    for one in killed:
        assert one["fingerprint"] == ["superfetch-killed", "shop.kill_child"]
        assert one["transaction"] == "shop.kill_child"
        assert one["level"] == "error"
        assert len(one["contexts"]["superfetch"]["history"]) == 2
        assert "celery-job" not in one.get("extra", {}), "that would be the failure notification"
    assert len(events(ledger, "")) == 3, "and nothing else"


def test_a_job_that_is_lost_for_good_is_one_event_too(worker, shop, ledger):
    worker(app="sentried", conf={"task_acks_late": False}, env=RECIPE)
    lost = shop.kill_child.delay("lost")
    [event] = eventually(lambda: events(ledger, "was lost"), 60)
    assert event["fingerprint"] == ["superfetch-lost", "shop.kill_child"]
    assert event["tags"]["celery_task_id"] == lost.id
    shop.fail.delay("last")
    eventually(lambda: events(ledger, "fails on purpose"))
    assert len(events(ledger, "")) == 2, "and nothing else"


def test_the_control_without_the_recipe_a_kill_is_five_events_and_its_task_no_group(
    worker, shop, ledger
):
    worker(app="sentried", options={"strike_limit": 2})
    shop.kill_child.delay("one")
    eventually(lambda: len(events(ledger, "")) == 5, 60)
    assert not [one for one in events(ledger, "") if "fingerprint" in one]
    [event] = events(ledger, "moved to the dead set")
    text = event["logentry"]["message"]
    assert text.startswith("Job %s moved to the dead set"), "the same for all tasks"
