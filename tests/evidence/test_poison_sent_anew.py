"""Celery 5.7's `task_retry_on_worker_lost` beside the guard: a new message, and the old strikes."""

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
from support.waiting import always, eventually

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


def test_every_loop_ends(worker, shop, send, ledger, db):
    one = worker(app="features", concurrency=4, conf=SENT_ANEW)
    ids = {
        "for ever": send("dies", "for ever", "child"),
        "once more": send("dies_once_more", "once more", "child"),
        "early": send("dies_early", "early", "child"),
        "unsent": send("dies_unsent", "unsent", "child"),
        "hard": send("hard_again", "hard"),
        "settles": send("dies", "settles", "child", "retry", "return"),
    }
    ends = {job: outcome(shop, task_id) for job, task_id in ids.items() if job != "hard"}
    assert ends == {
        "for ever": "PoisonPill",
        "once more": "WorkerLostError",  # Celery's own end, by max_retries
        "early": "WorkerLostError",  # acked before it ran: there is nothing to put aside
        "unsent": "PoisonPill",
        "settles": "SUCCESS",
    }
    assert runs(ledger, "for ever") == ["0", "1", "2"]
    assert runs(ledger, "once more") == ["0", "1"]
    assert runs(ledger, "early") == ["0", "1", "2"]
    assert runs(ledger, "unsent") == ["0", "1", "2"], "each loss counts once"
    assert runs(ledger, "settles") == ["0", "1", "0"], "its own retry is a clean record"
    eventually(lambda: len(db.dead()) == 3)
    assert ledger.runs()["hard"] == STRIKES
    dead = {record["task_id"]: record for record in db.dead()}
    assert set(dead) == {ids["for ever"], ids["unsent"], ids["hard"]}
    for record in dead.values():
        assert record["strikes"] == len(record["history"]) == STRIKES
    eventually(lambda: not db.counters() and not db.private_lists() and not db.length())
    assert one.alive()


def test_the_strikes_go_on_when_the_next_run_takes_the_worker_down(worker, shop, send, ledger, db):
    task_id = send("dies", "pill", "child", "owner")
    for _ in range(2):
        worker(app="features", concurrency=1, conf=SENT_ANEW, ready=False).wait_exit()
    worker(app="features", concurrency=1, conf=SENT_ANEW)
    assert outcome(shop, task_id) == "PoisonPill"
    assert runs(ledger, "pill") == ["0", "1", "2"]
    [record] = db.dead()
    assert record["strikes"] == len(record["history"]) == STRIKES
    reasons = [entry["reason"] for entry in record["history"]]
    assert "pool process lost" in reasons[0]
    assert "pool process lost" not in "".join(reasons[1:])


def test_a_child_that_is_lost_at_a_deploy_costs_neither_strike_nor_retry(worker, shop, ledger, db):
    one = worker(concurrency=1, conf=SENT_ANEW)
    shop.run("held")
    one.term_all()
    one.wait_exit()
    [raw] = db.contents("celery")
    headers = json.loads(raw)["headers"]
    assert headers["retries"] == 0
    assert "superfetch_strikes" not in headers
    assert not db.private_lists()
    [counters] = db.counters()
    assert (counters["recoveries"], counters["strikes"]) == ("1", "0")


def test_what_has_handed_itself_on_is_not_sent_anew(worker, shop, send, ledger):
    """In other bytes nobody would know that it has."""
    worker(app="features", concurrency=1, conf=SENT_ANEW, env={"HAPPENS": "late_deaths"})
    assert outcome(shop, send("dies", "twice", "retry", "return")) == "SUCCESS"
    always(lambda: ledger.runs() == {"twice": 2}, during=1.0)


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


def test_without_the_guard_what_is_sent_anew_loops(worker, send, ledger, db):
    """The control: Celery counts retries, and `max_retries=None` says that it must not."""
    worker(app="features", superfetch=False, concurrency=1, conf=SENT_ANEW)
    send("dies", "for ever", "child")
    eventually(lambda: ledger.runs().get("for ever", 0) > STRIKES, 90)
