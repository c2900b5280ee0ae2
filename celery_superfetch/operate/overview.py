"""What there is to see of an app's database, as one plain document; it changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from ..model.dead_job import utc
from ..model.facts import Facts
from ..model.verdict import MISSED_HEARTBEATS, Reason
from ..reaper.evidence import judge_all
from ..store.database import Database
from ..store.history import History
from ..store.holdings import Holding, Holdings
from ..store.queues import Queues, Suspects
from ..store.stats import Stats
from ..store.unacked import Unacked
from ..store.wire.server import info, setting

if TYPE_CHECKING:  # a probe reads rows of it, and waits for neither
    from celery import Celery

    from ..reaper.reaper import Reaper

#: The latest deaths that are told of.
DEATHS = 10


def overview_of(app: Celery, reaper: Reaper) -> dict[str, Any]:
    """Server, owners, queues, dead set, deaths, the last pass and counters.

    Raises:
        redis.exceptions.RedisError: the server could not be asked.
    """
    verdicts = judge_all(reaper.registry)
    now = reaper.database.server_time()
    tombstones = list(reaper.registry.tombstones())
    reaped = reaper.registry.facts(tombstones)
    living = [facts.owner for facts, _, _ in verdicts]
    holdings = Holdings(reaper.database).of([*living, *tombstones])
    owners = [
        owner_row(facts, max(0, now - score) / 1000, verdict, holdings[facts.owner])
        for facts, score, verdict in verdicts
    ]
    consumers = Counter(
        name for facts, _, verdict in verdicts if not verdict.dead for name in facts.lists
    )
    with app.connection_for_read() as connection:
        channel = connection.channel()
        known = {name for facts in reaped.values() for name in facts.lists}
        known |= {name for facts, _, _ in verdicts for name in facts.lists}
        # Nobody may serve them any more.
        known |= {*Queues(reaper.database).noted(), *Suspects(reaper.database).lists()}
        queues = queue_rows(reaper.database, _lists(app, channel, known), consumers)
        unacked = Unacked(reaper.database, channel.unacked_key, channel.unacked_index_key).size()
    history = History(reaper.database)
    return {
        "server_time": utc(now / 1000),
        "server": _server(reaper),
        "owners": owners,
        # Jobs here landed late or could not be moved; the next pass drains them.
        "tombstones": {
            "owners": len(tombstones),
            "in_flight": sum(holdings[owner].in_flight for owner in tombstones),
        },
        "queues": queues,
        # Of stock workers: what they work on, and what the killed ones left.
        "unacked": unacked,
        "dead_set": {
            "size": len(reaper.dead_jobs),
            "limit": reaper.config.dead_limit,
            "unannounced": reaper.dead_jobs.untold(),
        },
        "deaths": [_death(death) for death in history.deaths(DEATHS)],
        "last_pass": last_pass_row(history, now),
        "reap_interval": reaper.config.reap_interval,
        "counters": Stats(reaper.database).read().totals,
    }


def _server(reaper: Reaper) -> dict[str, Any]:
    """What decides whether jobs survive the server; None where it may not be asked."""
    told = info(reaper.database.client)
    told |= info(reaper.database.client, "persistence")
    replicas = told.get("connected_slaves")
    lags = [
        int(told["master_repl_offset"]) - int(replica["offset"])
        for name, replica in told.items()
        if name.startswith("slave") and isinstance(replica, dict) and "offset" in replica
    ]
    return {
        "version": told.get("valkey_version") or told.get("redis_version"),
        "role": told.get("role"),
        "eviction_policy": told.get("maxmemory_policy"),
        "used_memory": told.get("used_memory"),
        "maxmemory": told.get("maxmemory"),
        "append_only": bool(int(told["aof_enabled"])) if "aof_enabled" in told else None,
        # Empty: none is made by itself.
        "saves": setting(reaper.database.client, "save"),
        "last_save": told.get("rdb_last_save_time"),
        "last_save_ok": told.get("rdb_last_bgsave_status", "ok") == "ok",
        "replicas": replicas,
        "replica_lag_bytes": max(lags, default=0),
    }


def owner_row(facts: Facts, age: float, verdict: Reason, holding: Holding) -> dict[str, Any]:
    """One owner, last heard ``age`` seconds ago."""
    return {
        "owner": facts.owner,
        "node": facts.node,
        "host": facts.process.host,
        "pid": facts.process.pid,
        "app": facts.app,
        "version": facts.version,
        "state": facts.state,
        "heartbeat_age": age,
        "heartbeat_interval": facts.heartbeat_interval,
        "owner_ttl": facts.owner_ttl,
        "in_flight": holding.in_flight,
        **holding._asdict(),
        "queues": sorted(facts.lists),
        "verdict": _word(verdict),
        "reason": _reason(facts, age, verdict),
    }


def _word(verdict: Reason) -> str:
    if verdict.dead:
        return "dead"
    return "reaped" if verdict is Reason.REAPED else "alive"


def _reason(facts: Facts, age: float, verdict: Reason) -> str:
    """Workers keep their watch to themselves: here the age has to speak for a silent owner."""
    if verdict is Reason.HEARD and age >= MISSED_HEARTBEATS * facts.heartbeat_interval:
        return f"no heartbeat for {age:.0f} s; alive until a reaper has watched that itself"
    return verdict.value


def _lists(app: Celery, channel: Any, known: Iterable[str]) -> list[dict[str, Any]]:
    """Every queue list of the app's queues and of the known ones (``-Q`` is not in the app)."""
    from ..app.queues import queues_of  # a probe goes without Celery

    names = queues_of(app)
    names |= {name.partition(channel.sep)[0] for name in known}
    return [
        {"queue": name, "priority": step, "list": channel._q_for_pri(name, step)}
        for name in sorted(names)
        for step in channel.priority_steps
    ]


def queue_rows(
    database: Database, rows: Sequence[dict[str, Any]], consumers: Counter[str]
) -> list[dict[str, Any]]:
    """Queue lists that are named in ``rows``, with what is in them."""
    queues, names = Queues(database), [row["list"] for row in rows]
    ages = queues.oldest(names)
    found = []
    for row, (length, probation) in zip(rows, queues.lengths(names), strict=True):
        row = {
            **row,
            "length": length,
            # Suspects that wait for their turn to run alone are not in the queue.
            "probation": probation,
            "oldest": ages.get(row["list"]),
            "consumers": consumers[row["list"]],
        }
        if isinstance(length, ResponseError):  # something else lives under the queue's name
            row.update(length=None, error=str(length))
        found.append(row)
    return found


def _death(death: dict[str, Any]) -> dict[str, Any]:
    return {**death, "at": utc(death["at"] / 1000)}


def last_pass_row(history: History, now: int) -> dict[str, Any] | None:
    """The last pass; None where nobody has made one."""
    told = history.last_pass()
    if not told:
        return None
    at = int(told.get("at", now))
    return {
        "at": utc(at / 1000),
        "age": max(0, now - at) / 1000,
        "by": told.get("by", ""),
        "seconds": float(told.get("seconds", 0)),
        "interval": float(told.get("interval", 0)),
        **{name: int(told.get(name, 0)) for name in ("owners", "recovered", "killed", "errors")},
    }
