"""How a job ends: whatever it raises, the worker lives, and the job is not left in flight. How runs
end, and how long they take, is counted on each pool, and costs no job a command."""

from __future__ import annotations

import pytest
from kombu.common import Broadcast

from celery_superfetch.store.runs import Runs, RunSums
from support.waiting import always, eventually
from support.workers.bench import Bench


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_task_that_runs_out_of_memory_fails_like_any_other(worker, app, shop, ledger, db, pool):
    """A, B. Celery raises a task's MemoryError once more in the MainProcess. With processes that
    ended the worker, who gave the job back uncounted: to the next, through the whole fleet. With
    threads and greenlets it was in flight, and running, as long as the worker lived."""
    one = worker(app="features", pool=pool, concurrency=1)
    failed = app.send_task("features.memory_error", ("odd",))
    shop.ran("behind")
    eventually(db.settled)
    assert one.alive()
    assert ledger.runs()["odd"] == 1
    assert failed.state == "FAILURE"
    assert not db.dead()


def test_the_control_ends_over_it(worker, app, db):
    one = worker(app="features", concurrency=1, superfetch=False)
    app.send_task("features.memory_error", ("odd",))
    one.wait_exit()
    assert db.waiting() == ["odd"], "the next worker is to have it"


#: The result backend is asked once more, and not for 20 s.
IMPATIENT = {
    "result_backend_transport_options": {"retry_policy": {"max_retries": 1, "interval_start": 0}}
}


@pytest.mark.parametrize("end", ["rejected", "revoked", "revoked by a stamp", "timed out"])
def test_a_job_whose_end_cannot_be_told_does_not_stay_in_flight(
    worker, app, ledger, db, fresh_server, end
):
    """B. Celery tells the result backend first, and raises if that is away. The job has ended: it
    counted as running, and against the prefetch, as long as the worker lived."""
    results = fresh_server()
    pool = "gevent" if end == "timed out" else "prefork"
    worker(app="features", pool=pool, concurrency=1, result_url=results.url(), conf=IMPATIENT)
    results.close()
    limits = {"time_limit": 1} if end == "timed out" else {}
    stamped = {"stamped_headers": ["by"], "stamps": {"by": ["me"]}}
    if end == "rejected":
        job = app.send_task("features.reject", ("odd", False))
    else:
        job = app.send_task("shop.hold", ("odd",), headers=stamped, **limits)
    eventually(lambda: ledger.starts().get("odd"))
    if end == "revoked":
        app.control.revoke(job.id, terminate=True)
    if end == "revoked by a stamp":
        app.control.revoke_by_stamped_headers(stamped["stamps"], terminate=True)
    if end == "timed out":  # nobody knows of its failure: it is run again, and that is counted
        eventually(db.dead)
    eventually(db.settled)
    assert not db.running()
    assert ledger.runs()["odd"] == (3 if end == "timed out" else 1)


def test_a_greenlet_that_is_revoked_before_it_begins_is_settled(worker, shop, ledger, db):
    """Its kill came while it stored that, before the pool catches it: the job was kept for ever."""
    one = worker(pool="gevent", env={"HAPPENS": "revoked_at_their_spawn"}, concurrency=1)
    job = shop.hold.delay("job")
    eventually(lambda: job.state == "REVOKED")
    shop.note.delay("next")
    eventually(lambda: "next" in ledger.finishes() and not db.private_lists())
    assert ledger.runs() == {"next": 1}
    one.stop()


#: Celery would ask the backend without end, in the worker's loop.
ALWAYS_RETRY = {"result_backend_always_retry": True}
UNSTORED = "is to be discarded (expired), but the result backend could not store that"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("conf", [{}, ALWAYS_RETRY], ids=["", "always retry"])
def test_an_expired_job_waits_for_the_result_backend_and_holds_up_no_other(
    worker, app, make_app, fresh_server, ledger, db, pool, conf
):
    """Each try was taken for a lost connection to the broker, and no other job ran. With
    `result_backend_always_retry` the loop hung."""
    results = fresh_server()
    results.stop()
    conf = {**IMPATIENT, **conf}
    one = worker(app="features", pool=pool, concurrency=1, result_url=results.url(), conf=conf)
    late = [app.send_task(name, ("late",), expires=-1) for name in ("shop.note", "features.early")]
    others = [f"other {number}" for number in range(5)]
    for job in others:
        app.send_task("shop.note", (job,), ignore_result=True)
    eventually(lambda: {*others} <= ledger.finishes().keys())
    eventually(lambda: one.log().count(UNSTORED) >= 4, 30, message="each is tried again")
    assert "Connection to broker lost" not in one.log()
    assert not any(int(counters.get("strikes", 0)) for counters in db.counters())
    results.start()
    reader = make_app(superfetch=False, conf={"result_backend": results.url()})
    for job in late:
        eventually(lambda id=job.id: reader.AsyncResult(id).state == "REVOKED", 30)
    eventually(lambda: db.settled() and not db.parked())
    assert one.alive()
    assert not [*db.strikes(), *db.dead(), *db.on_probation()]
    assert ledger.runs() == dict.fromkeys(others, 1)


def test_an_expired_job_of_a_broadcast_is_discarded_and_holds_up_no_other(
    worker, app, fresh_server, ledger, db
):
    """It has no claim, so it cannot be scheduled."""
    results = fresh_server()
    results.stop()
    one = worker(concurrency=1, result_url=results.url(), conf=IMPATIENT)
    news = Broadcast("news", routing_key="news.mine")
    app.control.add_consumer("news.mine", exchange="news", exchange_type="fanout")

    def is_discarded() -> bool:
        app.send_task("shop.note", ("late",), expires=-1, queue=news, declare=[news.exchange])
        return "is discarded (expired), but the result backend could not store that" in one.log()

    eventually(is_discarded, every=1, message="once the worker has subscribed")
    app.send_task("shop.note", ("other",), ignore_result=True)
    eventually(lambda: "other" in ledger.finishes())
    assert "Connection to broker lost" not in one.log()
    eventually(lambda: db.settled() and not db.parked())
    assert ledger.runs() == {"other": 1}
    one.stop()


def test_the_control_takes_it_for_a_lost_connection_to_the_broker(
    worker, app, fresh_server, ledger
):
    results = fresh_server()
    results.stop()
    env = {"WITHOUT": "parked_revocations"}
    one = worker(concurrency=1, result_url=results.url(), conf=IMPATIENT, env=env)
    app.send_task("shop.note", ("late",), expires=-1)
    eventually(lambda: one.log().count("Connection to broker lost") >= 3, 30)
    app.send_task("shop.note", ("other",), ignore_result=True)
    always(lambda: "other" not in ledger.starts(), during=3)


@pytest.mark.parametrize("task", ["shop.note", "features.early"])
def test_a_job_that_is_revoked_before_its_eta_waits_for_the_result_backend_too(
    worker, app, make_app, fresh_server, shop, ledger, db, task
):
    results = fresh_server()
    one = worker(app="features", concurrency=1, result_url=results.url(), conf=IMPATIENT)
    job = app.send_task(task, ("late",), countdown=4)
    one.wait_log("received")
    app.control.revoke(job.id)
    one.wait_log("flagged as revoked")
    results.stop()
    one.wait_log("is to be discarded (revoked)", 30)
    shop.note.apply_async(("other",), ignore_result=True)
    eventually(lambda: "other" in ledger.finishes())
    assert "Connection to broker lost" not in one.log()
    results.start()
    reader = make_app(superfetch=False, conf={"result_backend": results.url()})
    eventually(lambda: reader.AsyncResult(job.id).state == "REVOKED", 30)
    eventually(lambda: db.settled() and not db.parked())
    assert not [*db.strikes(), *db.dead()]
    assert ledger.runs() == {"other": 1}


#: Longer than this test: what is there has been counted when the worker stopped.
RARELY = {"heartbeat_interval": 60, "owner_ttl": 300}


def counts(bench: Bench) -> RunSums:
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
    eventually(db.settled, message="all is settled")
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
