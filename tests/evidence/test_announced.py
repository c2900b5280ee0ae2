"""Whoever waits for a killed job, or watches over it, hears of its death."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import ChordError

from celery_superfetch import PoisonPill
from support.waiting import eventually

ONE_STRIKE = {"strike_limit": 1, "reap_interval": 1}


@pytest.fixture
def told(app: Celery) -> SimpleNamespace:
    """Signatures of the tasks of `support.apps.told`."""
    return SimpleNamespace(
        **{
            name: lambda *args, name=name, **kwargs: app.signature(f"told.{name}", args, kwargs)
            for name in ("pill", "quiet", "fail", "quiet_fail", "note", "old", "new")
        }
    )


@pytest.fixture
def failures(app: Celery) -> Iterator[list[dict[str, Any]]]:
    """What a monitor hears of failed jobs meanwhile."""
    heard: list[dict[str, Any]] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"task-failed": heard.append})
        thread = threading.Thread(target=receiver.capture, kwargs={"limit": None, "wakeup": False})
        thread.start()
        try:
            yield heard
        finally:
            receiver.should_stop = True
            thread.join()


def test_everybody_hears_of_a_job_that_killed_its_pool_child(
    worker, app, told, ledger, db, failures
):
    conf = {"result_extended": True}
    one = worker(app="told", concurrency=2, options=ONE_STRIKE, args=["-E"], conf=conf)
    errbacks = [told.old(), told.new(), told.old().set(queue="elsewhere"), app.signature("no.such")]
    pill = told.pill("pill").apply_async(link_error=errbacks)
    quiet = told.quiet("quiet").apply_async(ignore_result=True, link_error=told.old())
    ignored = told.pill("careless").apply_async(ignore_result=True, link_error=told.old())
    line = chain(told.pill("in a chain"), told.note(who="never")).apply_async()
    both = group(told.pill("in a group"), told.note("", who="beside")).apply_async()
    body = told.note(who="never")
    body.link_error(told.new())
    choir = chord([told.pill("in a chord"), told.note("", who="with it")], body)()

    with pytest.raises(
        PoisonPill, match=r"moved to the dead set after 1 strike and 1 recovery: pool process lost"
    ) as raised:
        pill.get(timeout=60)
    exc = raised.value
    assert (exc.strikes, exc.recoveries, exc.dead_id) == (1, 1, exc.dead_id)
    assert exc.reason.startswith("pool process lost")
    (owner,), (host,), (time,) = exc.owners, exc.hosts, exc.times
    assert owner.startswith(f"{host}|{one.pid}|")
    assert time is not None
    for result in (line, both, choir):
        with pytest.raises((PoisonPill, ChordError)):
            result.get(timeout=60)
    eventually(lambda: choir.state == "FAILURE", message="the body's own result, too")
    assert both.results[1].get(timeout=30) == "beside"

    eventually(lambda: len(ledger.told("old errback")) == 3)
    assert set(ledger.told("old errback")) == {pill.id, quiet.id, ignored.id}
    assert db.length("elsewhere") == 1, "sent where it belongs"
    assert ledger.told("new errback: PoisonPill") == [pill.id]
    assert ledger.told("new errback: ChordError") == [choir.id]
    jobs = ["pill", "quiet", "careless", "in a chain", "in a group", "in a chord"]
    eventually(lambda: len(ledger.told("task_failure")) == len(jobs))
    for what in ("poisoned", "task_failure"):
        assert sorted(ledger.told(what)) == sorted(jobs), what
    assert "a hook that fails" in one.log()
    assert ledger.told("poisoned, out of context") == []
    killed = {pill.id, quiet.id, ignored.id, line.parent.id, both.results[0].id}
    assert killed < set(ledger.told("job_killed"))
    # And the errback of a task that nobody knows: it is in the dead set.
    eventually(lambda: len(ledger.told("job_killed")) == len(jobs) + 1)
    assert [record["task"] for record in db.dead()].count("no.such") == 1
    assert "never" not in ledger.starts(), "neither the chain nor the chord went on"
    assert quiet.state == "PENDING", "ignored results are not stored"
    assert ledger.told("stored FAILURE").count(pill.id) == 1
    assert pill.worker == f"{one.name}@{host}", "E7: where it ran, as Celery's own results say it"
    eventually(lambda: not db.client.exists("superfetch:dead:unannounced"))

    (event,) = eventually(lambda: [e for e in failures if e["uuid"] == pill.id])
    assert event["name"] == "told.pill"
    assert event["hostname"].startswith(f"{one.name}@")
    assert "PoisonPill" in event["exception"]


def test_a_dead_lettered_job_has_a_result_where_celery_stores_a_failure(worker, told, app, db):
    """The task and the message may disagree on whether the result is ignored, and the versions of
    Celery differ. So each pill has a job of the same settings beside it that fails as any other."""
    worker(app="told", concurrency=2, options=ONE_STRIKE)
    messages: dict[str, dict[str, Any]] = {
        "says nothing": {},
        "ignored": {"ignore_result": True},
        "wanted": {"ignore_result": False},
    }
    pairs = {
        (pill, says): (
            getattr(told, fail)(says).apply_async(**message),
            getattr(told, pill)(says).apply_async(**message),
        )
        for pill, fail in (("pill", "fail"), ("quiet", "quiet_fail"))
        for says, message in messages.items()
    }
    eventually(lambda: len(db.dead()) == len(pairs), 60)
    eventually(lambda: not db.client.exists("superfetch:dead:unannounced"), 60)
    eventually(lambda: not db.waiting() and db.settled())
    stored = {pair: (failed.state, killed.state) for pair, (failed, killed) in pairs.items()}
    assert {pair: failed for pair, (failed, _) in stored.items()} == {
        pair: killed for pair, (_, killed) in stored.items()
    }
    assert stored["pill", "wanted"] == ("FAILURE", "FAILURE")
    assert stored["quiet", "ignored"] == ("PENDING", "PENDING")


def test_without_a_result_backend_the_rest_is_told_all_the_same(worker, cli, make_app, ledger, db):
    """A worker that dies whole: its successor tells. Two strikes: the first is a recovery."""
    app = make_app(superfetch=False, result_url="")
    settings = {"app": "told", "pool": "solo", "options": {**ONE_STRIKE, "strike_limit": 2}}
    old = app.signature("told.old", app=app)
    app.signature("told.pill", args=("pill",), app=app).apply_async(link_error=old)
    worker(**settings, result_url="", ready=False).wait_exit()
    cli("reap", process=True, app="told", options=settings["options"], result_url="")
    worker(**settings, result_url="", ready=False).wait_exit()
    heir = worker(**settings, result_url="")
    eventually(lambda: len(ledger.told("old errback")) == 1)
    eventually(lambda: not db.client.exists("superfetch:dead:unannounced"))
    for what in ("poisoned", "task_failure"):
        assert ledger.told(what) == ["pill"]
    assert len(ledger.told("job_killed")) == 1
    assert "Traceback" not in heir.log()


def test_what_runs_beside_a_notice_that_kills_is_not_touched_by_it(worker, told, shop, ledger, db):
    worker(app="told", concurrency=2, options=ONE_STRIKE, env={"HALF_WAY": "always"})
    shop.hold.delay("innocent", 600.0)
    eventually(lambda: ledger.starts().get("innocent"))
    told.pill("pill").apply_async()
    unannounced = "superfetch:dead:unannounced"
    eventually(lambda: db.dead() and not db.client.exists(unannounced), within=60)
    assert [record["task"] for record in db.dead()] == ["told.pill"]
    ledger.release()
    eventually(lambda: ledger.finishes().get("innocent") and not db.counters())
    assert ledger.runs()["innocent"] == 1


def test_a_job_whose_id_has_the_success_of_an_older_job_has_its_errbacks(
    worker, told, ledger, client
):
    """Senders use task ids again. What is stored stays: Celery overwrites no success."""
    worker(app="told", concurrency=1, options=ONE_STRIKE)
    name = {"task_id": "report-7"}
    assert told.note("", who="first").apply_async(**name).get(timeout=60) == "first"
    stored = client.get("celery-task-meta-report-7")
    meta = json.loads(stored)
    meta["date_done"] = "2026-01-02T03:04:05+00:00"  # last week's
    client.set("celery-task-meta-report-7", json.dumps(meta))
    told.pill("second").apply_async(**name, link_error=told.old())
    eventually(lambda: ledger.told("old errback") == ["report-7"], 60)
    # The control: what this very job has stored was its success, and only its ack was lost.
    client.set("celery-task-meta-report-8", stored.replace(b"report-7", b"report-8"))
    meta = json.loads(client.get("celery-task-meta-report-8"))
    meta["date_done"] = "2126-01-02T03:04:05+00:00"
    client.set("celery-task-meta-report-8", json.dumps(meta))
    told.pill("third").apply_async(task_id="report-8", link_error=told.old())
    told.pill("fourth").apply_async(task_id="report-9", link_error=told.old())
    eventually(lambda: "report-9" in ledger.told("old errback"), 60)
    eventually(lambda: not client.exists("superfetch:dead:unannounced"))
    assert sorted(ledger.told("old errback")) == ["report-7", "report-9"]
