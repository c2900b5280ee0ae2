"""A slot that becomes free, or new, is used at once; one that goes takes no job with it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from support.waiting import always, eventually

NAMES = [f"n{n}" for n in range(30)]


@pytest.fixture
def full(worker: Any, shop: SimpleNamespace) -> Callable[..., Any]:
    """`full("gevent", ...)`: a worker that never has a job beyond those that run, and 30 to do."""

    def start(pool: str, **settings: Any) -> Any:
        one = worker(pool=pool, concurrency=2, args=["--prefetch-multiplier=1"], **settings)
        for name in NAMES:
            shop.note.delay(name)
        return one

    return start


@pytest.mark.parametrize("pool", ["gevent", "threads"])
def test_an_ack_wakes_a_consumer_that_sleeps_over_a_full_prefetch(full, ledger, db, pool):
    """The loop's own timeout is 2 s (gevent) or 1 s: without a wake-up these take 15 s or more."""
    one = full(pool)
    eventually(lambda: set(ledger.finishes()) == set(NAMES), within=10)
    eventually(lambda: not db.private_lists())
    one.stop()


def test_stock_sleeps_over_a_full_prefetch(full, ledger):
    """The control."""
    full("gevent", superfetch=False)
    eventually(lambda: ledger.finishes())
    always(lambda: len(ledger.finishes()) < len(NAMES), during=4)


def test_a_pool_of_greenlets_that_shrinks_starts_fewer_jobs(worker, app, shop, ledger, db):
    """Before Celery 5.7 jobs that waited for a greenlet were recorded as running."""
    one = worker(pool="gevent", concurrency=4)
    app.control.pool_shrink(2, reply=True, limit=1, timeout=30)
    for name in NAMES[:6]:
        shop.hold.delay(name)
    eventually(lambda: len(ledger.starts()) == 2)
    always(lambda: len(db.running()) == len(ledger.starts()) == 2, during=2)
    ledger.release()
    eventually(lambda: set(ledger.finishes()) == set(NAMES[:6]))
    one.stop()


def test_a_pool_that_grows_and_shrinks_loses_nothing(worker, shop, ledger, db):
    one = worker(args=["--autoscale=4,1"], env={"AUTOSCALE_KEEPALIVE": "1"})
    holds = [f"hold{n}" for n in range(4)]
    for name in holds:
        shop.hold.delay(name)
    eventually(lambda: set(ledger.starts()) == set(holds), message="it grows")
    owner = db.owner_of("hold0")
    for name in NAMES:
        shop.note.delay(name)
    for name in holds[1:]:
        ledger.release(name)
    eventually(lambda: len(ledger.finishes()) == len(holds) - 1 + len(NAMES))
    eventually(lambda: len(one.children()) <= 2, message="it shrinks around the job that runs")
    shop.note.delay("later")
    eventually(lambda: "later" in ledger.finishes() or len(one.children()) > 1)
    ledger.release()
    eventually(lambda: {*holds, *NAMES, "later"} == set(ledger.finishes()))
    assert set(ledger.runs().values()) == {1}
    eventually(lambda: not db.private_lists())
    one.stop()
    assert [key for key in db.keys("superfetch:*") if owner in key] == []
    assert db.stat("recovered") == 0
