"""What there is to see of an app's database, as one plain document; it changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.exceptions import ResponseError

from ..model.dead_job import utc
from ..model.facts import Facts
from ..model.verdict import MISSED_HEARTBEATS, Reason
from ..reaper.evidence import judge_all
from ..store.database import Database
from ..store.dead_jobs import Graveyard
from ..store.history import History
from ..store.holdings import Holding, Holdings
from ..store.queues import Queues, Suspects
from ..store.registry import Registry
from ..store.stats import Stats
from ..store.unacked import Unacked
from ..store.wire.server import info, setting

if TYPE_CHECKING:  # a probe reads rows of it, and waits for neither
    from celery import Celery

    from ..reaper.reaper import Reaper

#: The latest deaths that are told of.
DEATHS = 10


def overview_of(app: Celery, reaper: Reaper) -> dict[str, Any]:
    """What ``look`` finds, with the server, the latest deaths, counters and stock kombu's jobs.

    Raises:
        redis.exceptions.RedisError: the server could not be asked.
    """
    from ..app.queues import lists_of, separator_of, unacked_of  # a probe goes without Celery

    database = reaper.database
    return {
        "server": _server(database.client),
        **look(database, lists_of(app), separator_of(app)),
        # Of stock workers: what they work on, and what the killed ones left.
        "unacked": Unacked(database, *unacked_of(app)).size(),
        "deaths": [
            {**death, "at": utc(death["at"] / 1000)} for death in History(database).deaths(DEATHS)
        ],
        "counters": Stats(database).read().totals,
    }


def look(database: Database, lists: Iterable[str], separator: str) -> dict[str, Any]:
    """Owners, queues, dead set and the last pass.

    Arguments:
        lists: those of the app; others are known by owners, and where a job was seen.
        separator: kombu's option ``sep``.
    """
    registry, graves = Registry(database), Graveyard(database)
    verdicts, now = judge_all(registry), database.server_time()
    tombstones = [*registry.tombstones()]
    reaped = registry.facts(tombstones).values()
    held = Holdings(database).of([*(facts.owner for facts, _, _ in verdicts), *tombstones])
    served = Counter(n for facts, _, verdict in verdicts if not verdict.dead for n in facts.lists)
    known = {n for facts in (*reaped, *(row[0] for row in verdicts)) for n in facts.lists}
    last = last_pass_row(History(database), now)
    return {
        "server_time": utc(now / 1000),
        "owners": [
            owner_row(facts, max(0, now - score) / 1000, verdict, held[facts.owner])
            for facts, score, verdict in verdicts
        ],
        # Jobs here landed late or could not be moved; the next pass drains them.
        "tombstones": {
            "owners": len(tombstones),
            "in_flight": sum(held[owner].in_flight for owner in tombstones),
        },
        "queues": queue_rows(database, known.union(lists), separator, served),
        "dead_set": {
            "size": len(graves),
            "limit": database.config.dead_limit,
            "unannounced": graves.untold(),
        },
        "last_pass": last,
        # An app's own option, or what a probe has to go by.
        "reap_interval": (last and last["interval"]) or database.config.reap_interval,
    }


def _server(client: Redis) -> dict[str, Any]:
    """What decides whether jobs survive the server; None where it may not be asked."""
    told = info(client) | info(client, "persistence")
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
        "saves": setting(client, "save"),
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
        "running": holding.running,
        "reserved": holding.reserved,
        "eta": holding.eta,
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


def queue_rows(
    database: Database, lists: Iterable[str], separator: str, consumers: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Queue lists, with what is in them; those that nobody may serve any more are known by it."""
    queues = Queues(database)
    known = {*lists, *queues.noted(), *Suspects(database).lists()}
    parts = sorted((*name.partition(separator), name) for name in known)
    names = [name for *_, name in parts]
    ages, found = queues.oldest(names), []
    for (queue, _, step, name), (length, probation) in zip(
        parts, queues.lengths(names), strict=True
    ):
        row = {
            "queue": queue,
            "priority": int(step) if step.isdecimal() else 0,
            "list": name,
            "length": length,
            # Suspects that wait for their turn to run alone are not in the queue.
            "probation": probation,
            "oldest": ages.get(name),
            "consumers": consumers.get(name, 0),
        }
        if isinstance(length, ResponseError):  # something else lives under the queue's name
            row.update(length=None, error=str(length))
        found.append(row)
    return found


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
