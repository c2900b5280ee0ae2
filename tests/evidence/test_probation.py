"""One poison pill among innocents: suspects run alone, and nobody dies for another."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from support.waiting import always, eventually
from support.workers.load import Load

STRIKES = 3
INNOCENTS = [f"innocent-{n}" for n in range(16)]
OPTIONS = {"heartbeat_interval": 1, "owner_ttl": 20, "reap_interval": 2}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_one_job_that_takes_the_worker_down_among_innocents(supervised, shop, ledger, db, pool):
    for name in INNOCENTS[:8]:
        shop.hold.delay(name, 1.0)
    shop.kill_owner.delay("pill")
    for name in INNOCENTS[8:]:
        shop.hold.delay(name, 1.0)
    began = time.monotonic()
    supervisor = supervised(pool=pool, concurrency=8, options=OPTIONS)
    supervisor.until(lambda: set(ledger.finishes()) == set(INNOCENTS) and db.dead())
    took = time.monotonic() - began
    print(f"{pool}: {took:.1f} s, {supervisor.restarts} restarts, runs: {ledger.runs()}")
    assert [record["task"] for record in db.dead()] == ["shop.kill_owner"], "and nobody else"
    assert 1 <= ledger.runs()["pill"] <= STRIKES
    eventually(lambda: not db.private_lists() and not db.on_probation() and not db.waiting())
    assert not db.counters()


def test_whoever_blames_all_that_ran_kills_innocents(supervised, shop, ledger, db):
    """The control, and what Sidekiq Pro does."""
    for name in INNOCENTS[:7]:
        shop.hold.delay(name)
    shop.kill_owner.delay("pill")
    settings = {"options": OPTIONS, "env": {"WITHOUT": "probation"}}
    supervised(pool="threads", concurrency=8, **settings).until(lambda: len(db.dead()) == 8)
    assert not ledger.finishes()


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_suspect_gets_its_turn_under_load_and_runs_with_nothing_beside(
    worker, app, shop, ledger, db, suspected, pool
):
    suspected(shop.hold, "suspect", 1.0)
    shop.hold.delay("long", 3.0)
    one = worker(pool=pool, concurrency=1 if pool == "solo" else 4, options=OPTIONS, ready=False)
    with ExitStack() as stack:
        load = stack.enter_context(Load(app, ledger, ["celery"], name="load", every=0.03))
        one.wait_ready()
        eventually(lambda: ledger.finishes().get("suspect"), within=60, message="its turn comes")
        load.wait_progress(5)
        settled = load.settle()
    assert settled.clean, settled
    [began], [ended] = ledger.starts()["suspect"], ledger.finishes()["suspect"]
    beside = [
        job
        for job, starts in ledger.starts().items()
        for start, end in zip(starts, ledger.finishes()[job], strict=True)
        if job != "suspect" and start < ended and end > began
    ]
    assert not beside
    eventually(lambda: not db.counters(), message="settled, it is innocent")


def test_a_suspect_whose_worker_is_deployed_goes_on_with_the_next(
    worker, shop, ledger, db, suspected
):
    suspected(shop.hold, "suspect")
    one = worker(concurrency=2, options=OPTIONS)
    eventually(lambda: ledger.starts().get("suspect"))
    shop.note.delay("other")
    always(lambda: "other" not in ledger.starts(), during=2, message="it waits")
    one.term()
    eventually(lambda: db.fact(db.owner_of("suspect"), "state") == "stopping")
    one.kill9_all()
    worker(concurrency=2, options=OPTIONS)
    eventually(lambda: ledger.runs()["suspect"] == 2)
    assert not ledger.starts().get("other") or not db.dead()
    ledger.release()
    eventually(lambda: {"suspect", "other"} <= set(ledger.finishes()))
    eventually(lambda: not db.counters())
    assert not db.dead()


def test_another_worker_goes_on_with_the_rest(worker, shop, ledger, db, suspected):
    suspected(shop.hold, "suspect")
    worker(concurrency=2, options=OPTIONS)
    eventually(lambda: ledger.starts().get("suspect"))
    worker(concurrency=2, options=OPTIONS)
    for n in range(20):
        shop.note.delay(f"job-{n}")
    eventually(lambda: len(ledger.finishes()) == 20)
    pids = {line["pid"] for line in ledger.lines("started") if line["job"] != "suspect"}
    [alone] = [line["pid"] for line in ledger.lines("started") if line["job"] == "suspect"]
    assert alone not in pids
    ledger.release()
    eventually(lambda: ledger.finishes().get("suspect"))
