"""A database in which all is well, and the overview of one."""

from __future__ import annotations

from typing import Any

from celery_superfetch.app.reaper import record_pass
from support.workers.bench import Bench

MIB = 1024 * 1024

#: What `status --json` says of the caps of an empty dead set.
NOTHING_KEPT: dict[str, Any] = {
    "ran": {"jobs": 0, "bytes": 0, "most_jobs": 10_000, "most_bytes": 0},
    "never_ran": {"jobs": 0, "bytes": 0, "most_jobs": 10_000, "most_bytes": 64 * MIB},
    "junk": {"jobs": 0, "bytes": 0, "most_jobs": 1_000, "most_bytes": 16 * MIB},
}

WELL: dict[str, Any] = {
    "command": "celery -A shop superfetch",
    "server_time": "2026-01-02T03:00:00.000+00:00",
    "deaths": [],
    "server": {
        "version": "8.1.0",
        "role": "master",
        "primary_link": None,
        "eviction_policy": "noeviction",
        "uptime_s": 86_400,
        "evicted_keys": 0,
        "used_memory": 70 * MIB,
        "used_memory_peak": 80 * MIB,
        "maxmemory": 100 * MIB,
        "connections": 40,
        "maxclients": 10_000,
        "rejected_connections": 0,
        "append_only": True,
        "append_ok": True,
        "saves": "",
        "last_save": 1_700_000_000,
        "last_save_ok": True,
        "changes_since_save": 12,
        "reports_connections": True,
        "replicas": 1,
        "replica_lag_bytes": 100,
        "replica_rows": [
            {"address": "10.0.0.2:6379", "state": "online", "lag_bytes": 100, "lag_s": 0}
        ],
    },
    "owners": [
        {
            "owner": "vm|7|aa",
            "node": "a@vm",
            "version": "0.1.0",
            "host": "vm",
            "pid": 7,
            "state": "running",
            "heartbeat_age": 3.0,
            "age": 3600.0,
            "heartbeat_interval": 5.0,
            "owner_ttl": 60.0,
            "in_flight": 12,
            "running": 3,
            "slots": 4,
            "queues": ["mail"],
            "stopping_for": None,
            "longest_run": None,
            "verdict": "alive",
            "reason": "its heartbeats arrive",
            "long_runs": [],
            "successor": None,
        }
    ],
    "queues": [
        {
            "queue": "mail",
            "list": "mail",
            "known": True,
            "length": 30,
            "probation": 0,
            "parked": 0,
            "next_due": None,
            "overdue": 0.0,
            "oldest": 9.0,
            "consumers": 1,
            "not_consuming": {},
            "paused": None,
        },
        {
            "queue": "mail",
            "list": "mail\x06\x163",
            "known": True,
            "length": 10,
            "probation": 0,
            "parked": 0,
            "next_due": None,
            "overdue": 0.0,
            "oldest": None,
            "consumers": 0,
            "not_consuming": {},
            "paused": None,
        },
    ],
    "stock_consumers": 0,
    "stopped": [],
    "lost": {"jobs": 0, "since": None, "at": None, "ever": 0},
    "data_lost": None,
    "wrong_keys": [],
    "unacked": 0,
    "chart_series": {"count": 7, "limit": 4000},
    "accepted_findings": [],
    "dead_set": {
        "size": 3,
        "of_app": 3,
        "limit": 10_000,
        "unannounced": 0,
        "killed_lately": 0,
        "newest": None,
        "caps": {**NOTHING_KEPT, "ran": {**NOTHING_KEPT["ran"], "jobs": 3, "bytes": 900}},
    },
    "beats": [],
    "last_pass": {"age": 12.0},
    "reap_interval": 10.0,
}


def make_well(bench: Bench) -> None:
    """Register a worker that is well, and make a pass."""
    bench.owner(node="celery@one", lists=["mail"], heartbeat_interval=3600.0, owner_ttl=7200.0)
    reaper = bench.reaper()
    record_pass(reaper, reaper.reap())
