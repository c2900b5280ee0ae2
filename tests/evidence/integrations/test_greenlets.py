"""F1. gevent, whose queues lack methods, and eventlet, which is refused."""

from __future__ import annotations

import pytest

from support.waiting import eventually

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
