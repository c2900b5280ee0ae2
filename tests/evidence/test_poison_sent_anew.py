"""Celery 5.7's `task_retry_on_worker_lost`: workers switch it off, and the guard ends the job."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import celery
import pytest
from celery.states import READY_STATES

from support.servers.ledger import Ledger
from support.waiting import eventually

pytestmark = pytest.mark.skipif(
    celery.VERSION < (5, 7), reason="task_retry_on_worker_lost came with Celery 5.7"
)

STRIKES = 3
SENT_ANEW = {"task_retry_on_worker_lost": True}
Send = Callable[..., str]


@pytest.fixture
def send(shop: SimpleNamespace) -> Send:
    """`send("dies", "a", "child")`: its task id."""

    def publish(task: str, job: str, *ways: str) -> str:
        signature = shop.note.app.signature(f"features.{task}", args=(job, *ways))
        return str(signature.apply_async().id)

    return publish


def runs(ledger: Ledger, job: str) -> list[str]:
    """The strikes that each run of a job saw."""
    told = [line["event"] for line in ledger.lines() if line["job"] == job]
    assert told.count("started") == len(told) / 2
    return [event.removeprefix("saw ") for event in told if event.startswith("saw ")]


def outcome(shop: SimpleNamespace, task_id: str) -> str:
    """The state of a job that is over, or the name of its error."""

    def over() -> Any:
        meta = shop.note.app.backend.get_task_meta(task_id)
        return meta if meta["status"] in READY_STATES else None

    meta = eventually(over, 60, message="the caller is told")
    return type(meta["result"]).__name__ if meta["status"] == "FAILURE" else str(meta["status"])


@pytest.mark.parametrize("how", ["setting", "task"])
def test_it_is_switched_off_with_one_warning_and_the_job_is_recovered_with_strikes(
    worker, send, shop, ledger, db, how
):
    on_task = {"task_annotations": {"features.dies": {"retry_on_worker_lost": True}}}
    conf = SENT_ANEW if how == "setting" else on_task
    one = worker(app="features", concurrency=4, conf=conf)
    pill = send("dies", "for ever", "child")
    settles = send("dies", "settles", "child", "return")
    ends = [outcome(shop, task_id) for task_id in (pill, settles)]
    assert ends == ["PoisonPill", "SUCCESS"]
    assert runs(ledger, "for ever") == ["0", "1", "2"]
    assert runs(ledger, "settles") == ["0", "1"]
    [record] = db.dead()
    assert record["task_id"] == pill
    assert record["strikes"] == len(record["history"]) == STRIKES
    assert json.loads(record["payload"])["headers"]["retries"] == 0, "the message as it was sent"
    assert one.log().count("task_retry_on_worker_lost was switched off") == 1
    eventually(lambda: not db.counters() and not db.private_lists() and not db.length())
    assert one.alive()


def test_a_job_that_is_acked_before_it_runs_fails_and_a_warning_says_so(
    worker, send, shop, ledger, db
):
    one = worker(app="features", concurrency=1, conf=SENT_ANEW)
    assert outcome(shop, send("dies_early", "early", "child")) == "WorkerLostError"
    assert runs(ledger, "early") == ["0"]
    warning = "Jobs of these tasks fail if their pool process dies, since they are acked before"
    assert one.log().count(warning) == 1
    assert "features.dies_early" in one.log()
    assert not db.dead()


def test_without_the_setting_no_worker_warns(worker):
    assert "task_retry_on_worker_lost" not in worker(app="features").log()


def test_who_has_handed_himself_on_before_his_last_strike_is_not_told_of(worker, shop, ledger, db):
    """His retry goes on by the same id: his caller was told FAILURE, and SUCCESS after that."""
    one = worker(app="features", concurrency=1, env={"HAPPENS": "late_deaths"})
    ways = ("child", "child", "retry", "return")
    signature = shop.note.app.signature("features.dies", args=("twice", *ways))
    sent = signature.apply_async(link_error=shop.note.si("errback"))
    eventually(lambda: db.dead(), message="its third strike")
    told = re.compile(r"Task celery_superfetch.announce\[.*\] succeeded")
    eventually(lambda: told.search(one.log()), message="its notice has run")
    assert outcome(shop, sent.id) == "SUCCESS"
    assert ledger.runs() == {"twice": 4}


def test_a_job_that_celery_retries_without_the_guard_has_no_end(worker, send, ledger, db):
    """The control: Celery counts retries, and `max_retries=None` sets them no limit."""
    worker(app="features", superfetch=False, concurrency=1, conf=SENT_ANEW)
    send("dies", "for ever", "child")
    eventually(lambda: ledger.runs().get("for ever", 0) > STRIKES, 90)
