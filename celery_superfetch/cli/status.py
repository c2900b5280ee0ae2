"""What ``superfetch status`` finds out, as plain values; it reads and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import Celery
from redis.exceptions import ResponseError

from ..model.dead_job import utc
from ..model.facts import Facts
from ..model.verdict import MISSED_HEARTBEATS, Reason
from ..reaper.reaper import Reaper
from ..store.queues import Queues
from ..store.stats import Stats
from ..store.unacked import Unacked


def status_of(app: Celery, reaper: Reaper) -> dict[str, Any]:
    """Owners, tombstones, queues, dead set and counters of the app's database.

    Raises:
        redis.exceptions.RedisError: the server could not be asked.
    """
    verdicts = reaper.jury.judge_all(keep=False)
    owners = [facts for facts, _, _ in verdicts]
    now = reaper.database.server_time()
    in_flight = _in_flight(reaper, owners)
    reaped = reaper.registry.facts(reaper.registry.tombstones()).values()
    with app.connection_for_read() as connection:
        channel = connection.channel()
        queues = _queues(app, channel, reaper, [*owners, *reaped])
        unacked = Unacked(reaper.database, channel.unacked_key, channel.unacked_index_key).size()
    return {
        "server_time": utc(now / 1000),
        "owners": [
            {
                "owner": facts.owner,
                "host": facts.process.host,
                "pid": facts.process.pid,
                "app": facts.app,
                "state": facts.state,
                "heartbeat_age": max(0, now - score) / 1000,
                "in_flight": in_flight.get(facts.owner, 0),
                "verdict": _word(verdict),
                "reason": _reason(facts, (now - score) / 1000, verdict),
            }
            for facts, score, verdict in verdicts
        ],
        # Jobs here landed late or could not be moved; the next pass drains them.
        "tombstones": {
            "owners": len(reaped),
            "in_flight": sum(_in_flight(reaper, reaped).values()),
        },
        "queues": queues,
        # Of stock workers: what they work on, and what the killed ones left.
        "unacked": unacked,
        "dead_set": {
            "size": reaper.dead_jobs.size(),
            "unannounced": reaper.dead_jobs.untold(),
        },
        "counters": Stats(reaper.database).read(),
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


def _in_flight(reaper: Reaper, owners: Iterable[Facts]) -> dict[str, int]:
    return reaper.lists.sizes([(facts.owner, facts.lists) for facts in owners])


def _queues(
    app: Celery, channel: Any, reaper: Reaper, owners: Iterable[Facts]
) -> list[dict[str, Any]]:
    """Every queue list of the app and of the owners (a worker's ``-Q`` is not in the app)."""
    # Broadcast queues are made for each consumer and hold nothing between two.
    names = {
        queue.name
        for queue in app.amqp.queues.values()
        if getattr(queue.exchange, "type", None) != "fanout"
    }
    names |= {name.partition(channel.sep)[0] for facts in owners for name in facts.lists}
    rows = [
        {"queue": name, "priority": step, "list": channel._q_for_pri(name, step)}
        for name in sorted(names)
        for step in channel.priority_steps
    ]
    lengths = Queues(reaper.database).lengths([row["list"] for row in rows])
    for row, (length, probation) in zip(rows, lengths, strict=True):
        # Suspects that wait for their turn to run alone are not in the queue.
        row.update(length=length, probation=probation)
        if isinstance(length, ResponseError):  # something else lives under the queue's name
            row.update(length=None, error=str(length))
    return rows
