"""A database with trouble of most kinds, and the addresses of all views of its page."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from celery_superfetch.model.job import claim_number
from celery_superfetch.store.audit_list import AuditList
from celery_superfetch.store.bulk_ids import BulkIds
from celery_superfetch.worker.run_counts import RunCounts
from support.workers.bench import Bench, ended_process, payload

HOUR_S = 3600


def change(bench: Bench, state: str) -> str:
    """Record a change of many jobs that has come to its half; return its id."""
    audit = AuditList(bench.database)
    entry = audit.begin("ann", "dead retry", "task note", 200).entry
    row = json.loads(replace(entry, state=state, done=90, failed=10).dump())
    row["updated_at"] = bench.database.server_time() + HOUR_S * 1000  # it stays news
    bench.client.hset(bench.keys.audit, entry.id, json.dumps(row))
    BulkIds(bench.database).store(entry.id, [f"{number:040}" for number in range(200)])
    return entry.id


#: Views with a form of many jobs -> the buttons that ask for an action on all that match.
ASKING = {
    "dead": ("retry all", "delete all"),
    "jobs?state=reserved": ("revoke all",),
    "jobs?state=running": ("terminate all",),
    "queues?name=bulk+mail+%26+more": ("revoke all",),
}


def make_troubled(bench: Bench, db: Any) -> dict[str, str]:
    """Fill the database; return the name -> the address of each view, below that of the page."""
    client, now = bench.client, bench.database.server_time()
    dead_worker = bench.dead_owner([payload("lost")], node="celery@web-9", lists=["mail"])
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
    changes = {state: change(bench, state) for state in ("under way", "interrupted", "complete")}
    owner = quote(living.owner, safe="")
    died = quote(dead_worker.owner, safe="")
    return {
        "overview": "",
        "jobs": "jobs",
        "jobs on probation": "jobs?state=probation",
        "scheduled jobs": "jobs?state=parked",
        "no such state": "jobs?state=struck&longer=never",
        "job": "jobs/runs",
        "no job": "jobs/nowhere",
        "search": "find?text=note",
        "search without a result": "find?text=nothing",
        "queues": "queues",
        "queue": "queues?name=slow",
        "unserved queue": f"queues?name={quote('bulk mail & more')}",
        "workers": "workers",
        "worker": f"workers/{owner}",
        "no worker": "workers/nobody",
        "dead worker": f"workers/{died}",
        "audit": "audit",
        **{f"change of many, {state}": f"audit/{id}" for state, id in changes.items()},
        "recurring": "recurring",
        "charts": "charts",
        "charts of a day": "charts?hours=24&queue=slow",
        "server": "server",
        "dead": "dead",
        "dead, searched": "dead?task=note",
        "dead job": f"dead/{dead.id}",
        "no page": "nothing",
    }
