"""The notice of a killed job reaches who waits, whatever an app says of its tasks, and ends."""

from __future__ import annotations

from typing import Any

import celery
import pytest
from celery import Celery

from celery_superfetch import PoisonPill
from celery_superfetch.app.notice import Notices
from celery_superfetch.model.strikes import Decision
from celery_superfetch.signals import job_recovering
from support.waiting import always, eventually

UNANNOUNCED = "superfetch:dead:unannounced"
LATER = "celery\x06\x166"
ONE_STRIKE = {"strike_limit": 1, "reap_interval": 1}

#: What users say of all their tasks, each in a worker of its own.
SETTINGS: dict[str, dict[str, Any]] = {
    "yaml, gzip, routes, a rate limit": {
        "task_serializer": "yaml",
        "accept_content": ["yaml"],
        "result_accept_content": ["json"],
        "task_compression": "gzip",
        "task_routes": {"*": {"queue": "elsewhere"}},
        "task_default_rate_limit": "1/h",
    },
    "pickle, eager": {
        "task_serializer": "pickle",
        "accept_content": ["pickle"],
        "result_accept_content": ["json"],
        "task_always_eager": True,
    },
    "pickle for each task alone": {
        "accept_content": ["pickle"],
        "result_accept_content": ["json"],
    },
    "protocol 1, no prefetch, early ack, priorities": {
        "task_protocol": 1,
        "worker_disable_prefetch": True,
        "task_acks_late": False,
        "task_queue_max_priority": 9,
        "task_default_priority": 6,
        "task_create_missing_queues": False,
    },
}


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
@pytest.mark.parametrize("how", SETTINGS)
def test_it_comes_through_whatever_an_app_says_of_its_tasks(
    how, pool, worker, make_app, bench, ledger, proxy
):
    """Also that of its second try: the first gets no answer of the result backend."""
    conf, names = SETTINGS[how], ("celery", LATER)
    if pool == "gevent" and "worker_disable_prefetch" in conf and (5, 6) <= celery.VERSION < (5, 7):
        pytest.skip("there Celery compares with the number of running greenlets, and never starts")
    serializer = conf.get("accept_content", ["json"])[0]
    sent = {name: conf[name] for name in conf if name not in ("task_routes", "task_always_eager")}
    app = make_app(superfetch=False, conf=sent)
    old = app.signature("told.old").set(queue="celery", serializer=serializer)
    result = app.signature("told.pill", ("one",)).apply_async(
        queue="celery", link_error=dict(old), serializer=serializer
    )
    bench.orphan(*names)
    proxy.stall()
    one = worker(
        app="told",
        pool=pool,
        concurrency=2,
        conf=conf,
        options=ONE_STRIKE,
        result_url=proxy.url(),
        env={"KILL": "1", "C_FORCE_ROOT": "1"},
    )
    one.wait_log("its caller is not informed yet")
    assert ledger.told("job_killed") == [result.id], "receivers hear at once"
    proxy.heal()
    with pytest.raises(PoisonPill):
        result.get(timeout=30)
    eventually(lambda: not bench.client.exists(bench.keys.unannounced))
    eventually(lambda: ledger.told("old errback") == [result.id])
    for what in ("job_killed", "poisoned", "task_failure"):
        assert len(ledger.told(what)) == 1, what
    assert not bench.client.exists("elsewhere")


def test_the_caller_of_a_task_that_computes_its_backend_is_informed(worker, app, ledger, db):
    """Its notice failed again and again, and the log blamed the result backend."""
    pills = [
        app.signature(f"told.{name}", (name,)).apply_async()
        for name in ("ByProperty", "ByCachedProperty")
    ]
    env = {"C_FORCE_ROOT": "1"}
    one = worker(
        app="told", concurrency=1, options=ONE_STRIKE, result_url=app.conf.broker_url, env=env
    )
    for pill in pills:
        with pytest.raises(PoisonPill):
            pill.get(timeout=30)
    eventually(lambda: not db.client.exists(UNANNOUNCED))
    assert "its caller is not informed yet" not in one.log()


@pytest.mark.parametrize("without", ["", "stored_progress"], ids=["with", "control"])
def test_a_notice_that_waits_outlives_its_worker_and_goes_on_where_it_was(
    worker, app, bench, db, ledger, proxy, without
):
    """By kill -9 while it is parked: the next worker announces the job, and calls receivers of
    ``job_killed`` no second time. The control: it does."""
    settings = {"app": "told", "concurrency": 1, "result_url": proxy.url()}
    settings |= {"options": ONE_STRIKE, "env": {"WITHOUT": without, "KILL": "1"}}
    pill = app.signature("told.pill", ("one",)).apply_async()
    bench.orphan("celery")
    proxy.stall()
    first = worker(**settings)
    first.wait_log("its caller is not informed yet")
    eventually(lambda: db.client.zcard("superfetch:parked:celery") == 1)
    first.die()
    assert not db.held()
    proxy.heal()
    worker(**settings)
    with pytest.raises(PoisonPill):
        pill.get(timeout=60)
    eventually(lambda: not db.client.exists(UNANNOUNCED))
    assert ledger.told("job_killed") == [pill.id] * (2 if without else 1)
    eventually(lambda: not db.counters() and not db.length())


def test_what_kills_each_notice_ends_and_no_notice_follows_a_notice(worker, app, db, ledger):
    """A receiver of `job_killed` that ends its process: the caller is told without it."""
    one = worker(app="told", concurrency=1, options=ONE_STRIKE, env={"HALF_WAY": "job_killed"})
    pill = app.signature("told.pill", ("one",)).apply_async()
    with pytest.raises(PoisonPill):
        pill.get(timeout=60)
    eventually(lambda: not db.client.exists(UNANNOUNCED))
    assert "killed its process repeatedly" in one.log()
    assert [record["task"] for record in db.dead()] == ["told.pill"]


def test_where_even_the_last_run_kills_the_notice_is_dead_and_nothing_follows(
    worker, app, db, ledger
):
    worker(app="told", concurrency=1, options=ONE_STRIKE, env={"HALF_WAY": "each question"})
    app.signature("told.pill", ("one",)).apply_async()
    dead = ["celery_superfetch.announce", "told.pill"]
    eventually(lambda: sorted(record["task"] for record in db.dead()) == dead, within=60)
    assert db.client.scard(UNANNOUNCED) == 1, "the pill's caller, and nobody for the notice"
    always(lambda: not db.length() and len(db.dead()) == 2, during=3)


def test_one_that_is_cut_short_by_a_time_limit_tells_in_the_end(worker, app, db, ledger):
    """A hook that hangs, and a hard limit that is meant for all tasks."""
    conf = {"task_time_limit": 1}
    one = worker(app="told", concurrency=1, options=ONE_STRIKE, conf=conf, env={"HANGS": "hung"})
    pill = app.signature("told.pill", ("hung",)).apply_async()
    eventually(lambda: db.dead() and not db.client.exists(UNANNOUNCED), within=60)
    assert isinstance(pill.result, PoisonPill)
    assert "killed its process repeatedly" in one.log()
    assert len(db.dead()) == 1


def test_a_broker_that_goes_away_while_it_tells_loses_no_notice(
    worker, app, db, ledger, proxy, url
):
    """Nor can its next try be sent: it goes back when the broker is there, and tells again."""
    env = {"HANGS": "hung"}
    worker(app="told", url=proxy.url(), result_url=url, options=ONE_STRIKE, env=env)
    pill = app.signature("told.pill", ("hung",)).apply_async()
    eventually(lambda: ledger.told("hangs"))
    proxy.cut()
    proxy.refuse()
    ledger.release("hung")
    eventually(lambda: ledger.told("task_failure"))
    assert db.client.exists(UNANNOUNCED)
    proxy.heal()
    eventually(lambda: not db.client.exists(UNANNOUNCED), within=60)
    assert isinstance(pill.result, PoisonPill)
    assert 1 <= len(ledger.told("poisoned")) <= 2


def test_a_stock_worker_that_discards_it_leaves_the_dead_set_whole_and_doctor_says_so(
    worker, app, bench, cli
):
    app.signature("told.pill", ("one",)).apply_async()
    bench.orphan("celery")
    killer = Celery("shop", set_as_current=False)
    kill = job_recovering.connect(lambda **_: Decision.KILL, sender=killer, weak=False)
    assert bench.reaper(sender=killer, notice=Notices(killer)).reap().killed == 1
    job_recovering.disconnect(kill, sender=killer)
    assert len(bench.queue("celery")) == 1
    stock = worker(superfetch=False)
    stock.wait_log("Received unregistered task of type 'celery_superfetch.announce'")
    eventually(lambda: not bench.queue("celery"))
    stock.close()
    [job] = bench.dead_set
    assert (job.task, [dead.id for dead in bench.untold()]) == ("told.pill", [job.id])
    told = cli("doctor", code=1).out
    assert "failure notifications pending for 1 dead job" in told
    assert "A stock worker discards them" in " ".join(told.split())
    cli("dead", "retry", job.id)
    assert len(bench.queue("celery")) == 1


@pytest.mark.parametrize("setting", ["task_acks_on_timeout", "task_acks_on_failure_or_timeout"])
def test_a_notice_that_a_time_limit_ends_runs_again_whatever_an_app_says(
    worker, app, db, ledger, setting
):
    """Celery 5.7 reads the app's setting for timeouts before the older one of the task: the notice
    was acked, and what follows the result was never done."""
    conf = {"task_time_limit": 4, setting: True}
    one = worker(app="told", concurrency=1, conf=conf, options=ONE_STRIKE, env={"HANGS": "one"})
    app.send_task("told.pill", ("one",))
    eventually(lambda: ledger.told("hangs"))
    one.wait_log("Hard time limit")
    assert db.client.scard(UNANNOUNCED) == 1
    ledger.release()
    eventually(lambda: not db.client.exists(UNANNOUNCED))
    assert ledger.told("poisoned") == ["one"]
