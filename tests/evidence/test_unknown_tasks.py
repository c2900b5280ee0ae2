"""A rolling deploy: workers of yesterday get jobs of a task that only those of tomorrow know."""

from __future__ import annotations

from hashlib import sha1
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import NotRegistered

from support.servers.faults import kill_connections
from support.waiting import always, eventually

#: A task of the app `builder`, which the shop does not have.
NEW = "shop.build"


def returned(app: Celery, client: Any, times: int, count: int = 1) -> bytes:
    """So many jobs that nobody knows and that have gone back so many times; one of them."""
    for number in range(count):
        app.send_task(NEW, (f"n{number}",), queue="nobody's")
    raws: list[bytes] = client.lrange("nobody's", 0, -1)
    for raw in raws:
        client.hset(f"superfetch:recoveries:{sha1(raw).hexdigest()}", "requeues", times)
    client.set("superfetch:recovered", 1)
    client.rename("nobody's", "celery")
    return raws[0]


@pytest.mark.parametrize(
    ("pool", "other"), [("prefork", "threads"), ("gevent", "solo"), ("solo", "gevent")]
)
def test_they_go_to_who_knows_them_and_hold_up_no_others(worker, app, ledger, db, pool, other):
    old = worker(name="old", pool=pool, concurrency=1, args=["--prefetch-multiplier=1"])
    new = worker(name="new", app="builder", pool=other)
    # A worker says that it is ready before its record has its queues.
    eventually(lambda: ["celery" in db.fact(o, "lists") for o in db.owners()] == [True] * 2)
    jobs = [f"n{n}" for n in range(10)]
    for job in jobs:
        app.send_task(NEW, (job,))
    app.send_task("shop.note", ("behind",))
    eventually(lambda: {*jobs, "behind"} <= set(ledger.finishes()))
    assert set(ledger.runs().values()) == {1}
    assert not db.dead()
    assert old.alive()
    assert new.alive()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_what_nobody_knows_is_in_the_dead_set_and_comes_back_with_who_knows_it(
    worker, make_app, ledger, db, cli, pool
):
    one, _ = worker(name="one", pool=pool), worker(name="two", pool=pool)
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
    assert "Put back" in cli("dead", "retry", sent.id, "--to", "new").out
    # Who has waited for the failure may have been sent it twice, and Celery keeps the second one
    # for whoever waits next in that process.
    anew = make_app().AsyncResult(sent.id)
    assert anew.state == "PENDING", "nobody is told of the old death"
    worker(name="new", app="builder", queues=["new"])
    assert anew.get(timeout=20) == "a"
    assert ledger.runs() == {"a": 1}
    assert one.alive()


def test_it_ends_where_all_give_it_to_each_other(worker, app, db, client):
    """Each of two workers has a task that the other lacks, and neither has this one."""
    soon = {"HAPPENS": "short_pauses"}
    worker(name="one", app="hung", env=soon), worker(name="two", env=soon)
    returned(app, client, 39)  # which takes a quarter of an hour
    eventually(lambda: client.hget("superfetch:stats", "requeued"), within=60)
    [dead] = eventually(db.dead, within=60)
    assert dead["reason"] == f"task '{NEW}' is not registered; it went back to its queue 40 times"
    assert client.hget("superfetch:stats", "requeued") == b"1"


def test_no_more_than_a_thousand_wait_in_one_worker(worker, app, db, client):
    """They take no place from others, so that a queue full of them would all be in its memory."""
    worker(name="one", app="hung"), worker(name="two")
    client.rpush("celery", *[returned(app, client, 25)] * 4000)

    def held() -> list[int]:
        return [len(names) for names in db.held().values()]

    eventually(lambda: min(held(), default=0) > 1000, message="both have as many as they may")
    # With what was claimed together with the last, or by a read that waited.
    always(lambda: max(held()) < 1100, 2.0)


def test_those_that_a_lost_connection_gave_back_do_not_count_any_more(
    worker, app, ledger, db, client
):
    """Celery 5.5 forgets at each what was to give them back. Beyond a thousand each held up all."""
    one, other = worker(name="one", app="hung"), worker(name="two")
    eventually(lambda: len(db.owners()) == 2)
    other.freeze()
    returned(app, client, 35, 900)  # each waits for longer than this test

    def waiting() -> int:
        return max(len(jobs) for jobs in db.held().values())

    eventually(lambda: waiting() > 890)  # a read of the frozen one has got some, too
    kill_connections(client)
    one.wait_log("Connection to broker lost")
    app.send_task("shop.note", ("behind",))
    eventually(lambda: ledger.runs() == {"behind": 1}, 15)
    eventually(lambda: waiting() > 890, message="they wait as before")


def test_the_control_celery_alone_discards_them(worker, app, ledger, db, client):
    old = worker(name="old", options={"unknown_tasks": "discard"})
    app.send_task(NEW, ("a",))
    old.wait_log("Received unregistered task")
    app.send_task("shop.note", ("behind",))
    eventually(lambda: ledger.runs() == {"behind": 1})
    eventually(lambda: not db.held())
    assert not db.dead()
    assert not client.exists("celery")


def test_they_go_back_at_once_from_one_that_stops(worker, app, db):
    other = worker(name="other", app="builder")
    old = worker(name="old")
    eventually(lambda: len(db.owners()) == 2)
    other.freeze()
    jobs = sorted(f"n{n}" for n in range(6))
    for job in jobs:
        app.send_task(NEW, (job,))
    old.wait_log("may know it")
    old.stop()
    taken = [job for held in db.held().values() for job in held]  # by a read that was under way
    assert sorted(db.waiting("celery") + taken) == jobs
    assert not db.dead()
