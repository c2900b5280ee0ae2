"""`superfetch queue pause` and `resume`, and where a pause is shown."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from support.waiting import eventually
from support.workers.bench import elsewhere, payload

QUICK = {"heartbeat_interval": 0.5, "reap_interval": 1}


def paused_for(client: Any, queue: str, seconds: float) -> None:
    """A pause that began so long ago."""
    at = int(time.time() - seconds) * 1000
    client.hset("superfetch:paused", queue, json.dumps({"at": at, "by": "ann@web1"}))


def test_a_pause_is_said_with_what_it_concerns_and_shown_everywhere(worker, cli, client):
    worker(queues=["celery", "mail"], concurrency=1, options=QUICK)
    eventually(lambda: client.hkeys("superfetch:last_pass"), message="a pass was made")
    said = cli("queue", "pause", "mail", options=QUICK).out
    assert "Paused queue mail: 1 worker and 0 waiting jobs." in said
    assert "from its next heartbeat on, within 0.5 s. Running jobs continue." in said
    assert "superfetch queue resume mail`" in said
    client.lpush("mail", payload(1), payload(2))

    again = cli("queue", "pause", "mail", options=QUICK).out
    assert re.search(r"Queue mail is paused already for [\d.]+ s by \S+@\S+: 1 worker and 2", again)

    shown = cli("status", options=QUICK).out
    assert re.search(
        r"Note: queue mail has been paused for [\d.]+ s by \S+@\S+, 2 jobs wait", shown
    )
    assert re.search(r"^mail .* for [\d.]+ s$", shown, re.M)
    document = cli("status", "--json", options=QUICK).json()
    [row] = [row for row in document["queues"] if row["list"] == "mail"]
    assert row["paused"].keys() == {"at", "age", "by"}
    assert row["consumers"] == 1
    assert "no-consumer" not in {finding["code"] for finding in document["findings"]}
    metrics = cli("metrics", "--once", options=QUICK).out
    assert 'superfetch_queue_paused{queue="mail"} 1.0' in metrics
    assert 'superfetch_queue_paused{queue="celery"} 0.0' in metrics
    assert 'superfetch_findings{code="queue-paused",level="note"} 1.0' in metrics

    paused_for(client, "mail", 7300)
    assert "queue mail has been paused for 2 h" in cli("check", code=1, options=QUICK).out
    assert "Warning [queue-paused]: queue mail has been paused" in cli("doctor", code=1).out

    said = cli("queue", "resume", "mail", "--json", options=QUICK).json()
    assert said["workers"] == 1
    assert said["by"] == "ann@web1"
    eventually(lambda: not client.exists("mail"), message="its worker claims again")
    assert "paused" not in cli("status", options=QUICK).out


def test_an_unknown_name_is_refused_unless_it_is_meant(cli, client):
    refused = cli("queue", "pause", "mial", code=1)
    assert "queue 'mial' is unknown" in refused.err
    assert "Known queues: celery" in refused.err
    assert not client.exists("superfetch:paused")
    assert "Paused queue mial" in cli("queue", "pause", "mial", "--force").out
    assert "queue mial has been paused" in cli("status").out
    refused = cli("queue", "resume", "mail", code=1)
    assert "Queue 'mail' is not paused. Paused queues: mial." in refused.err
    assert "Resumed queue mial" in cli("queue", "resume", "mial").out


def test_hostile_names_forge_no_line(cli, client):
    for name in ("a\nAll is well", "\x1b[2J", "x" * 1001, "celery\x06\x163", ""):
        refused = cli("queue", "pause", name, "--force", code=None)
        text = refused.out + refused.err
        assert "\x1b" not in text
        assert "\nAll is well" not in text
    assert {name.decode() for name in client.hkeys("superfetch:paused")} == {
        "a\nAll is well",
        "\x1b[2J",
    }
    shown = cli("status").out
    assert "\x1b[2J" not in shown
    assert "\nAll is well" not in shown


def test_a_rollback_names_the_queues_that_stock_workers_will_not_leave_alone(cli):
    cli("queue", "pause", "celery")
    said = cli("rollback", "--dry-run").out
    assert "Queue celery is paused: stock workers do not know pauses, and run its jobs." in said
    assert cli("rollback", "--dry-run", "--json").json()["paused"] == ["celery"]


def test_one_queue_is_shown_with_its_jobs_and_its_workers(bench, cli, client):
    lists = {"lists": ["mail", "mail\x06\x163"]}
    bench.owner(node="w1@host", **lists)
    bench.owner(elsewhere(), node="w2@host", state="stopping", **lists)
    bench.push("mail", *(payload(f"job-{n}") for n in range(60)))
    bench.push("mail\x06\x163", payload("late"))
    paused_for(client, "mail", 7300)
    shown = cli("queue", "show", "mail", "--wide").out
    assert "Queue mail: 61 jobs waiting, 1 worker running that consumes it" in shown
    assert "Paused for 2 h by ann@web1: no worker claims its jobs until `queue resume`" in shown
    assert re.search(r"^w2@host +stopping .*it is stopping", shown, re.M)
    assert re.search(r"^shop\.note +job-0 ", shown, re.M)
    assert "and 11 more" in shown
    document = cli("queue", "show", "mail", "--json").json()
    assert len(document["jobs"]) == 50
    assert document["jobs_left_out"] == 11
    assert [row["serves"] for row in document["workers"]] == [True, False]
    assert [row["priority"] for row in document["lists"]] == [0, 3]
    assert document["paused"]["by"] == "ann@web1"
    refused = cli("queue", "show", "mial", code=1)
    assert "Queue 'mial' is unknown: no setting, worker or job names it." in refused.err
    assert "0 jobs waiting" in cli("queue", "show", "celery").out
