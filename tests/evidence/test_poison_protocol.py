"""Messages of protocol 1 (`task_protocol`, other languages) name their task in the body."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_superfetch import PoisonPill
from support.waiting import eventually

STRIKES = 3


@pytest.fixture
def old(make_app: Any) -> Celery:
    return make_app(superfetch=False, conf={"task_protocol": 1})


def test_a_pill_that_kills_its_pool_child_runs_three_times(worker, old, ledger, db):
    """A2: the guard knew no task of that name, and spared it for ever."""
    worker(concurrency=1)
    kill, note = old.tasks["shop.kill_child"], old.tasks["shop.note"]
    pill = kill.apply_async(("pill",), link_error=note.si("told"))
    with pytest.raises(PoisonPill, match=rf"shop.kill_child.*after {STRIKES} strikes"):
        pill.get(timeout=60)
    assert ledger.runs()["pill"] == STRIKES
    eventually(lambda: "told" in ledger.finishes(), message="its errback runs")
    [record] = db.dead()
    assert (record["task"], record["task_id"]) == ("shop.kill_child", pill.id)


def test_a_pill_that_kills_its_worker_runs_three_times(worker, old, ledger, db):
    """A2: on threads each run ended a worker."""
    pill = old.tasks["shop.kill_owner"].delay("pill")
    for _ in range(STRIKES):
        worker(pool="threads", ready=False).wait_exit()
    worker(pool="threads")
    with pytest.raises(PoisonPill, match=rf"shop.kill_owner.*after {STRIKES} strikes"):
        pill.get(timeout=30)
    assert ledger.runs()["pill"] == STRIKES
    [record] = db.dead()
    assert (record["task"], record["task_id"]) == ("shop.kill_owner", pill.id)
