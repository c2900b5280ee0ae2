"""Forged notices: whoever may publish can send the job that announces a dead one, with its id."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_superfetch.app.notice import Notices
from celery_superfetch.model.config import ANNOUNCE_TASK, DEAD_ID_HEADER
from support.waiting import eventually
from support.workers.bench import Bench

ONE_STRIKE = {"strike_limit": 1}
FORGED = 3


def forge(app: Celery, dead_id: str, **progress: bool) -> str:
    """Send a notice of a dead job; return its Celery id."""
    headers = {DEAD_ID_HEADER: dead_id}
    return str(app.send_task(ANNOUNCE_TASK, kwargs=progress, headers=headers).id)


def dead_with_errback(app: Celery, db: Any, ledger: Any) -> str:
    """Have a job killed whose errback has run; return its id in the dead set."""
    errback = app.signature("told.old")
    sent = app.signature("told.pill", ("pill",)).apply_async(link_error=errback)
    eventually(lambda: ledger.told("old errback") == [sent.id])
    eventually(lambda: not db.keys("superfetch:dead:unannounced") and db.settled())
    [dead] = db.client.hkeys("superfetch:dead:jobs")
    return str(dead.decode())


def behind(app: Celery, ledger: Any) -> None:
    """Wait until all that was sent before has run, and what that has sent: there is one process."""
    for name in ("behind", "behind that"):
        app.send_task("shop.note", (name,))
        eventually(lambda name=name: ledger.runs().get(name) == 1)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_forged_notice_runs_no_errback_again(worker, app, db, ledger, pool):
    settings = {"app": "told", "pool": pool, "concurrency": 1, "options": ONE_STRIKE}
    if pool == "threads":  # a pill ends such a worker
        first = worker(**{**settings, "pool": "prefork"})
        dead_id = dead_with_errback(app, db, ledger)
        first.stop()
        one = worker(**settings)
    else:
        one = worker(**settings)
        dead_id = dead_with_errback(app, db, ledger)
    for _ in range(FORGED):
        forge(app, dead_id)
    forge(app, "no such\nAll is well")
    behind(app, ledger)
    eventually(lambda: one.log().count("find the program that sends them") == FORGED)
    assert len(ledger.told("old errback")) == 1
    assert len(ledger.told("job_killed")) == len(ledger.told("poisoned")) == 1
    assert "\nAll is well" not in one.log()


def test_the_control_otherwise_each_runs_them_again(worker, app, db, ledger):
    settings = {"app": "told", "concurrency": 1, "options": ONE_STRIKE}
    worker(env={"WITHOUT": "awaited_notices"}, **settings)
    dead_id = dead_with_errback(app, db, ledger)
    for _ in range(FORGED):
        forge(app, dead_id)
    behind(app, ledger)
    assert len(ledger.told("old errback")) == 1 + FORGED


@pytest.mark.parametrize("without", ["", "ids_of_notices"], ids=["with", "control"])
def test_a_forged_notice_silences_no_other(worker, app, bench, db, ledger, without):
    """Two come before the real one; one of them says that all but the result was done. How far an
    announcement came is in the dead job's record, where no message has a say."""
    sent = app.signature("told.pill", ("pill",)).apply_async(link_error=app.signature("told.old"))
    [raw] = bench.queue("celery")
    bench.client.delete("celery")
    [claimed] = bench.claimed(bench.owner(lists=["celery"]), raw, queue="celery")
    call = bench.dead_set.kill_call(
        bench.recovery(claimed.job), marked=False, notice=Notices(app)("celery")
    )
    _, dead_id, _ = bench.run(call)
    done = {"signalled": True, "careful": True, "called": True}
    forged = [forge(app, dead_id.decode(), **progress) for progress in (done, {})]
    bench.client.lmove("celery", "celery", "RIGHT", "LEFT")
    one = worker(app="told", concurrency=1, env={"WITHOUT": without})
    behind(app, ledger)
    assert sent.state == "FAILURE"
    eventually(lambda: not bench.client.exists(bench.keys.unannounced))
    eventually(lambda: ledger.told("old errback") == ledger.told("job_killed") == [sent.id])
    assert (f"has no effect (task_id={forged[1]}" in one.log()) == (not without)


def test_no_reader_is_shown_the_id_of_a_notice(app, bench: Bench, cli):
    """A producer that sees the page, or an export of the dead set, could forge one with it."""
    [job] = bench.give(
        "h|1|n",
        "celery",
        [
            b'{"properties": {"delivery_tag": 1, "delivery_info": '
            b'{"routing_key": "celery"}}, "headers": {"task": "a"}}'
        ],
    )
    notice = Notices(app)("celery")
    bench.run(bench.dead_set.kill_call(bench.recovery(job), marked=False, notice=notice))
    [dead] = bench.dead_set.find()
    assert len(dead.notice) == 36
    assert dead.notice not in cli("dead", "list", "--json").out
    assert dead.notice not in cli("dead", "show", dead.id, "--json").out
