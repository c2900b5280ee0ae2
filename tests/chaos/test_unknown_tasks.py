"""A rolling deploy: workers of yesterday get jobs of a task that only those of tomorrow know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import NotRegistered

from support.servers.database import Database
from support.servers.ledger import Ledger
from support.waiting import eventually
from support.workers.cli import Result

#: A task of the app `builder`, which the shop does not have.
NEW = "shop.build"


def test_they_go_to_who_knows_them_and_hold_up_no_others(
    worker: Any, app: Celery, ledger: Ledger, db: Database
) -> None:
    old = worker(name="old", concurrency=1, args=["--prefetch-multiplier=1"])
    new = worker(name="new", app="builder", pool="threads")
    jobs = [f"n{n}" for n in range(10)]
    for job in jobs:
        app.send_task(NEW, (job,))
    app.send_task("shop.note", ("behind",))
    eventually(lambda: {*jobs, "behind"} <= set(ledger.finishes()))
    assert set(ledger.runs().values()) == {1}
    assert not db.dead()
    assert old.alive()
    assert new.alive()


def test_what_nobody_knows_is_in_the_dead_set_and_comes_back_with_who_knows_it(
    worker: Any,
    make_app: Callable[..., Celery],
    ledger: Ledger,
    db: Database,
    cli: Callable[..., Result],
) -> None:
    worker(name="one"), worker(name="two")
    app = make_app()
    sent = app.send_task(NEW, ("a",))
    with pytest.raises(NotRegistered):
        sent.get(timeout=20)
    [dead] = db.dead()
    assert dead["task"] == NEW
    assert (
        dead["reason"]
        == f"task '{NEW}' is not registered; no other live worker of its queue has other tasks"
    )
    assert cli("status", "--json").json()["dead_set"]["unannounced"] == 0
    worker(name="new", app="builder", queues=["new"])
    assert "Put back" in cli("dead", "retry", sent.id, "--to", "new").out
    assert app.AsyncResult(sent.id).get(timeout=20) == "a"  # the other remembers its failure
    assert ledger.runs() == {"a": 1}


def test_the_control_celery_alone_discards_them(
    worker: Any, app: Celery, ledger: Ledger, db: Database, client: Any
) -> None:
    old = worker(name="old", options={"unknown_tasks": "discard"})
    app.send_task(NEW, ("a",))
    old.wait_log("Received unregistered task")
    app.send_task("shop.note", ("behind",))
    eventually(lambda: ledger.runs() == {"behind": 1})
    eventually(lambda: not db.held())
    assert not db.dead()
    assert not client.exists("celery")


def test_they_go_back_at_once_from_one_that_stops(worker: Any, app: Celery, db: Database) -> None:
    other = worker(name="other", app="builder")
    old = worker(name="old")
    eventually(lambda: len(db.owners()) == 2)
    other.freeze()
    jobs = sorted(f"n{n}" for n in range(6))
    for job in jobs:
        app.send_task(NEW, (job,))
    old.wait_log("may know it")
    old.term()
    assert old.wait_exit() == 0
    taken = [job for held in db.held().values() for job in held]  # by a read that was under way
    assert sorted(db.waiting("celery") + taken) == jobs
    assert not db.dead()
