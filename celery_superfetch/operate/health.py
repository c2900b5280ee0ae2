"""What is wrong, by the overview alone, and what to do about it; pure functions."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ..model.facts import STUCK
from ..model.verdict import MISSED_HEARTBEATS
from .words import ago, number, passed, span

#: Passes that may be missing before somebody is told: one may last, one is another's turn.
LATE_PASSES = 6

#: Seconds for which it is told that a worker died and has not come back.
LATELY = 3600

#: Shares of a limit.
NEAR, FULL = 0.8, 0.95

#: Bytes that a replica may lag: what a busy server sends in a moment.
LAG = 16 * 1024 * 1024

REAP = "run `celery -A app superfetch reap`"
DEAD_LIST = "`celery -A app superfetch dead list`"

Level = Literal["critical", "warning", "note"]
LEVELS: tuple[Level, ...] = ("critical", "warning", "note")


class Finding(NamedTuple):
    """One thing that is to be known of."""

    level: Level
    #: For programs; it stays the same from version to version.
    code: str
    text: str
    #: What to do; empty where nothing is to be done.
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.fix}." if self.fix else f"{self.text}."


def findings(overview: Mapping[str, Any]) -> list[Finding]:
    """All that is to be known of an ``overview_of``, worst first."""
    found = [
        *of_queues(overview),
        *of_owners(overview),
        *of_long_runs(overview["owners"]),
        *of_passes(overview),
        *_deaths(overview),
        *_server(overview["server"]),
        *_dead_set(overview),
    ]
    if jobs := overview["unacked"]:
        text = f"{number(jobs, 'job')} unacked by stock workers, which work on them or were killed"
        fix = "when no stock worker runs any more, `celery -A app superfetch migrate`"
        found.append(Finding("warning", "unacked", text, fix))
    return sorted(found, key=lambda one: LEVELS.index(one.level))


def verdict(found: Sequence[Finding], overview: Mapping[str, Any]) -> str:
    """One line: that all is well, or what is worst and what to do about it."""
    bad = [one for one in found if one.level != "note"]
    if bad:
        more = f" ({len(bad) - 1} more below)" if len(bad) > 1 else ""
        return f"{bad[0].level.capitalize()}: {bad[0]}{more}"
    told = [number(len(overview["owners"]), "owner"), *held(overview)]
    return f"All is well: {', '.join(told)}."


def held(overview: Mapping[str, Any]) -> list[str]:
    """How many jobs are in flight, and how many wait, in words."""
    in_flight = sum(owner["in_flight"] for owner in overview["owners"])
    waiting = sum((row["length"] or 0) + row["probation"] for row in overview["queues"])
    return [f"{number(in_flight, 'job')} in flight", f"{waiting} waiting"]


def by_queue(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each queue, of the ``rows`` of its lists: those first that are no queue or that
    nobody serves, then the fullest."""
    queues: dict[str, dict[str, Any]] = {}
    for row in rows:
        fresh = {"waiting": 0, "probation": 0, "oldest": 0.0, "consumers": 0, "error": None}
        queue = queues.setdefault(row["queue"], {"queue": row["queue"], **fresh})
        queue["waiting"] += row["length"] or 0
        queue["probation"] += row["probation"]
        queue["oldest"] = max(queue["oldest"], row["oldest"] or 0.0)
        queue["consumers"] = max(queue["consumers"], row["consumers"])
        queue["error"] = queue["error"] or row.get("error")
    found = [*queues.values()]
    for one in found:
        wanted = one["error"] or one["waiting"] or one["probation"]
        one["unserved"] = bool(wanted and not one["consumers"])
    found.sort(key=lambda q: (not q["error"], not q["unserved"], -q["waiting"], q["queue"]))
    return found


def of_owners(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Of ``owners``, with ``last_pass`` and ``reap_interval``."""
    last = overview["last_pass"]
    alive = any(owner["verdict"] == "alive" for owner in overview["owners"])
    soon = alive and last is not None and last["age"] < LATE_PASSES * overview["reap_interval"]
    for owner in overview["owners"]:
        name = f"{owner['node'] or owner['owner']} on {owner['host']}"
        jobs, age = number(owner["in_flight"], "job"), owner["heartbeat_age"]
        if owner["state"] == STUCK:
            text = f"worker {name} is stuck: its event loop does not turn; its {jobs} go to others"
            fix = (
                f"see on {owner['host']} what it waits for (py-spy dump --pid {owner['pid']}), "
                "then restart it"
            )
            yield Finding("critical", "stuck-owner", text, fix)
        elif owner["verdict"] == "dead":
            holds = "holds nothing" if not owner["in_flight"] else f"its {jobs} wait"
            level: Level = "critical" if owner["in_flight"] and not soon else "note"
            text = f"worker {name} is dead ({owner['reason']}), {holds}"
            fix = "the next pass takes them" if soon else REAP
            yield Finding(level, "dead-owner", text, fix)
        elif age >= MISSED_HEARTBEATS * owner["heartbeat_interval"]:
            level = "critical" if age >= owner["owner_ttl"] else "warning"
            text = f"worker {name} was not heard for {span(age)} and holds {jobs}"
            fix = (
                f"it is frozen or cut off: if pid {owner['pid']} hangs, `kill -9` it; if its host "
                f"is gone, {REAP} until it is reaped"
            )
            yield Finding(level, "silent-owner", text, fix)


def of_long_runs(owners: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Of ``stuck`` in the rows of owners, by task."""
    tasks: dict[str, list[tuple[int, str, str]]] = {}
    for owner in owners:
        for job in owner["stuck"]:
            row = job["seconds"], job["id"], owner["node"] or owner["owner"]
            tasks.setdefault(job["task"], []).append(row)
    for task, rows in tasks.items():
        seconds, id, node = max(rows)
        many = f"{number(len(rows), 'job')} of {task} {'runs' if len(rows) == 1 else 'run'}"
        text = f"{many} for longer than stuck_after, {id} on {node} for {span(seconds)}"
        fix = (
            "see what it waits for (py-spy dump), or end it: `celery -A app superfetch jobs kill "
            f"--terminate {id}`; a time limit ends such runs by itself"
        )
        yield Finding("warning", "stuck-job", text, fix)


def of_queues(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Of ``queues``."""
    for row in overview["queues"]:
        if row["length"] is None:
            text = f"queue list {row['list']!r} is no list: {row['error']}"
            fix = "nobody can send to it or take from it: rename what lives under that key"
            yield Finding("critical", "queue-type", text, fix)
    for row in by_queue(overview["queues"]):
        if not row["unserved"]:
            continue
        queue, fix = row["queue"], f"start a worker with -Q {shlex.quote(row['queue'])}"
        unserved = "no live worker consumes it"
        if row["waiting"]:
            since = f", oldest {span(row['oldest'])}" if row["oldest"] else ""
            text = f"queue {queue}: {number(row['waiting'], 'job')}{since}, {unserved}"
            yield Finding("critical", "no-consumer", text, fix)
        if row["probation"]:
            text = f"queue {queue}: {number(row['probation'], 'job')} on probation, {unserved}"
            yield Finding("critical", "probation-unserved", text, fix)


def of_passes(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Of ``last_pass``, with ``owners`` and ``reap_interval``."""
    last, oldest = overview["last_pass"], max((o["age"] for o in overview["owners"]), default=0.0)
    # None was due before somebody was there.
    if min(oldest, last["age"] if last else oldest) < LATE_PASSES * overview["reap_interval"]:
        return
    since = "" if last is None else f" for {span(last['age'])}"
    text = f"no pass{since or ' is known of'}: nobody looks for dead workers"
    fix = f"start a worker of an app with install(), which makes them, or {REAP}"
    yield Finding("critical", "no-pass", text, fix)


def _deaths(overview: Mapping[str, Any]) -> Iterator[Finding]:
    now = overview["server_time"]
    back = {owner["node"] for owner in overview["owners"] if owner["verdict"] == "alive"}
    away = [row for row in overview["deaths"] if (row["node"] or None) not in back]
    lately = [row for row in away if passed(row["at"], now) <= LATELY]
    for row in lately[:1]:
        name, jobs = row["node"] or row["owner"], number(row["recovered"], "job")
        queues = "its queue" if row["recovered"] == 1 else "their queues"
        text = (
            f"worker {name} died {ago(row['at'], now)} ({row['reason']}), its {jobs} went back to"
        )
        more = f", and {len(lately) - 1} more died within the hour" if len(lately) > 1 else ""
        fix = "see why (its host's kernel log tells of the OOM killer), and start it again"
        yield Finding("note", "worker-died", f"{text} {queues}{more}", fix)


def _server(server: Mapping[str, Any]) -> Iterator[Finding]:
    policy, used, most = (server[n] for n in ("eviction_policy", "used_memory", "maxmemory"))
    level: Level
    if policy not in (None, "noeviction"):
        level = "critical" if most else "warning"
        text = f"the server may evict jobs: its maxmemory-policy is {policy}"
        fix = (
            "`redis-cli CONFIG SET maxmemory-policy noeviction`, and the same in its configuration"
        )
        yield Finding(level, "eviction", text, fix)
    if most and used >= NEAR * most:
        level = "critical" if used >= FULL * most else "warning"
        text = f"the server uses {used / most:.0%} of its maxmemory; at 100% nothing can be sent"
        yield Finding(level, "memory", text, "raise maxmemory, or see which queue or result grows")
    if server["append_only"] is False and server["saves"] == "":
        text = (
            "the server keeps jobs in memory alone (no AOF, no RDB saves): "
            "its restart loses them all"
        )
        fix = "`redis-cli CONFIG SET appendonly yes`, and the same in its configuration"
        yield Finding("warning", "no-persistence", text, fix)
    if not server["last_save_ok"]:
        text = "the server's last RDB save failed; it may refuse all writes"
        fix = "see its log: its disk is full, or there is no memory for the fork"
        yield Finding("critical", "save-failed", text, fix)
    if (lag := server["replica_lag_bytes"]) >= LAG:
        text = f"a replica lags {lag // 1024**2} MiB behind: a failover now loses that"
        yield Finding("warning", "replica-lag", text, "see its network and its load")


def _dead_set(overview: Mapping[str, Any]) -> Iterator[Finding]:
    dead = overview["dead_set"]
    if dead["size"] >= NEAR * dead["limit"]:
        full = dead["size"] >= dead["limit"]
        what = "each further one drops the oldest" if full else "beyond that the oldest are dropped"
        text = f"the dead set holds {dead['size']} jobs of {dead['limit']}: {what}"
        fix = f"{DEAD_LIST}, then `dead retry` or `dead delete`; or raise dead_limit"
        yield Finding("warning", "dead-set-full", text, fix)
    if jobs := dead["unannounced"]:
        text = f"the callers of {number(jobs, 'killed job')} are not told yet"
        fix = "each pass tries again; if it stays so, see whether the result backend answers"
        yield Finding("warning", "unannounced", text, fix)
