"""A pool's child that is forked while other threads of its parent are busy."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_superfetch import PoisonPill
from support.waiting import always, eventually
from support.workers.bench import Bench, payload

BUSY = {"reap_interval": 1, "heartbeat_interval": 0.2}


def a_child_is_lost(worker: Any, app: Celery, bench: Bench, without: str = "") -> None:
    """While jobs of a dead neighbour are taken back, in another thread."""
    worker(
        app="forking",
        concurrency=1,
        args=["-E"],
        options={**BUSY, "strike_limit": 1},
        env={"HOLDS": "1", "WITHOUT": without},
    )
    app.send_task("shop.kill_child", ("pill",))
    app.send_task("forking.publish", ("innocent",))
    bench.dead_owner([payload("orphan", "celery", "shop.add")], "celery", lists=["celery"])


def test_a_new_child_publishes_whatever_its_parent_was_about(worker, app, bench, ledger):
    """A6: receivers of `job_recovered` are told, in another thread, while its child is replaced."""
    a_child_is_lost(worker, app, bench)
    eventually(lambda: "innocent" in ledger.finishes(), message="the new child publishes")


def test_the_control_hangs(worker, app, bench, ledger):
    """A6: without the gate the child inherits a lock that nobody is there to give back."""
    a_child_is_lost(worker, app, bench, without="gate")
    eventually(lambda: "pill" in ledger.starts())
    always(lambda: "innocent" not in ledger.finishes(), during=10)


def test_no_child_hangs(run, worker, app, ledger, db):
    """A6: children are replaced under events, announcements and heartbeats (`--runs=200`)."""
    one = worker(
        app="forking",
        concurrency=1 + (run + 1) % 4,
        args=["-E", "--max-tasks-per-child=4"],
        options={**BUSY, "strike_limit": 1},
    )
    pills, innocents = [], [f"innocent-{n}" for n in range(24)]
    for n, innocent in enumerate(innocents):
        app.send_task("forking.publish", (innocent,))
        if n % 4 == 0:
            told = app.signature("forking.told")
            pills.append(app.send_task("shop.kill_child", (f"pill-{n}",), link_error=told))
    eventually(lambda: set(innocents) <= ledger.finishes().keys(), within=120)
    for pill in pills:
        with pytest.raises(PoisonPill):
            pill.get(timeout=120)
    ids = {pill.id for pill in pills}
    eventually(lambda: {line["job"] for line in ledger.lines("told")} == ids, within=60)
    eventually(lambda: not db.client.exists("superfetch:dead:unannounced"), within=60)
    one.term()
    assert one.wait_exit(60) == 0
