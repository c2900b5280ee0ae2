"""A rolling deploy: workers of yesterday get jobs of a task that only those of tomorrow know."""

from __future__ import annotations

from hashlib import sha1
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import NotRegistered

from support.waiting import always, eventually

#: A task of the app `builder`, which the shop does not have.
NEW = "shop.build"

#: The result backend is asked once more, and not for 20 s.
IMPATIENT = {
    "result_backend_transport_options": {"retry_policy": {"max_retries": 1, "interval_start": 0}}
}
#: Celery would ask the backend without end, in the worker's loop.
ALWAYS_RETRY = {"result_backend_always_retry": True}


def returned(app: Celery, client: Any, times: int, count: int = 1) -> bytes:
    """So many jobs that nobody knows and that have gone back so many times; one of them."""
    for number in range(count):
        app.send_task(NEW, (f"n{number}",), queue="nobody's")
    raws: list[bytes] = client.lrange("nobody's", 0, -1)
    for raw in raws:
        client.hset(f"superfetch:history:{sha1(raw).hexdigest()}", "requeues", times)
    client.set("superfetch:has_history", 1)
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
    [dead] = eventually(db.dead)
    assert dead["task"] == NEW
    assert (
        dead["reason"]
        == f"task '{NEW}' is not registered; all live workers of its queue have the same tasks"
    )
    assert cli("status", "--json").json()["dead_set"]["unannounced"] == 0
    assert "Requeued to new" in cli("dead", "retry", sent.id, "--to", "new").out
    # Who has waited for the failure may have been sent it twice, and Celery keeps the second one
    # for whoever waits next in that process.
    anew = make_app().AsyncResult(sent.id)
    assert anew.state == "PENDING", "nobody is told of the old death"
    worker(name="new", app="builder", queues=["new"])
    assert anew.get(timeout=20) == "a"
    assert ledger.runs() == {"a": 1}
    assert one.alive()


@pytest.mark.parametrize("pool", ["prefork", "solo"])
@pytest.mark.parametrize("conf", [{}, ALWAYS_RETRY], ids=["", "always retry"])
def test_a_caller_is_informed_when_the_result_backend_is_back(
    worker, app, make_app, ledger, db, fresh_server, pool, conf
):
    """An error of Redis was taken for a lost connection to the broker, and another one ended the
    worker. The job was in the dead set already, and its caller waited for ever."""
    results = fresh_server()
    results.stop()
    conf = {**IMPATIENT, **conf}
    one = worker(pool=pool, concurrency=1, result_url=results.url(), conf=conf)
    jobs = [app.send_task(NEW, (f"n{number}",)) for number in range(3)]
    app.send_task("shop.note", ("behind",), ignore_result=True)
    eventually(lambda: len(db.dead()) == 3)
    eventually(lambda: "behind" in ledger.finishes())
    assert one.log().count("a failure notification informs its caller") == 1
    assert one.log().count("moved to the dead set") == 3
    assert "Connection to broker lost" not in one.log()
    results.start()
    reader = make_app(superfetch=False, conf={"result_backend": results.url()})
    for job in jobs:
        with pytest.raises(Exception, match="is not registered"):
            reader.AsyncResult(job.id).get(timeout=60)
    eventually(db.settled)
    assert one.alive()
    assert len(db.dead()) == 3


def test_it_ends_where_all_give_it_to_each_other(worker, app, db, client):
    """Each of two workers has a task that the other lacks, and neither has this one."""
    soon = {"HAPPENS": "short_pauses"}
    worker(name="one", app="hung", env=soon), worker(name="two", env=soon)
    returned(app, client, 39)  # which takes a quarter of an hour
    eventually(lambda: client.hget("superfetch:stats", "requeued"), within=60)
    [dead] = eventually(db.dead, within=60)
    assert dead["reason"] == f"task '{NEW}' is not registered; it was requeued 40 times"
    assert client.hget("superfetch:stats", "requeued") == b"1"


def test_they_wait_in_redis_and_hold_up_no_others(worker, app, ledger, db, client):
    """A queue full of them costs a worker neither memory nor a place in its prefetch."""
    one, other = worker(name="one", app="hung"), worker(name="two")
    eventually(lambda: len(db.owners()) == 2)
    other.freeze()
    returned(app, client, 25, 2000)  # each waits for longer than this test
    app.send_task("shop.note", ("behind",))
    eventually(lambda: ledger.runs() == {"behind": 1}, 30)

    def held_by(owner: str) -> int:
        return len(db.held().get(owner, ()))

    taken = "a read of the frozen one has got some, too"
    eventually(lambda: len(db.parked()) > 1900, 60, message=taken)
    [awake] = [owner for owner in db.owners() if f"|{one.pid}|" in owner]
    eventually(lambda: held_by(awake) == 0, message="this worker has none of them")


def test_a_worker_that_dies_leaves_them_to_one_that_knows_the_task(worker, app, ledger, db):
    """By kill -9, while they wait: they are on the server, and no strike follows."""
    old, other = worker(name="old", app="hung"), worker(name="other")
    eventually(lambda: ["celery" in db.fact(o, "lists") for o in db.owners()] == [True] * 2)
    other.freeze()
    jobs = [f"n{number}" for number in range(6)]
    for job in jobs:
        app.send_task(NEW, (job,))
    eventually(lambda: len(db.parked()) >= len(jobs) - 1, message="the frozen one may have one")
    old.die(), other.die()
    worker(name="new", app="builder")
    eventually(lambda: {*jobs} <= {*ledger.finishes()}, 40)
    assert set(ledger.runs().values()) == {1}
    assert not db.dead()
    assert not any(int(row.get("strikes", 0)) for row in db.counters())


def test_they_are_told_of_while_they_wait(worker, app, db, cli):
    """`doctor` names their task, and once they are due and no process is left, `status` does not
    say that all is well."""
    old, other = worker(name="old", app="hung"), worker(name="other")
    eventually(lambda: ["celery" in db.fact(o, "lists") for o in db.owners()] == [True] * 2)
    other.freeze()
    app.send_task(NEW, ("a",))
    eventually(lambda: len(db.parked()) == 1)
    assert NEW in cli("doctor", code=1).out
    old.die(), other.die()

    def told() -> bool:
        found = cli("status", "--json").json()["findings"]
        texts = [finding["text"] for finding in found if finding["code"] == "no-consumer"]
        return any("1 scheduled job, the next due" in text for text in texts)

    eventually(told, 60, every=2)


@pytest.mark.parametrize("without", ["", "pauses"], ids=["with", "control"])
def test_a_job_that_no_worker_knows_is_not_claimed_without_end(worker, app, db, client, without):
    """The control: it goes round forty times at once, and is dead before a deploy has ended."""
    env = {"WITHOUT": without}
    worker(name="one", app="hung", env=env), worker(name="two", env=env)
    eventually(lambda: ["celery" in db.fact(o, "lists") for o in db.owners()] == [True] * 2)
    app.send_task(NEW, ("a",))
    if without:
        eventually(db.dead)
    else:
        eventually(lambda: client.hget("superfetch:stats", "requeued"))
        always(lambda: not db.dead(), 5.0)
        assert int(client.hget("superfetch:stats", "requeued")) <= 5


@pytest.mark.parametrize("without", ["", "return_spacing"], ids=["with", "control"])
def test_jobs_that_return_one_by_one_find_the_worker_that_knows_them(
    worker, app, db, ledger, client, without
):
    """60 jobs of 0.2 s, of which the older worker took some: each was parked 1.9 times. If they
    return at once, that one takes all but a few of them again: parked 11 times each, 25 had run
    when all had run with it."""
    env, count = {"WITHOUT": without}, 20
    worker(name="old", env=env)
    worker(name="new", app="builder", concurrency=1, env=env, args=["--prefetch-multiplier=1"])
    eventually(lambda: ["celery" in db.fact(o, "lists") for o in db.owners()] == [True] * 2)
    for number in range(count):
        app.send_task(NEW, (f"n{number}", 0.2))

    def is_much() -> bool:
        return db.stat("requeued") > 4 * count

    eventually(lambda: len(ledger.finishes()) == count or is_much(), 120)
    assert is_much() == bool(without)


@pytest.mark.parametrize("without", ["", "starting_workers"], ids=["with", "control"])
def test_they_wait_for_a_worker_that_is_about_to_consume_their_queue(
    worker, app, ledger, db, without
):
    """A worker registers before it consumes. Here it waits between the two."""
    env = {"WITHOUT": without}
    late = {**env, "HAPPENS": "late_consumer"}
    worker(name="new", app="builder", env=late, ready=False)
    eventually(lambda: [db.fact(owner, "lists") for owner in db.owners()] == ["{}"])
    worker(name="old", env=env)
    app.send_task(NEW, ("a",))
    if without:
        [dead] = eventually(db.dead)
        assert "all live workers of its queue have the same tasks" in dead["reason"]
    else:
        eventually(db.parked)
    ledger.release("consumer")
    if not without:
        eventually(lambda: "a" in ledger.finishes(), 40)
        assert not db.dead()


def test_the_control_celery_alone_discards_them(worker, app, ledger, db, client):
    old = worker(name="old", options={"unknown_tasks": "discard"})
    app.send_task(NEW, ("a",))
    old.wait_log("Received unregistered task")
    app.send_task("shop.note", ("behind",))
    eventually(lambda: ledger.runs() == {"behind": 1})
    eventually(lambda: not db.held())
    assert not db.dead()
    assert not client.exists("celery")


def test_a_worker_that_stops_holds_none_of_them(worker, app, db):
    other = worker(name="other", app="builder")
    old = worker(name="old")
    eventually(lambda: len(db.owners()) == 2)
    other.freeze()
    jobs = sorted(f"n{n}" for n in range(6))
    for job in jobs:
        app.send_task(NEW, (job,))
    old.wait_log("may run it")
    old.stop()
    taken = [job for held in db.held().values() for job in held]  # by a read that was under way
    assert sorted(db.waiting("celery") + db.parked() + taken) == jobs
    assert not db.dead()
