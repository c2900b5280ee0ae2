"""How often a job may be struck is its task's to say; what never runs ends as well."""

from __future__ import annotations

import json

import pytest

from support.waiting import eventually
from support.workers.bench import payload


def test_each_task_has_a_limit_of_its_own(worker, app, ledger, db):
    worker(app="limits", concurrency=1)
    for name in ("once", "twice", "never"):
        app.send_task(f"limits.{name}", (name,))
    eventually(lambda: len(db.dead()) == 2 and ledger.finishes().get("never"), within=90)
    runs = ledger.runs()
    assert runs == {"once": 1, "twice": 2, "never": 6}
    assert {record["task"]: record["strikes"] for record in db.dead()} == {
        "limits.once": 1,
        "limits.twice": 2,
    }
    eventually(lambda: not db.counters())


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("size", "eta", "strikes"),
    [
        (0, {}, ["exact"] * 3),
        (20_000, {}, ["exact"] * 3),
        (0, {"eta": "2020-01-01T00:00:00+00:00"}, ["", "", "", *["exact"] * 3]),
    ],
    ids=["small", "large", "with an ETA"],
)
def test_a_payload_that_kills_whoever_decodes_it_ends_in_the_dead_set(
    supervised, ledger, db, client, size, eta, strikes
):
    """It takes the worker down before it runs. Claimed for a free slot it counts as running, unless
    it had a time of its own, which has come: then it is only reserved, and has its strikes when it
    is alone. Before its time nobody decodes it.

    To tell of its death its body has to be decoded, too: its notice gives that up after some runs.
    """
    bomb = json.loads(payload("bomb", queue="celery", **eta))
    bomb["content-type"] = "application/x-bomb"
    bomb["body"] += "x" * size
    client.lpush("celery", json.dumps(bomb))
    options = {"recovery_limit": 3, "reap_interval": 1}
    supervisor = supervised(app="limits", pool="solo", concurrency=1, options=options)

    def is_over() -> bool:
        return bool(db.dead()) and not db.client.exists("superfetch:dead:unannounced")

    supervisor.until(is_over, within=180)
    decoded = len(strikes)
    assert decoded < ledger.runs()["bomb"] <= decoded + 3
    [record] = db.dead()
    assert [entry["strike"] for entry in record["history"]] == strikes
    assert supervisor.worker.alive()
