"""One poison pill among innocents: suspects run alone, and nobody dies for another."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from support.servers.database import Database
from support.waiting import always, eventually
from support.workers.load import Load
from support.workers.worker import Worker

STRIKES = 3
INNOCENTS = [f"innocent-{n}" for n in range(16)]
OPTIONS = {"heartbeat_interval": 1, "owner_ttl": 20, "reap_interval": 2}


class Supervisor:
    """Starts the worker again whenever it ends, as systemd or Kubernetes does."""

    def __init__(self, start: Callable[[], Worker]) -> None:
        self.start = start
        self.worker = start()
        self.restarts = 0
        #: Seconds from each start to "ready", the price of the restarts themselves.
        self.starting = 0.0

    def tend(self) -> None:
        if not self.worker.alive():
            began = time.monotonic()
            self.worker = self.start().wait_ready()
            self.starting += time.monotonic() - began
            self.restarts += 1


@pytest.fixture
def supervised(worker: Any) -> Callable[..., Supervisor]:
    """`supervised(pool="threads", concurrency=8)`"""

    def start(**settings: Any) -> Supervisor:
        return Supervisor(lambda: worker(ready=False, options=OPTIONS, **settings))

    return start


def until(supervisor: Supervisor, done: Callable[[], Any]) -> None:
    def look() -> bool:
        supervisor.tend()
        return bool(done())

    eventually(look, within=120)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_one_job_that_takes_the_worker_down_among_innocents(supervised, shop, ledger, db, pool):
    for name in INNOCENTS[:8]:
        shop.hold.delay(name, 1.0)
    shop.kill_owner.delay("pill")
    for name in INNOCENTS[8:]:
        shop.hold.delay(name, 1.0)
    began = time.monotonic()
    supervisor = supervised(pool=pool, concurrency=8)
    until(supervisor, lambda: set(ledger.finishes()) == set(INNOCENTS) and db.dead())
    took = time.monotonic() - began
    runs = ledger.runs()
    print(
        f"{pool}: {took:.1f} s in all, {supervisor.restarts} restarts took "
        f"{supervisor.starting:.1f} s of them, runs: {runs}"
    )
    assert [record["task"] for record in db.dead()] == ["shop.kill_owner"], "and nobody else"
    assert 1 <= ledger.runs()["pill"] <= STRIKES
    eventually(lambda: not db.private_lists() and not db.on_probation() and not db.waiting())
    assert not db.counters()


def test_whoever_blames_all_that_ran_kills_innocents(supervised, shop, ledger, db):
    """The control, and what Sidekiq Pro does."""
    for name in INNOCENTS[:7]:
        shop.hold.delay(name)
    shop.kill_owner.delay("pill")
    supervisor = supervised(pool="threads", concurrency=8, env={"WITHOUT": "probation"})
    until(supervisor, lambda: len(db.dead()) == 8)
    assert not ledger.finishes()


def suspect(db: Database, client: redis.Redis, job: str) -> None:
    """A job that waits goes on probation."""
    assert db.waiting() == [job]
    db.suspect(client.rpop("celery"))


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_suspect_gets_its_turn_under_load_and_runs_with_nothing_beside(
    worker, app, shop, ledger, db, client, pool
):
    shop.hold.delay("suspect", 1.0)
    suspect(db, client, "suspect")
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


def test_a_suspect_whose_worker_is_deployed_goes_on_with_the_next(worker, shop, ledger, db, client):
    shop.hold.delay("suspect")
    suspect(db, client, "suspect")
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


def test_another_worker_goes_on_with_the_rest(worker, shop, ledger, db, client):
    shop.hold.delay("suspect")
    suspect(db, client, "suspect")
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
