"""The charts of real workers: each run, recovery and dead-lettered job in its minute, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from support.waiting import eventually
from support.workers.cli import Result

QUICK = {"heartbeat_interval": 1, "owner_ttl": 5, "reap_interval": 1}
BOTH = ["celery", "slow"]

Charts = Callable[..., dict[str, Any]]


def charts_by(cli: Callable[..., Result]) -> Charts:
    return lambda *args: cli("charts", "--json", *args).json()


def test_every_event_is_counted_once_in_its_minute_and_by_its_queue(
    worker, shop, ledger, cli, client: redis.Redis
):
    charts, began = charts_by(cli), int(client.time()[0]) // 60
    victim = worker(concurrency=2, queues=BOTH, options=QUICK)
    for number in range(100):
        shop.note.delay(f"celery-{number}")
        task = shop.fail if number < 40 else shop.note
        task.apply_async((f"slow-{number}",), queue="slow")

    def ended() -> dict[str, int] | None:
        sums = charts()["sums"]
        return sums if sums["succeeded"] + sums["failed"] >= 200 else None

    assert eventually(ended, 60)["failed"] == 40

    shop.run("held")
    worker(concurrency=2, queues=BOTH, options=QUICK)
    victim.die()
    eventually(lambda: ledger.runs()["held"] == 2, message="it runs again")
    shop.kill_child.apply_async(("pill",), queue="slow")
    eventually(lambda: charts()["sums"]["killed"], 60, message="it is in the dead set")
    ledger.release()
    eventually(lambda: charts()["sums"]["succeeded"] == 161, 30, message="the last run")

    document, last = charts(), int(client.time()[0]) // 60
    by_queue = {row["queue"]: row["sums"] for row in document["queues"]}
    # The pill was recovered after its first and its second strike.
    expected = {
        "celery": {"succeeded": 101, "failed": 0, "recovered": 1, "killed": 0},
        "slow": {"succeeded": 60, "failed": 40, "recovered": 2, "killed": 1},
    }
    for queue, sums in expected.items():
        assert {event: by_queue[queue][event] for event in sums} == sums
        assert charts("--queue", queue)["sums"] == by_queue[queue]
    for event in ("succeeded", "failed", "recovered", "killed"):
        total = sum(sums[event] for sums in expected.values())
        assert document["sums"][event] == total
        counts = document["series"][event]
        assert sum(counts[-(last - began + 1) :]) == total, "in none of the minutes before"
        assert charts("--hours", "24")["sums"][event] == total
    assert [row["recovered"] for row in document["recoveries"]] == [1]
    for key in ("superfetch:minutes", "superfetch:minutes:rows", "superfetch:runs:reports"):
        assert 0 < client.ttl(key) <= 86_400 + 600

    text = cli("charts").out
    assert "Finished" in text
    assert "Dead-lettered" in text
    assert [line.split()[:2] for line in text.splitlines() if line.startswith("Failed")] == [
        ["Failed", "40"]
    ]


def test_a_pass_samples_the_jobs_that_wait(worker, shop, cli, client: redis.Redis):
    charts = charts_by(cli)
    for number in range(30):
        shop.note.apply_async((f"n{number}",), queue="celery" if number < 20 else "slow")
    document = charts()
    assert document["sums"]["waiting"] == 0, "no pass has looked"
    assert document["series"]["waiting"] == [None] * 61
    assert cli("reap").code == 0
    assert charts()["sums"]["waiting"] == 30, "also on the queue that only senders know"
    worker(queues=BOTH, options=QUICK)
    eventually(lambda: charts()["sums"]["succeeded"] == 30)
    assert charts("--queue", "celery")["sums"]["waiting"] == 20


def test_a_killed_worker_loses_the_runs_since_its_last_heartbeat_and_a_stopped_one_none(
    worker, shop, cli
):
    """As the page and the docs say."""
    rare = {"heartbeat_interval": 60, "owner_ttl": 120}
    charts = charts_by(cli)
    killed = worker(options=rare)
    for number in range(5):
        shop.ran(f"lost-{number}")
    killed.die()
    before = charts()["sums"]["succeeded"]
    assert before in (0, 1), "a run that ended before the first heartbeat"
    stopped = worker(options=rare)
    for number in range(5):
        shop.ran(f"counted-{number}")
    stopped.stop()
    assert charts()["sums"]["succeeded"] == before + 5
