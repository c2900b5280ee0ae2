"""Who is blamed when a worker dies: one row of the table after the other, for each pool."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_superfetch.app.reaper import reaper_of
from support.servers.database import Database
from support.servers.ledger import Ledger
from support.waiting import eventually
from support.workers.worker import Worker

SLOTS = {"prefork": 2, "threads": 2, "solo": 1}

#: Of this file alone: nobody else reaps while a test looks.
OPTIONS = {"reap_interval": 600}

Busy = Callable[..., Worker]


@pytest.fixture
def busy(worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database) -> Busy:
    """`busy("prefork", "a", "b")`: a worker that runs these; if it is full, another waits there."""

    def start(pool: str, *running: str) -> Worker:
        one: Worker = worker(
            pool=pool,
            concurrency=SLOTS[pool],
            options=OPTIONS,
            conf={"worker_prefetch_multiplier": 4},
        )
        for name in running:
            shop.hold.delay(name)
        eventually(lambda: set(ledger.starts()) == set(running))
        waits = ["reserved"] * (len(running) == SLOTS[pool])
        for name in waits:
            shop.hold.delay(name)
        if pool != "solo":  # whose consumer claims nothing while it works
            everything = {*running, *waits}
            eventually(lambda: {job for jobs in db.held().values() for job in jobs} == everything)
        return one

    return start


def reap(app: Celery, db: Database) -> None:
    """One pass; the dead process was of this host."""

    def found() -> bool:
        return bool(reaper_of(app, db.client).reap().dead)

    eventually(found)


def waiting(pool: str, running: int) -> dict[str, tuple[int, str]]:
    return dict.fromkeys(["reserved"] * (running == SLOTS[pool]), (0, ""))


@pytest.mark.parametrize("pool", SLOTS)
def test_what_ran_alone_is_blamed_for_its_workers_end(busy, app, db, pool):
    busy(pool, "one").kill9_all()
    reap(app, db)
    assert db.strikes() == {"one": (1, "exact"), **waiting(pool, 1)}


@pytest.mark.parametrize(("without", "strikes"), [("", (1, "exact")), ("handover", (0, ""))])
@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_what_kills_in_its_first_line_is_blamed_although_its_record_was_only_sent(
    worker, app, shop, db, pool, without, strikes
):
    """It waits for the slot of others; nobody waits for the answer. The control records nothing."""
    for pill in ("one", "two", "three"):
        for number in range(9):
            shop.note.delay(f"before {pill}, {number}")
        shop.kill_owner.delay(pill)
        conf = {"worker_prefetch_multiplier": 16}
        options = {"env": {"WITHOUT": without}, "options": OPTIONS, "conf": conf, "ready": False}
        worker(pool=pool, concurrency=1, **options).wait_exit()
        reap(app, db)
        assert db.strikes()[pill] == strikes
        db.client.delete("celery")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_ran_beside_others_is_a_suspect(busy, app, db, pool):
    busy(pool, "one", "two").kill9_all()
    reap(app, db)
    suspects = {"one": (1, "suspect"), "two": (1, "suspect")}
    assert db.strikes() == {**suspects, **waiting(pool, 2)}


@pytest.mark.parametrize("pool", SLOTS)
def test_ten_deploys_in_a_row_strike_nothing(worker, app, shop, ledger, db, pool):
    """TERM, and KILL when the grace period is over: the job takes longer than that."""
    shop.hold.delay("long")
    deploys = 10 if pool == "prefork" else 3
    for deploy in range(1, deploys + 1):
        one = worker(pool=pool, concurrency=SLOTS[pool], options=OPTIONS, ready=False)
        eventually(lambda deploy=deploy: ledger.runs().get("long", 0) == deploy)
        owner = db.owner_of("long")
        one.term()
        eventually(lambda owner=owner: db.fact(owner, "state") == "stopping")
        one.kill9_all()
        reap(app, db)
        assert db.strikes() == {"long": (0, "")}
        assert db.waiting() == ["long"]
    assert [int(row["recoveries"]) for row in db.counters()] == [deploys]
    ledger.release()
    worker(pool=pool, concurrency=SLOTS[pool], options=OPTIONS)
    eventually(lambda: ledger.finishes().get("long"))
    assert not db.dead()


def test_a_pool_child_that_is_lost_while_its_worker_stops_strikes_nothing(worker, shop, ledger, db):
    """systemd signals the whole group."""
    one = worker(concurrency=1, options=OPTIONS)
    shop.run("job")
    one.term()
    eventually(lambda: db.fact(db.owner_of("job"), "state") == "stopping")
    one.kill9_child()
    one.wait_exit()
    assert db.strikes() == {"job": (0, "")}
    assert db.stat("recovered") == 1, "A3: no loss goes uncounted"
