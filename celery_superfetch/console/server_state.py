"""The settings and the state of the Redis server as plain values.

The overview and the view of the server (``server.py``) call ``server_state``. It only reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..inspector import Inspector


def server_state(inspector: Inspector) -> dict[str, Any]:
    """Return the settings and the state of the server on which the survival of jobs depends; None
    where the ACL forbids to ask."""
    fields, saves = inspector.server()
    replicas = _replicas(fields)
    return {
        "version": fields.get("valkey_version") or fields.get("redis_version"),
        "role": fields.get("role"),
        # State of a replica's link to its primary; None: it is a primary.
        "primary_link": fields.get("master_link_status"),
        "eviction_policy": fields.get("maxmemory_policy"),
        # Seconds since its start, and the keys that it has evicted since.
        "uptime_s": fields.get("uptime_in_seconds"),
        "evicted_keys": fields.get("evicted_keys"),
        "used_memory": fields.get("used_memory"),
        "used_memory_peak": fields.get("used_memory_peak"),
        "maxmemory": fields.get("maxmemory"),
        # Clients that are connected, the most that may be, and those refused since its start.
        "connections": fields.get("connected_clients"),
        "maxclients": fields.get("maxclients"),
        "rejected_connections": fields.get("rejected_connections"),
        "append_only": bool(int(fields["aof_enabled"])) if "aof_enabled" in fields else None,
        "append_ok": fields.get("aof_last_write_status", "ok") == "ok",
        # Empty: it saves no snapshot by itself.
        "saves": saves,
        "last_save": fields.get("rdb_last_save_time"),
        "last_save_ok": fields.get("rdb_last_bgsave_status", "ok") == "ok",
        "changes_since_save": fields.get("rdb_changes_since_last_save"),
        # Without connections a worker of another host is declared dead by its staleness alone.
        "reports_connections": "run_id" in fields and inspector.registry.reports_connections(),
        "replicas": fields.get("connected_slaves"),
        "replica_lag_bytes": max((row["lag_bytes"] for row in replicas), default=0),
        "replica_rows": replicas,
    }


def _replicas(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return address, state and lag of each replica that the server knows."""
    known = [row for name, row in sorted(fields.items()) if name.startswith("slave")]
    return [
        {
            "address": f"{row.get('ip')}:{row.get('port')}",
            "state": row.get("state"),
            "lag_bytes": int(fields["master_repl_offset"]) - int(row["offset"]),
            # Seconds since it last confirmed what it has.
            "lag_s": row.get("lag"),
        }
        for row in known
        if isinstance(row, dict) and "offset" in row
    ]
