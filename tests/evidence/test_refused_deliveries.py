"""The server refuses a command while a worker delivers a claimed job: the worker goes on, with the
other jobs at once, and with that one later. Each of these ended one worker after the other."""

from __future__ import annotations

import time

import pytest

from celery_superfetch.model.job import digest
from support.servers.database import Database
from support.servers.server import Server
from support.waiting import always, eventually
from support.workers.odd import message, payload

OPTIONS = {"heartbeat_interval": 1, "owner_ttl": 20, "reap_interval": 2}


@pytest.mark.parametrize("stops", [False, True], ids=["strikes", "stops"])
def test_a_full_server_puts_a_job_on_probation_before_its_last_strike_or_stop(
    worker, make_app, ledger, url, fresh_server, stops
):
    own: Server = fresh_server()
    client = own.client()
    options = {**OPTIONS, "strike_limit": 2, "stop_limit": 2}
    one = worker(pool="threads", concurrency=2, options=options, url=own.url(), result_url=url)
    shop = make_app(superfetch=False, url=own.url())
    shop.tasks["shop.note"].apply_async(("late",), queue="aside")
    raw = client.rpop("aside")
    counted = {"stops": 1, "requeues": 1} if stops else {"strikes": 1, "recoveries": 1}
    client.hset(f"superfetch:history:{digest(raw)}", mapping=counted)
    client.set("superfetch:has_history", 1)
    with client.pipeline() as pipe:
        pipe.lpush("celery", raw)
        pipe.config_set("maxmemory", "1mb")
        pipe.execute()
    eventually(ledger.runs)
    assert one.alive()
    assert "is on probation and now runs in isolation" in one.log()
    eventually(lambda: not Database(client).private_lists())
    assert ledger.runs() == {"late": 1}


@pytest.mark.parametrize("task", ["", "no.such"], ids=["unparseable", "unknown"])
def test_a_job_that_cannot_be_moved_to_the_dead_set_keeps_no_other_waiting(
    worker, make_app, ledger, client, db, task
):
    """Another program has written to the key of the dead set."""
    client.set("superfetch:dead", "a text")
    shop = make_app(superfetch=False)
    if task:
        shop.send_task(task, queue="celery")
    else:
        client.lpush("celery", b"junk")
    one = worker(concurrency=2, options=OPTIONS)
    shop.tasks["shop.note"].delay("behind")
    eventually(lambda: ledger.runs() == {"behind": 1})
    one.wait_log("could not be moved to the dead set")
    refused_count = one.log().count("could not be")
    client.delete("superfetch:dead")
    eventually(lambda: len(db.dead()) == 1, 20)
    assert one.alive()
    assert refused_count < 5, "it is not tried again without a pause"


@pytest.mark.parametrize("is_unknown", [True, False], ids=["unknown", "unparseable"])
@pytest.mark.parametrize("multiplier", [1, 4])
def test_many_jobs_that_cannot_be_moved_keep_no_other_waiting(
    worker, make_app, ledger, client, db, is_unknown, multiplier
):
    """More than the prefetch. Those of an unknown task kept their places there, so that nothing
    else was claimed. Each of the others was logged again every 5 s."""
    client.set("superfetch:dead", "a text")
    shop = make_app(superfetch=False)
    if is_unknown:
        sent = [shop.send_task("no.such", queue="celery") for _ in range(20)]
    else:
        client.lpush("celery", *(f"junk{number}" for number in range(20)))
    shop.tasks["shop.note"].delay("behind")
    prefetch = f"--prefetch-multiplier={multiplier}"
    one = worker(pool="threads", concurrency=1, options=OPTIONS, args=[prefetch])
    eventually(lambda: ledger.runs() == {"behind": 1})
    time.sleep(6)  # each of them is refused once more
    log = one.log()
    assert log.count("could not be moved to the dead set") == 1, "one line for all of them"
    assert log.count("Received unregistered task") <= 1, "the callers are not informed each time"
    client.delete("superfetch:dead")
    eventually(lambda: len(db.dead()) == 20, 30)
    one.wait_log("Redis accepts moves to the dead set and to probation again")
    if is_unknown:
        for job in sent:
            with pytest.raises(Exception, match=r"no\.such"):
                shop.AsyncResult(job.id).get(timeout=30)
    eventually(lambda: not db.private_lists())
    assert one.alive()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_an_unreadable_job_that_cannot_be_moved_is_logged_once(worker, client, db, cli, pool):
    """Once for each job and cause. It was an ERROR with a traceback every 5 s."""
    client.set("superfetch:dead", "a text")
    one = worker(app="odd", pool=pool, options=OPTIONS)
    jobs = [payload(message(name, headers={"timelimit": [1]})) for name in ("one", "two")]
    client.lpush("celery", *jobs)
    one.wait_log("could not be moved to the dead set")
    time.sleep(6)  # each of them is refused once more
    log = one.log()
    for name in ("one", "two"):
        assert log.count(f"Job odd.any[id-{name}] moves to the dead set without a run") == 1
    assert log.count("it is tried again every 5 s") == log.count("Traceback (most recent") == 2
    client.delete("superfetch:dead")
    eventually(lambda: len(db.dead()) == 2, 20)
    assert one.log().count("Celery cannot read its message") == 2
    # An operator's retry is another matter: what comes of it is logged again.
    cli("dead", "retry", "--all", "--yes")
    eventually(lambda: one.log().count("Celery cannot read its message") == 4, 20)
    assert one.alive()


def test_a_worker_holds_few_of_the_jobs_that_cannot_be_moved(worker, make_app, ledger, client):
    """It claimed the whole queue into its memory."""
    client.set("superfetch:dead", "a text")
    client.lpush("celery", *(f"junk{number}" for number in range(1000)))
    one = worker(pool="threads", concurrency=1, options=OPTIONS)
    one.wait_log("could not be moved to the dead set")

    def held_count() -> int:
        values = [v for key in client.keys("superfetch:private:*") for v in client.hvals(key)]
        return sum(value.startswith(b"junk") for value in values)

    eventually(lambda: held_count() >= 100)
    always(lambda: held_count() < 120, 6.0)
    make_app(superfetch=False).tasks["shop.note"].apply_async(("first",), queue="aside")
    client.lmove("aside", "celery", "RIGHT", "RIGHT")
    eventually(lambda: ledger.runs() == {"first": 1}, 20)
    assert one.alive()


def test_a_job_that_cannot_be_moved_does_not_count_as_running_while_it_waits(
    worker, make_app, client, db
):
    """The idle worker's claim had recorded its start. It got a strike, and the job that ended the
    worker was only a suspect."""
    client.set("superfetch:dead", "a text")
    shop = make_app(superfetch=False)
    shop.send_task("no.such", ("late",), queue="celery")
    one = worker(pool="threads", concurrency=2, options=OPTIONS)
    one.wait_log("could not be moved to the dead set")
    eventually(lambda: db.held() and not db.running())
    shop.tasks["shop.kill_owner"].delay("pill")
    one.wait_gone()
    worker(pool="threads", concurrency=2, options=OPTIONS, queues=["elsewhere"])
    eventually(lambda: db.strikes() == {"pill": (1, "exact"), "late": (0, "")}, 10)


def test_a_suspect_that_cannot_be_moved_keeps_no_other_waiting(
    worker, make_app, ledger, client, db
):
    """It waited for its requeue as if it had its solo run, and nothing ran meanwhile."""
    client.set("superfetch:dead", "a text")
    shop = make_app(superfetch=False)
    db.suspect(b"junk", "celery")
    one = worker(pool="threads", concurrency=1, options=OPTIONS)
    one.wait_log("could not be moved to the dead set")
    began = time.monotonic()
    shop.tasks["shop.note"].delay("other")
    eventually(ledger.runs)
    assert time.monotonic() - began < 3
    assert ledger.runs() == {"other": 1}
    assert one.alive()


def test_a_job_that_has_run_and_cannot_be_moved_keeps_no_other_waiting(
    worker, make_app, ledger, client, db
):
    """It kept its place in the prefetch, so that an idle worker claimed nothing more."""
    client.set("superfetch:dead", "a text")
    shop = make_app(superfetch=False)
    options = {**OPTIONS, "strike_limit": 1}
    one = worker(pool="prefork", concurrency=1, options=options, args=["--prefetch-multiplier=1"])
    shop.tasks["shop.kill_child"].delay("pill")
    one.wait_log("could not be requeued or moved yet")
    shop.tasks["shop.note"].delay("behind")
    eventually(lambda: ledger.runs().get("behind"))
    client.delete("superfetch:dead")
    eventually(lambda: len(db.dead()) == 1)
    eventually(lambda: not db.held())
    assert one.alive()
    assert ledger.runs() == {"pill": 1, "behind": 1}


def solo(worker, own: Server, url: str):
    """A solo worker; its first job runs already, and holds its loop."""
    return worker(
        pool="solo", concurrency=1, options=OPTIONS, url=own.url(), result_url=url, ready=False
    )


@pytest.mark.parametrize("behind", ["eta", "junk"])
def test_a_solo_worker_outlives_a_refusal_to_the_job_behind_the_one_that_ended(
    worker, make_app, ledger, url, fresh_server, behind
):
    """The server begins to refuse all writes during a run. The ack was sent and not read when the
    next job, of a later ETA, was parked: the worker ended, and the first job ran again."""
    own: Server = fresh_server()
    client = own.client()
    shop = make_app(superfetch=False, url=own.url())
    shop.tasks["shop.hold"].apply_async(("A",), queue="aside")
    shop.tasks["shop.note"].apply_async(("B",), queue="aside", countdown=100)
    first, eta = client.rpop("aside"), client.rpop("aside")
    client.lpush("celery", first, eta if behind == "eta" else b"junk")
    one = solo(worker, own, url)
    eventually(ledger.starts)
    eventually(lambda: client.llen("celery") == 0, message="it has claimed both")
    client.config_set("min-replicas-to-write", 1)
    ledger.release()
    one.wait_log("Redis refuses claims and acks: NOREPLICAS")
    client.config_set("min-replicas-to-write", 0)
    db = Database(client)
    eventually(lambda: db.parked() == ["B"] if behind == "eta" else db.dead(), 20)
    eventually(lambda: not db.private_lists())
    assert one.alive()
    assert ledger.runs() == {"A": 1}


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_refusal_while_celery_receives_a_job_ends_no_worker(worker, app, ledger, client, pool):
    """The strategy of its task asks a server, which refuses: the key has another type."""
    client.set("refused:key", "a text")
    one = worker(app="refused", pool=pool, concurrency=1, options=OPTIONS)
    late = app.send_task("refused.asks", ("late",))
    one.wait_log("could not be received (WRONGTYPE")
    app.send_task("shop.note", ("other",))
    eventually(lambda: ledger.runs() == {"other": 1})
    time.sleep(6)  # it is refused once more
    assert one.log().count("could not be received (WRONGTYPE") == 1, "that is logged once"
    client.delete("refused:key")
    assert late.get(timeout=30) == "late"
    assert one.alive()
    assert ledger.runs() == {"other": 1, "late": 1}


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_result_that_the_server_refuses_for_good_ends_no_worker(
    worker, app, ledger, url, fresh_server, db, pool
):
    """The Redis user of the results may not write."""
    own: Server = fresh_server()
    own.client().execute_command("ACL SETUSER reader on >word ~* &* +@all -@write -eval -evalsha")
    results = own.url().replace("redis://", "redis://reader:word@")
    for task in ("shop.note", "refused.rejects", "shop.fail"):
        app.send_task(task, (task,), queue="celery")
    one = worker(app="refused", pool=pool, concurrency=1, options=OPTIONS, result_url=results)
    once = {"shop.note": 1, "refused.rejects": 1, "shop.fail": 1}
    eventually(lambda: ledger.runs() == once)
    eventually(db.settled)
    assert one.alive()
    always(lambda: ledger.runs() == once, during=6, message="a job that has run is not run again")
