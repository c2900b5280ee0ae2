"""What there is to see of an app's database, as one plain document; it changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
from ..store.holdings import STATES, Holding, Holdings
from ..store.queues import Queues, Suspects
from ..store.registry import Registry
from ..store.unacked import Unacked
from ..store.wire.server import info, setting

if TYPE_CHECKING:  # a probe reads rows of it, and waits for neither
    from celery import Celery

    from ..reaper.reaper import Reaper

#: What an owner's row has as it was registered.
FACTS = ("owner", "node", "app", "version", "state", "heartbeat_interval", "owner_ttl")

#: The latest deaths that are told of.
DEATHS = 10


def overview_of(app: Celery, reaper: Reaper) -> dict[str, Any]:
    """What ``look`` finds, with the server, the latest deaths, counters and stock kombu's jobs."""
    from ..app.queues import lists_of, separator_of, unacked_of  # a probe goes without Celery

    database, history = reaper.database, reaper.history
    return {
        "server": _server(database.client),
        **look(database, lists_of(app), separator_of(app)),
        # Of stock workers: what they work on, and what the killed ones left.
        "unacked": Unacked(database, *unacked_of(app)).size(),
        "deaths": [{**death, "at": utc(death["at"] / 1000)} for death in history.deaths(DEATHS)],
        "counters": history.counts().totals,
    }


def look(database: Database, lists: Iterable[str], separator: str) -> dict[str, Any]:
    """Owners, queues, dead set and the last pass. ``lists`` are those of the app; others are known
    by owners, and where a job was seen. ``separator``: kombu's option ``sep``."""
    registry, graves, now = Registry(database), Graveyard(database), database.server_time()
    owners = [row for row, _ in owner_rows(database, judge_all(registry), now)]
    served = Counter(n for row in owners if row["verdict"] != "dead" for n in row["queues"])
    tombstones = registry.facts(registry.tombstones())
    left = Holdings(database).of([*tombstones])
    known = {n for row in owners for n in row["queues"]}
    known |= {n for facts in tombstones.values() for n in facts.lists}
    last = last_pass_row(History(database), now)
    return {
        "server_time": utc(now / 1000),
        "owners": owners,
        # Jobs here landed late or could not be moved; the next pass drains them.
        "tombstones": {
            "owners": len(tombstones),
            "in_flight": sum(holding.in_flight for holding in left.values()),
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
    told = info(client)
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


def owner_rows(
    database: Database, judged: Sequence[tuple[Facts, int, Reason]], now: int
) -> list[tuple[dict[str, Any], Holding]]:
    """Owners with their scores and verdicts as rows, each with what it holds."""
    held = Holdings(database).of([facts.owner for facts, _, _ in judged])
    found = []
    for facts, score, verdict in judged:
        age, holding = max(0, now - score) / 1000, held[facts.owner]
        word = "dead" if verdict.dead else "alive"
        reason = verdict.value
        # Workers keep their watch to themselves: here the age has to speak for a silent owner.
        if verdict is Reason.HEARD and age >= MISSED_HEARTBEATS * facts.heartbeat_interval:
            reason = f"no heartbeat for {age:.0f} s; alive until a reaper has watched that itself"
        row = {
            **{name: getattr(facts, name) for name in FACTS},
            **{name: getattr(holding, name) for name in ("in_flight", *STATES[:3])},
            "host": facts.process.host,
            "pid": facts.process.pid,
            "heartbeat_age": age,
            # Since it registered.
            "age": max(0, now - facts.registered_at) / 1000,
            "queues": sorted(facts.lists),
            # What runs for longer than its stuck_after, and for how long.
            "stuck": [
                {"task": task, "id": id, "digest": name, "seconds": seconds + int(age)}
                for task, id, name, seconds in facts.stuck_jobs
            ],
            "verdict": word,
            "reason": reason,
        }
        found.append((row, holding))
    return found


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
