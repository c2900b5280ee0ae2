"""Findings on the Redis server, from the overview alone. ``health`` calls it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..model.humanize import ago, command, number, passed, span
from .finding import Finding, Level
from .overview import LATELY_S

MEMORY_NEARLY_FULL, MEMORY_FULL = 0.8, 0.95  # shares of maxmemory
CONNECTIONS_NEARLY_ALL, CONNECTIONS_ALL = 0.8, 0.95  # shares of maxclients

#: Bytes that a replica may lag: what a busy server sends in a moment.
REPLICA_LAG_BYTES = 16 * 1024 * 1024


def of_restarts(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding if the server restarted while workers of its database ran."""
    uptime = overview["server"]["uptime_s"]
    if uptime is None or uptime > LATELY_S:
        return
    # The server says whole seconds, and a worker may have registered in its first one.
    before = [owner for owner in overview["owners"] if owner["age"] > uptime + 1]
    if before:
        text = f"the server restarted {span(uptime)} ago, while {number(len(before), 'worker')} ran"
        fix = "jobs that it accepted after its last save are lost: check its persistence"
        # An AOF loses a second, the last RDB save may be an hour old.
        level: Level = "note" if overview["server"]["append_only"] else "warning"
        yield Finding(level, "restarted", text, fix)


def of_data_loss(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding if the server lately lost the records of workers, and so perhaps jobs."""
    at, now = overview["data_lost"], overview["server_time"]
    if at is None or passed(at, now) > LATELY_S:
        return
    text = (
        f"the server lost the records of running workers (found {ago(at, now)}): it was flushed, "
        "restarted without its data or came back with older data, or keys were deleted or evicted, "
        "and jobs may be lost"
    )
    fix = (
        "publish again the jobs that were waiting on its queues, and look for FLUSHALL, FLUSHDB, "
        "DEL, eviction, a restart without persistence, and a restored backup"
    )
    yield Finding("warning", "data-lost", text, fix)


def _setting_fix(name: str, value: str, server: Mapping[str, Any]) -> str:
    """Return the advice to change a setting of this server."""
    if server["saves"] is None:  # CONFIG is forbidden, or a managed service has none
        return f"set {name} to {value} in the service's parameter group or console"
    return f"`redis-cli CONFIG SET {name} {value}`, and the same in its configuration file"


def of_server(server: Mapping[str, Any]) -> Iterator[Finding]:
    policy, used, most = (server[n] for n in ("eviction_policy", "used_memory", "maxmemory"))
    level: Level
    if policy not in (None, "noeviction"):
        expiring = policy.startswith("volatile-")
        level = "critical" if most and not expiring else "warning"
        lost = "strikes, and queues with x-expires and their jobs" if expiring else "jobs"
        text = f"the server may evict {lost}: its maxmemory-policy is {policy}"
        yield Finding(
            level, "eviction", text, _setting_fix("maxmemory-policy", "noeviction", server)
        )
    uptime = server["uptime_s"]
    if evicted := server["evicted_keys"]:
        # Results and job histories expire. Of the jobs, only those on a queue with x-expires do.
        level = "note" if policy and policy.startswith("volatile-") else "critical"
        since = f" since its start {span(uptime)} ago" if uptime is not None else ""
        text = f"the server evicted {number(evicted, 'key')}{since}, perhaps with jobs"
        text += " of queues with x-expires" if level == "note" else ""
        fix = "set maxmemory-policy to noeviction; workers log each job that they find lost"
        yield Finding(level, "evicted", text, fix)
    if most and used >= MEMORY_NEARLY_FULL * most:
        level = "critical" if used >= MEMORY_FULL * most else "warning"
        if policy in (None, "noeviction"):
            full = "it refuses writes" if used >= most else "at 100% no job can be sent"
        else:
            full = "it evicts keys" if used >= most else "at 100% it evicts keys"
        text = f"the server uses {used / most:.0%} of its maxmemory; {full}"
        fix = f"raise maxmemory, or remove what fills it: `{command()} server` lists its parts"
        yield Finding(level, "memory", text, fix)
    if server["append_only"] is False and server["saves"] == "":
        text = (
            "the server keeps jobs in memory only (no AOF, no RDB saves): a restart loses all jobs"
        )
        fix = _setting_fix("appendonly", "yes", server)
        yield Finding("warning", "no-persistence", text, fix)
    if not server["reports_connections"]:
        text = (
            "the server does not list open connections: a worker that dies on another host is "
            "declared dead after its owner_ttl, not after two heartbeats"
        )
        fix = "no action needed if that is acceptable; `doctor` names the missing commands"
        yield Finding("note", "slow-detection", text, fix)
    connections, clients = server["connections"], server["maxclients"]
    if clients and connections and connections >= CONNECTIONS_NEARLY_ALL * clients:
        level = "critical" if connections >= CONNECTIONS_ALL * clients else "warning"
        text = (
            f"the server has {connections} of its {clients} connections (maxclients); at 100% it "
            "refuses workers and senders"
        )
        fix = "raise maxclients, or find the program that opens so many (CLIENT LIST)"
        yield Finding(level, "connections", text, fix)
    if not server["append_ok"]:
        text = "the server's last write to its append-only file failed; it refuses all writes"
        yield Finding("critical", "aof-failed", text, "check its log: its disk is full, say")
    if not server["last_save_ok"]:
        text = "the server's last RDB save failed; it may refuse all writes"
        fix = "check its log: its disk is full, or memory is short for the fork"
        yield Finding("critical", "save-failed", text, fix)
    if (lag := server["replica_lag_bytes"]) >= REPLICA_LAG_BYTES:
        text = f"a replica lags {lag // 1024**2} MiB behind: a failover now would lose that"
        yield Finding("warning", "replica-lag", text, "check its network and its load")
