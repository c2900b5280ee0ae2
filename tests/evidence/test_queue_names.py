"""A queue whose name has the separator in it is a queue like any other: its jobs come to an end,
their callers are informed, and commands know it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_superfetch import PoisonPill
from celery_superfetch.app.notice import Notices
from support.waiting import eventually
from support.workers.odd import message, payload

SEPARATORS = {"colon": ":", "default": "\x06\x16"}
QUICK = {"reap_interval": 1, "strike_limit": 2}


@pytest.fixture(params=SEPARATORS)
def sep(request: pytest.FixtureRequest) -> str:
    return SEPARATORS[request.param]


def test_a_poison_pill_ends_and_its_caller_is_informed(sep, worker, make_app, bench, ledger):
    queue, options = f"emails{sep}high", {**QUICK, "sep": sep}
    app = make_app(options=options)
    pill = app.signature("shop.kill_child", ("pill",)).apply_async(queue=queue, priority=3)
    one = worker(options=options, concurrency=1, queues=[queue])
    with pytest.raises(PoisonPill):
        pill.get(timeout=40)
    assert ledger.runs()["pill"] == 2
    app.signature("shop.note", ("next",)).apply_async(queue=queue)
    eventually(lambda: ledger.runs()["next"])
    assert one.alive()
    [job] = bench.dead_set.find()
    assert job.queue_list == f"{queue}{sep}3"
    eventually(lambda: not bench.client.hlen(bench.keys.private(one_owner(bench))))


def one_owner(bench: Any) -> str:
    [owner] = bench.registry.owners()
    return str(owner)


def test_a_malformed_message_ends_no_worker(sep, worker, bench, client, ledger):
    queue = f"odd{sep}high"
    one = worker(
        app="odd", pool="threads", concurrency=1, options={**QUICK, "sep": sep}, queues=[queue]
    )
    client.lpush(queue, payload(message("odd", headers={"timelimit": "bad"})))
    client.lpush(queue, payload(message("next")))
    eventually(lambda: "next" in ledger.starts())
    eventually(lambda: len(bench.dead_set) == 1)
    assert one.alive()


def test_commands_know_it_by_its_name(make_app, cli, worker):
    queue, options = "emails:high", {**QUICK, "sep": ":"}
    app = make_app(options=options)
    worker(options=options, concurrency=1, queues=["emails", queue])
    assert f"Paused queue {queue}" in cli("queue", "pause", queue, options=options).out
    app.signature("shop.note", ("later",)).apply_async(queue=queue, priority=6)
    found = json.loads(cli("status", "--json", code=None, options=options).out)
    rows = {row["list"]: row for row in found["queues"]}
    assert (rows["emails:high:6"]["queue"], rows["emails:high:6"]["priority"]) == (queue, 6)
    assert (rows["emails:high"]["queue"], rows["emails"]["queue"]) == (queue, "emails")
    assert rows["emails:high:6"]["length"] == 1, "its queue is paused"
    cli("queue", "resume", queue, options=options)


@pytest.mark.parametrize("queue", ["emails:high", "emails:3", ":", "", "\ud800", "e" * 9999])
def test_a_notice_never_raises(queue, make_app, caplog):
    """It is made while a job is settled: an error here would keep the job for ever."""
    app = make_app(options={"sep": ":"})
    assert Notices(app)(queue)
    app.conf.task_serializer, app.conf.accept_content = "none of these", ["none of these"]
    assert Notices(app)(queue) == b""
    assert "No failure notification could be made" in caplog.text
