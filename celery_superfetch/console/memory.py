"""Lists what fills the memory of the Redis server, as far as that is known in bounded time.

``server.server_of`` calls ``memory_of``. It reads the sizes of this package's keys and of the
queues. Results, histories of jobs and the keys of other programs have any number of keys: of these
it knows the sum alone. It only reads: a death leaves nothing behind.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ..inspector import Inspector
from ..model.humanize import command, number
from .overview import queue_lists_of

#: Kind of keys -> its title.
PART_TITLES = {
    "waiting": "Waiting jobs",
    "in flight": "Jobs in flight",
    "scheduled": "Scheduled jobs",
    "probation": "Jobs on probation",
    "dead set": "Dead set",
    "statistics": "Counters, charts and audit list",
    "server": "Connections and index of keys",
    "other": "Results, job histories, other programs' keys",
}


SIZE_REFUSED = (
    "the server refuses MEMORY USAGE of these keys to this user (see the ACL); their bytes are "
    "among those of the other keys"
)


def memory_of(inspector: Inspector, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of the used memory, the largest first, each with its bytes, its largest key
    and a hint. ``parts`` is empty, and ``unknown`` says why, if the server refuses the question.

    Arguments:
        fields: of the server's INFO.
    """
    owners = [*inspector.registry.owners(), *inspector.registry.tombstones()]
    lists = [*queue_lists_of(inspector, owners)]
    lengths = dict(zip(lists, inspector.queues.lengths(lists), strict=True))

    waiting = {name: n if isinstance(n, int) else 0 for name, (n, _) in lengths.items()}
    held = inspector.in_flight_jobs.counts(owners)
    kinds = inspector.memory.by_kind(
        waiting=_fullest_first(waiting),
        scheduled=_fullest_first(inspector.parked.sizes(lists)),
        probation=_fullest_first({name: n for name, (_, n) in lengths.items()}),
        owners=_fullest_first({owner: counts.in_flight for owner, counts in held.items()}),
    )
    if kinds is None:
        return {"parts": [], "unknown": "the server refuses MEMORY USAGE to this user"}
    parts = list[dict[str, Any]]()
    for kind, use in kinds.items():
        queue = inspector.database.queue_of(use.largest) if kind != "in flight" else ""
        part = {"part": kind, "bytes": use.bytes, "largest": queue or use.largest or None}
        part |= {"largest_bytes": use.largest_bytes if use.largest else None}
        part |= {"keys": use.key_count, "measured_keys": use.measured_count}
        # Of nothing no hint: without a queue it would name a command that discards all jobs.
        hint = _hint(kind, queue) if use.bytes else "no action needed"
        parts.append({**part, "hint": SIZE_REFUSED if use.bytes is None else hint})
    parts += _others(inspector, fields, sum(use.bytes or 0 for use in kinds.values()))
    used = fields.get("used_memory")
    for row in parts:
        row["title"] = PART_TITLES[row["part"]]
        row["share"] = row["bytes"] / used if used and row["bytes"] is not None else None
    return {"parts": sorted(parts, key=lambda row: -(row["bytes"] or 0)), "unknown": None}


def _fullest_first(counts: Mapping[str, int]) -> list[str]:
    """Return the names of some keys, those with the most jobs first."""
    return sorted(counts, key=counts.__getitem__, reverse=True)


def _others(inspector: Inspector, fields: Mapping[str, Any], known: int) -> list[dict[str, Any]]:
    """Return the parts of which the server says the sums alone."""
    rows = []
    overhead, data = (fields.get(f"used_memory_{name}") for name in ("overhead", "dataset"))
    blank: dict[str, Any] = {"largest": None, "largest_bytes": None, "measured_keys": 0}
    if overhead is not None:
        hint = "find the program that opens so many connections (CLIENT LIST)"
        rows.append({"part": "server", "bytes": overhead, "keys": 0, **blank, "hint": hint})
    keyspace = [row for name, row in fields.items() if name[:2] == "db" and isinstance(row, dict)]
    keys, expires = (sum(row.get(name, 0) for row in keyspace) for name in ("keys", "expires"))
    hint = (
        "their number has no bound, so they are not read one by one. Of the "
        f"{number(keys, 'key')} of the server {expires} expire, as results and histories do: "
        "shorten result_expires, set ignore_result on tasks whose results no caller reads, or find "
        "the largest keys with `redis-cli --memkeys`, which reads every key"
    )
    size = None if data is None else max(0, data - known)
    return [*rows, {"part": "other", "bytes": size, "keys": keys, **blank, "hint": hint}]


def _hint(kind: str, queue: str) -> str:
    """Return what to do about a part that grows."""
    prefix = command()
    option = f" --queue {shlex.quote(queue)}" if queue else ""
    worker = f"start workers with -Q {shlex.quote(queue)}" if queue else "start workers"
    hints = {
        "waiting": f"{worker}, or stop the producer that floods it; `{prefix} jobs revoke --state "
        f"waiting{option}` has workers discard its jobs",
        "in flight": "workers have claimed them: they leave as they end. Lower "
        "worker_prefetch_multiplier if most are reserved",
        "scheduled": f"they wait for their time; `{prefix} jobs revoke --state scheduled{option}` "
        "has workers discard them",
        "probation": f"`{prefix} jobs --state probation{option}` lists them",
        "dead set": f"`{prefix} dead list`, then retry or delete jobs, or lower dead_limit",
        "statistics": "no action needed: their number is limited",
    }
    return hints[kind]
