"""Jobs on a queue that only senders know: no setting names it, and no worker has consumed it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery

from support.waiting import always, eventually
from support.workers.inbox import stock

SOON = {"reap_interval": 0.5}


def findings(cli: Any) -> dict[str, str]:
    """`status --json`: code -> level and text."""
    document = json.loads(cli("status", "--json", options=SOON).out)
    return {row["code"]: f"{row['level']}: {row['text']}" for row in document["findings"]}


@pytest.fixture
def sent(worker, app: Celery) -> None:
    worker(queues=["celery"], options=SOON)
    for number in range(3):
        app.send_task("shop.note", (f"report {number}",), queue="reports")


def test_status_shows_it_though_no_worker_has_consumed_it(sent, cli):
    found = eventually(lambda: findings(cli).get("no-consumer"), message="a pass notes the queue")
    assert found.startswith("critical: queue reports: 3 jobs")
    assert "no worker with install() has consumed it" in found
    assert "-Q reports" in cli("status", options=SOON).out
    assert cli("check", options=SOON, code=2).out


def test_it_is_a_note_while_a_stock_worker_may_consume_it(sent, cli, url):
    with stock(url, "other") as inbox:
        inbox.turn()
        found = eventually(lambda: findings(cli).get("unknown-queue"))
    assert found.startswith("note: queue reports: 3 jobs")


def test_it_is_forgotten_when_a_worker_has_consumed_it(sent, cli, worker, ledger):
    eventually(lambda: "no-consumer" in findings(cli))
    worker(queues=["reports"], options=SOON)
    eventually(lambda: len(ledger.finishes()) == 3)
    eventually(lambda: "no-consumer" not in findings(cli))


def test_the_control_calls_all_well(worker, app, cli):
    """Without a look at the bindings, nothing names the queue."""
    worker(queues=["celery"], options=SOON, env={"WITHOUT": "looks_at_bindings"})
    app.send_task("shop.note", ("report",), queue="reports")
    always(lambda: "no-consumer" not in findings(cli), during=6)


def test_a_queue_whose_workers_are_busy_with_long_jobs_does_not_move(worker, app, cli, client):
    worker(queues=["celery"], concurrency=1, options=SOON)
    for number in range(30):  # more than it reserves
        app.send_task("shop.hold", (f"long {number}",))
    key = "superfetch:oldest"
    note = eventually(lambda: client.hget(key, "celery"), message="a pass has seen the oldest")
    assert "queue-stalled" not in findings(cli)
    digest, at = note.decode().split()
    client.hset(key, "celery", f"{digest} {int(at) - 400_000}")  # six minutes later
    assert "queue celery does not move" in findings(cli)["queue-stalled"]
