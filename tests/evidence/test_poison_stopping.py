"""A job that has its worker stopped and then ends its own process: a loop with TERM in it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_superfetch import PoisonPill

#: Judge without a strike, and then the strikes.
RECOVERIES, STRIKES = 2, 3


def lives(worker: Any, count: int, **options: int) -> None:
    """A supervisor starts the worker again, so many times."""
    for _ in range(count):
        worker(concurrency=1, options=options, ready=False).wait_exit()


def test_a_loop_that_begins_with_term_ends(worker, shop, ledger, db):
    """A3: each was a requeue, counted by nobody: 25 runs in 25 s."""
    limits = {"recovery_limit": RECOVERIES, "strike_limit": STRIKES}
    pill = shop.stop_owner.delay("pill")
    lives(worker, 1, **limits)
    [counters] = db.counters()
    assert (counters["recoveries"], counters["strikes"]) == ("1", "0"), "a deploy is no fault"
    assert db.waiting() == ["pill"]
    lives(worker, 1, **limits)
    assert db.on_probation() == ["pill"]
    lives(worker, STRIKES - 1, **limits)
    assert db.strikes() == {"pill": (STRIKES - 1, "exact")}
    assert not db.dead()
    lives(worker, 1, **limits)
    assert ledger.runs()["pill"] == RECOVERIES + STRIKES
    [record] = db.dead()
    assert record["task_id"] == pill.id
    assert [entry["strike"] for entry in record["history"]] == [""] * RECOVERIES + [
        "exact"
    ] * STRIKES
    worker(concurrency=1, options=limits)  # whoever lives tells its caller
    with pytest.raises(PoisonPill, match="pool process lost"):
        pill.get(timeout=10)


def test_without_the_limit_it_goes_on(worker, shop, ledger, db):
    """A3, the control: what ends the loop is the limit of recoveries."""
    shop.stop_owner.delay("pill")
    lives(worker, RECOVERIES + STRIKES + 1, strike_limit=STRIKES, recovery_limit=1000)
    assert ledger.runs()["pill"] == RECOVERIES + STRIKES + 1
    assert not db.dead()
