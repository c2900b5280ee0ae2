"""How runs end, and how long they take, is counted on each pool, and costs no job a command."""

from __future__ import annotations

import pytest

from celery_superfetch.store.runs import RunCounts, Runs
from support.waiting import eventually
from support.workers.bench import Bench

#: Longer than this test: what is there has been counted when the worker stopped.
RARELY = {"heartbeat_interval": 60, "owner_ttl": 300}


def counts(bench: Bench) -> RunCounts:
    return Runs(bench.database).counts()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_each_end_is_counted_at_the_latest_when_the_worker_stops(
    worker, shop, ledger, db, bench, pool
):
    one = worker(pool=pool, concurrency=2, options=RARELY)
    for name in ("a", "b"):
        shop.note.delay(name)
    shop.fail.delay("c")
    shop.put_off.delay("d", 0)
    eventually(lambda: ledger.runs() == {"a": 1, "b": 1, "c": 1, "d": 2})
    eventually(lambda: not (db.length() or db.private_lists()), message="all is settled")
    one.stop()
    found = counts(bench)
    assert found.ends == {
        ("failed", "celery", "shop.fail"): 1,
        ("retried", "celery", "shop.put_off"): 1,
        ("succeeded", "celery", "shop.note"): 2,
        ("succeeded", "celery", "shop.put_off"): 1,
    }
    assert {task: max(times.buckets.values()) for task, times in found.times.items()} == {
        "shop.fail": 1,
        "shop.note": 2,
        "shop.put_off": 2,
    }


def test_a_run_that_was_cut_short_is_none_of_them(worker, shop, ledger, db, bench):
    worker(concurrency=1, options={"heartbeat_interval": 1, "owner_ttl": 10})
    shop.kill_child.delay("pill")
    eventually(db.dead)
    shop.note.delay("after")
    eventually(lambda: counts(bench).ends)
    ends = counts(bench).ends
    assert ends["succeeded", "celery", "shop.note"] == 1
    assert not {task for _, _, task in ends} & {"shop.kill_child"}
