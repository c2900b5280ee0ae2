"""A database with trouble of most kinds, and the addresses of all views of its page."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from celery_superfetch.model.job import claim_number
from celery_superfetch.worker.run_counts import RunCounts
from support.workers.bench import Bench, ended_process, payload

HOUR_S = 3600


def make_troubled(bench: Bench, db: Any) -> dict[str, str]:
    """Fill the database; return the name -> the address of each view, below that of the page."""
    client, now = bench.client, bench.database.server_time()
    bench.dead_owner([payload("lost")], node="celery@web-9", lists=["mail"])
    bench.reaper().reap()
    bench.owner(ended_process(), node="celery@web-8", lists=["mail"])
    living = bench.owner(node="celery@web-1", lists=["mail", "slow"], pool_name="prefork")
    runs, _ = bench.give(living, "slow", [payload("runs", "slow"), payload("reserved", "slow")])
    bench.run_one(runs)
    started = json.dumps([[claim_number(runs.claim_id), now // 1000 - 5 * HOUR_S]])
    client.hset(bench.keys.owner_record(living.owner), "started_jobs", started)
    stopping = bench.owner(node="celery@web-2", lists=["slow"])
    record = {"state": "stopping", "stopping_since": now - HOUR_S * 1000}
    client.hset(bench.keys.owner_record(stopping.owner), mapping=record)
    bench.give(stopping, "slow", [payload("waits for its end", "slow")])
    [dead, _] = bench.killed(payload("dead", "mail"), payload("also dead", "mail"), queue="mail")
    for number in range(3):
        bench.push("bulk mail & more", payload(f"waits-{number}", "bulk mail & more"))
    db.suspect(payload("suspect", "bulk mail & more"), "bulk mail & more")
    [later] = bench.give(living, "slow", [payload("parked", "slow")])
    bench.run(bench.parked.park({later: now + HOUR_S * 1000}))
    bench.paused.pause("slow", "a test")
    client.hset(bench.keys.beats, "shop", json.dumps([now - HOUR_S * 1000, 1.0, "web-3", 7]))
    client.hset("unacked", "tag", "[]")
    counts = RunCounts()
    for error in (None, ValueError()):
        counts.count_run("slow", "shop.note", error, 0.1)
    counts.count(bench.database)
    owner = quote(living.owner, safe="")
    return {
        "overview": "",
        "jobs": "jobs",
        "jobs on probation": "jobs?state=probation",
        "scheduled jobs": "jobs?state=parked",
        "no such state": "jobs?state=struck&longer=never",
        "job": "jobs/runs",
        "no job": "jobs/nowhere",
        "queues": "queues",
        "queue": "queues?name=slow",
        "unserved queue": f"queues?name={quote('bulk mail & more')}",
        "workers": "workers",
        "worker": f"workers/{owner}",
        "no worker": "workers/nobody",
        "audit": "audit",
        "recurring": "recurring",
        "charts": "charts",
        "charts of a day": "charts?hours=24&queue=slow",
        "server": "server",
        "dead": "dead",
        "dead, searched": "dead?task=note",
        "dead job": f"dead/{dead.id}",
        "no page": "nothing",
    }
