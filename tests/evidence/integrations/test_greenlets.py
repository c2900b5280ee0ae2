"""F1. gevent, whose queues lack methods, and eventlet, which is refused."""

from __future__ import annotations

import time

import celery
import pytest

from support.servers.faults import kill_connections
from support.waiting import always, eventually

OPTIONS = {"strike_limit": 1, "heartbeat_interval": 1}


def test_jobs_run_and_the_worker_stops_without_an_error(worker, shop, db, ledger):
    one = worker(pool="gevent", concurrency=4, options=OPTIONS)
    jobs = {f"job {number}" for number in range(20)}
    for job in jobs:
        shop.note.delay(job)
    eventually(lambda: {*ledger.finishes()} == jobs)
    one.stop()
    assert "Traceback" not in one.log()
    assert not any(db.held().values())


def test_a_poison_pill_is_killed_and_announced(worker, shop, db, ledger):
    """It ends its worker; the next one finds it, and tells its caller once."""
    first = worker(pool="gevent", concurrency=4, options=OPTIONS)
    pill = shop.kill_owner.apply_async(["pill"], link_error=shop.note.si("told"))
    first.wait_exit()
    second = worker(pool="gevent", concurrency=4, options=OPTIONS)
    eventually(lambda: pill.state == "FAILURE")
    assert type(pill.result).__name__ == "PoisonPill"
    assert len(db.dead()) == 1
    eventually(lambda: "told" in ledger.finishes() and not db.keys("superfetch:*unannounced"))
    second.stop()
    assert "Traceback" not in second.log()
    assert ledger.runs()["told"] == 1


def test_eventlet_is_refused_and_takes_no_job(worker, shop, db):
    pytest.importorskip("eventlet", reason="eventlet is not installed")
    shop.note.delay("job")
    refused = worker(pool="eventlet", concurrency=4, ready=False)
    assert refused.wait_exit() == 1
    assert "the eventlet pool is not supported" in refused.log()
    assert "-P gevent or -P threads" in refused.log()
    assert db.waiting() == ["job"]


@pytest.mark.parametrize("helper", [False, True], ids=["itself", "a watchdog"])
def test_a_job_whose_greenlet_its_task_kills_is_recovered_with_a_strike(
    worker, app, db, ledger, helper
):
    """It was acked as a success, without a result and without a line in the log."""
    one = worker(app="features", pool="gevent", options={"strike_limit": 2})
    result = app.send_task("features.killed_greenlet", ("job", helper))
    [dead] = eventually(db.dead)
    assert [event["strike"] for event in dead["history"]] == ["exact"] * 2
    assert "it raised GreenletExit" in one.log()
    assert ledger.runs() == {"job": 2}
    eventually(lambda: result.state == "FAILURE")
    eventually(lambda: not db.private_lists())
    one.stop()


def test_the_control_else_it_is_acked_and_lost(worker, app, db, ledger):
    worker(app="features", pool="gevent", env={"WITHOUT": "greenlet_kills"})
    result = app.send_task("features.killed_greenlet", ("job", False))
    eventually(lambda: ledger.runs() == {"job": 1} and not db.held() and not db.waiting())
    assert result.state == "PENDING"
    assert not db.dead()


def test_a_job_whose_greenlet_celery_kills_gets_no_strike(worker, app, db, ledger):
    """Its id is not among the revoked ones: it is revoked by a stamp."""
    worker(app="features", pool="gevent")
    stamped = {"stamped_headers": ["by"], "stamps": {"by": ["me"]}}
    app.send_task("shop.hold", ("job",), headers=stamped)
    eventually(lambda: ledger.runs() == {"job": 1})
    app.control.revoke_by_stamped_headers({"by": ["me"]}, terminate=True)
    eventually(lambda: not db.private_lists())
    assert not db.waiting()
    assert not db.counters()
    assert not db.stat("recovered")


def test_a_job_that_is_cancelled_as_it_begins_is_requeued(worker, client, shop, ledger, db):
    """The pool makes no callback for it: it stayed in flight for as long as its worker lived."""
    conf = {"worker_cancel_long_running_tasks_on_connection_loss": True}
    one = worker(pool="gevent", concurrency=2, env={"HAPPENS": "slow_start_events"}, conf=conf)
    shop.note.delay("job")
    eventually(lambda: ledger.starts().get("start"))
    kill_connections(client)
    one.wait_log("Terminating it instead")
    ledger.release("start")
    eventually(lambda: db.settled() and ledger.finishes())
    assert ledger.runs()["job"] == 1
    assert not db.counters()


def test_a_job_that_is_revoked_as_it_begins_is_settled_although_that_cannot_be_stored(
    worker, shop, ledger, db
):
    """It stayed in flight likewise."""
    worker(pool="gevent", concurrency=2, env={"HAPPENS": "revoked_at_start"})
    shop.note.delay("job")
    eventually(lambda: db.settled() and not db.waiting())
    assert not ledger.runs()


def during_its_ack(worker, app, ledger, task="shop.note", without="", **limits):
    """A worker and a job of it, whose ack waits (for a lock, say), so that its greenlet waits
    too."""
    env = {"HAPPENS": "slow_acks", "WITHOUT": without}
    one = worker(app="features", pool="gevent", concurrency=1, env=env)
    job = app.send_task(task, ("job",), **limits)
    eventually(lambda: ledger.starts().get("ack"))
    return one, job


#: Before 5.7 the loop of Celery's worker acks what greenlets have ended.
acks_in_greenlets = pytest.mark.skipif(
    celery.VERSION < (5, 7), reason="the greenlet of a job does not wait for its ack"
)


@acks_in_greenlets
@pytest.mark.parametrize("without", ["", "whole_ends"])
def test_a_time_limit_that_expires_during_the_ack_of_its_job_does_nothing(
    worker, app, db, ledger, without
):
    """The control: it interrupts the ack, and the finished job stays with its worker."""
    one, job = during_its_ack(worker, app, ledger, without=without, time_limit=1)
    time.sleep(2)
    ledger.release("ack")
    if without:
        one.wait_log("Hard time limit")
        always(lambda: bool(db.running()), during=3)
        return
    eventually(db.settled)
    assert "Hard time limit" not in one.log()
    assert job.state == "SUCCESS"
    assert ledger.runs() == {"ack": 1, "job": 1}


@acks_in_greenlets
def test_a_time_limit_that_expires_during_an_early_ack_fails_the_job_and_costs_no_strike(
    worker, app, db, ledger
):
    """It was recovered with a strike, and ran, although its caller had been told that it failed."""
    one, job = during_its_ack(worker, app, ledger, task="features.early", time_limit=1)
    time.sleep(2)
    ledger.release("ack")
    one.wait_log("Hard time limit")
    eventually(db.settled)
    eventually(lambda: job.state == "FAILURE")
    assert not db.counters()
    assert ledger.runs() == {"ack": 1}


@acks_in_greenlets
@pytest.mark.parametrize("without", ["", "whole_ends"])
def test_a_revoke_that_comes_during_an_early_ack_leaves_no_job_in_flight(
    worker, app, db, ledger, without
):
    """The control: it does, since the kill interrupts the ack."""
    one, job = during_its_ack(worker, app, ledger, task="features.early", without=without)
    app.control.revoke(job.id, terminate=True)
    one.wait_log("Terminating")
    eventually(lambda: job.state == "REVOKED")
    ledger.release("ack")
    if without:
        always(lambda: bool(db.held()), during=3)
        return
    eventually(db.settled)
    assert ledger.runs() == {"ack": 1}
