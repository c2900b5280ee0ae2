"""The jobs of the small world, and what a keyspace of it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from celery_superfetch.model.job import digest
from celery_superfetch.store.keys import Keys
from celery_superfetch.store.private_lists import STEPS, WAITS
from support.workers.bench import payload

QUEUE = "q"
#: The jobs of this world; `B` may be one that kills whoever runs it.
JOBS = {"A": payload("A", QUEUE), "B": payload("B", QUEUE)}
#: What `A` hands on in some worlds, and the queue that nobody serves where it comes to lie.
STEP, NEXT = payload("step", "next"), "next"
NAMES = {raw: name for name, raw in JOBS.items()}

#: What is no claim in a private list, but a note beside one.
NOTES = (WAITS, STEPS)
Rows = tuple[tuple[str, str, tuple[str, ...]], ...]


class Seen(NamedTuple):
    """What a keyspace holds."""

    #: Where each payload lies, by the job's name; what is no job stands there as it is.
    places: Mapping[str, tuple[str, ...]]
    owners: Mapping[str, int]
    reaped: frozenset[str]
    marked: frozenset[str]  # owners whose record says so
    held: Mapping[str, Mapping[str, str]]  # owner -> claim id -> job
    running: Mapping[str, frozenset[str]]  # those of which no note says that they wait
    noted: Mapping[str, frozenset[str]]  # claims that have notes
    landed: frozenset[str]  # owners for which something has landed
    queue: tuple[str, ...]
    probation: tuple[str, ...]
    parked: tuple[str, ...]
    counters: Mapping[str, Mapping[str, str]]
    indexed: frozenset[str]  # `probation` and `parked`, where the list is known to have some
    handed_on: int  # how often a step was


def see(keys: Keys, rows: Rows) -> Seen:
    values = {key: row for key, _, row in rows}
    pairs = {
        key: dict(zip(row[::2], row[1::2], strict=True))
        for key, kind, row in rows
        if kind in ("hash", "zset")
    }
    held, running, noted = {}, {}, {}
    places: dict[str, list[str]] = {}

    def lies(where: str, *raws: str) -> tuple[str, ...]:
        names = tuple(NAMES.get(raw.encode("latin-1"), raw) for raw in raws)
        for name in names:
            places.setdefault(name, []).append(where)
        return names

    landed = set()
    for key, row in pairs.items():
        if key.startswith(keys.private("")):
            owner = key.removeprefix(keys.private(""))
            claims = {id: raw for id, raw in row.items() if not id.startswith(NOTES)}
            noted[owner] = frozenset(id[1:] for id in row.keys() - claims.keys())
            running[owner] = frozenset(id for id in claims if WAITS + id not in row)
            held[owner] = dict(zip(claims, lies(f"held by {owner}", *claims.values()), strict=True))
    for key, row in values.items():
        if key.startswith(keys.landing("", "")[:-1]):
            owner = key.removeprefix(keys.landing("", "")[:-1]).rpartition(":")[0]
            landed.add(owner)
            lies(f"landed for {owner}", *row)
    parked = [member.partition("\n")[2] for member in pairs.get(keys.parked_of(QUEUE), ())]
    dead = [json.loads(text)["payload"] for text in pairs.get(keys.dead_jobs, {}).values()]
    indexed = set()
    if QUEUE in values.get(keys.on_probation, ()):
        indexed.add("probation")
    if QUEUE in pairs.get(keys.parked, ()):
        indexed.add("parked")
    lies("dead", *dead)
    return Seen(
        owners={name: int(score) for name, score in pairs.get(keys.owners, {}).items()},
        reaped=frozenset(pairs.get(keys.reaped, ())),
        marked=frozenset(
            key.removeprefix(keys.owner_record(""))
            for key, row in pairs.items()
            if key.startswith(keys.owner_record("")) and row.get("state") == "reaped"
        ),
        held=held,
        running=running,
        noted=noted,
        landed=frozenset(landed),
        queue=lies("queue", *values.get(keys.queue(QUEUE), ())),
        probation=lies("probation", *values.get(keys.probation(QUEUE), ())),
        parked=lies("parked", *parked),
        counters={
            name: pairs[key]
            for name, raw in JOBS.items()
            if (key := keys.history(digest(raw))) in pairs
        },
        indexed=frozenset(indexed),
        places={name: tuple(where) for name, where in places.items()},
        handed_on=len(values.get(keys.queue(NEXT), ())),
    )
