"""A pool's child that is forked while other threads of its parent are busy."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_superfetch import PoisonPill
from support.waiting import always, eventually
from support.workers.bench import Bench, payload

BUSY = {"reap_interval": 1, "heartbeat_interval": 0.2}


def a_child_is_lost(worker: Any, app: Celery, bench: Bench, without: str = "") -> None:
    """While jobs of a dead neighbour are taken back, in another thread."""
    worker(
        app="forking",
        concurrency=1,
        args=["-E"],
        options={**BUSY, "strike_limit": 1},
        env={"HOLDS": "1", "WITHOUT": without},
    )
    app.send_task("shop.kill_child", ("pill",))
    app.send_task("forking.publish", ("innocent",))
    bench.dead_owner([payload("orphan", "celery", "shop.add")], "celery", lists=["celery"])


def test_a_new_child_publishes_whatever_its_parent_was_about(worker, app, bench, ledger):
    """A6: receivers of `job_recovered` are told, in another thread, while its child is replaced."""
    a_child_is_lost(worker, app, bench)
    eventually(lambda: "innocent" in ledger.finishes(), message="the new child publishes")


def test_the_control_hangs(worker, app, bench, ledger):
    """A6: without the gate the child inherits a lock that nobody is there to give back."""
    a_child_is_lost(worker, app, bench, without="gate")
    eventually(lambda: "pill" in ledger.starts())
    always(lambda: "innocent" not in ledger.finishes(), during=10)


def test_no_child_hangs(run, worker, app, ledger, db):
    """A6: children are replaced under events, announcements and heartbeats (`--runs=200`)."""
    one = worker(
        app="forking",
        concurrency=1 + (run + 1) % 4,
        args=["-E", "--max-tasks-per-child=4"],
        options={**BUSY, "strike_limit": 1},
    )
    pills, innocents = [], [f"innocent-{n}" for n in range(24)]
    for n, innocent in enumerate(innocents):
        app.send_task("forking.publish", (innocent,))
        if n % 4 == 0:
            told = app.signature("forking.told")
            pills.append(app.send_task("shop.kill_child", (f"pill-{n}",), link_error=told))
    eventually(lambda: set(innocents) <= ledger.finishes().keys(), within=120)
    for pill in pills:
        with pytest.raises(PoisonPill):
            pill.get(timeout=120)
    ids = {pill.id for pill in pills}
    eventually(lambda: {line["job"] for line in ledger.lines("told")} == ids, within=60)
    eventually(lambda: not db.client.exists("superfetch:dead:unannounced"), within=60)
    one.term()
    assert one.wait_exit(60) == 0


HOOKED = {"app": "hooked", "args": ["--max-tasks-per-child=1"], "concurrency": 2}


def forty_jobs(app: Celery) -> list[str]:
    names = [f"job-{number}" for number in range(40)]
    for name in names:
        app.send_task("shop.note", (name,))
    return names


def test_a_pool_forks_under_hooks_that_join_threads_and_log(worker, app, ledger, db):
    """As ddtrace has one: it joins a thread that logs."""
    worker(**HOOKED)
    names = forty_jobs(app)
    eventually(lambda: set(names) <= ledger.finishes().keys(), within=60)
    assert ledger.runs() == dict.fromkeys(names, 1)
    eventually(lambda: not any(db.held().values()), message="all were acked")


def test_the_control_hangs_in_its_second_fork(worker, app, ledger):
    """The locks of all handlers of logs are held meanwhile."""
    worker(**HOOKED, env={"WITHOUT": "free_locks"}, ready=False)
    forty_jobs(app)
    always(lambda: len(ledger.finishes()) < 40, during=10)


POOLS = ["prefork", "threads", "solo", "gevent"]
HOWS = ["returns", "raises", "exits", "is interrupted"]
RECEIVED = ["forks as it is received", "and the next"]


def fork_then_work(worker: Any, app: Celery, pool: str, without: str = "") -> None:
    conf = {"task_routes": {"*": {"queue": pool}}}
    worker(app="hooked", pool=pool, queues=[pool], conf=conf, env={"WITHOUT": without}, ready=False)
    for how in HOWS:
        app.send_task("hooked.fork", (f"{pool} {how}", how), queue=pool)
        app.send_task("shop.note", (f"{pool} after it {how}",), queue=pool)
    for what in RECEIVED:
        app.send_task("shop.note", (f"{pool} {what}",), queue=pool)


def test_a_process_that_a_job_forks_does_not_come_back_into_the_worker(worker, app, ledger, db):
    """Neither by a return nor by an error: the parent goes on, and all runs once."""
    for pool in POOLS:
        fork_then_work(worker, app, pool)
    names = [f"{pool} {what}{how}" for pool in POOLS for how in HOWS for what in ("", "after it ")]
    names += [f"{pool} {what}" for pool in POOLS for what in RECEIVED]
    eventually(lambda: set(names) <= ledger.finishes().keys(), within=60)
    assert ledger.runs() == dict.fromkeys(names, 1)
    eventually(lambda: not any(db.held().values()), message="all were acked")


def errbacks_of_a_child_that_raises(worker: Any, app: Celery, early: bool, without: str) -> None:
    """In each pool: the job succeeds in the parent, and has an errback."""
    for pool in POOLS:
        conf = {"task_routes": {"*": {"queue": pool}}, "task_acks_late": not early}
        worker(app="hooked", pool=pool, queues=[pool], conf=conf, env={"WITHOUT": without})
        errback = app.signature("shop.note", (f"{pool} errback",), immutable=True, queue=pool)
        job = f"{pool} raises"
        fork = app.signature("hooked.fork", (job, "raises"), task_id=job, queue=pool)
        fork.apply_async(link_error=errback)


@pytest.mark.parametrize("early", [False, True], ids=["late ack", "early ack"])
def test_a_child_that_leaves_the_body_publishes_and_stores_nothing(worker, app, ledger, db, early):
    """Its error would be the job's result for a while, and start the job's errbacks."""
    errbacks_of_a_child_that_raises(worker, app, early, without="")
    jobs = [f"{pool} raises" for pool in POOLS]
    for job in jobs:
        assert app.AsyncResult(job).get(timeout=60) == "from the parent"
    eventually(lambda: not any(db.held().values()), message="all were acked")
    for pool in POOLS:  # what the children had published would be before these
        app.send_task("shop.note", (f"{pool} next",), queue=pool)
    eventually(lambda: {f"{pool} next" for pool in POOLS} <= ledger.finishes().keys())
    assert ledger.runs() == dict.fromkeys([*jobs, *(f"{pool} next" for pool in POOLS)], 1)


def test_the_control_publishes_errbacks_of_jobs_that_succeed(worker, app, ledger):
    errbacks_of_a_child_that_raises(worker, app, early=True, without="ends_with_the_body")
    eventually(lambda: any(job.endswith("errback") for job in ledger.finishes()))


def test_the_control_stands_as_its_child_takes_its_sockets_along(worker, app, ledger):
    fork_then_work(worker, app, "solo", without="ends_of_forked_children")
    eventually(lambda: "solo returns" in ledger.finishes())
    always(lambda: "solo after it is interrupted" not in ledger.finishes(), during=8)
