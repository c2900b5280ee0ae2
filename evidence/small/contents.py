"""The jobs of the small world, and what a keyspace contains of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from celery_superfetch.model.job import digest
from celery_superfetch.store.keys import Keys
from celery_superfetch.store.private_lists import STEPS, WAITS
from support.workers.bench import payload

QUEUE = "q"
#: The jobs; in some settings `B` is a pill, which kills each process that runs it.
JOBS = {"A": payload("A", QUEUE), "B": payload("B", QUEUE)}
#: The step that `A` publishes in some settings, and its queue, from which no process claims.
STEP, NEXT = payload("step", "next"), "next"
NAMES = {raw: name for name, raw in JOBS.items()}

#: First letters of the fields of a private list that are notes of a claim, and no claims.
NOTES = (WAITS, STEPS)
#: The keys of a keyspace: name, kind, values.
Rows = tuple[tuple[str, str, tuple[str, ...]], ...]


class Contents(NamedTuple):
    """What a keyspace contains."""

    #: Job -> the places in which it is. A payload that is no job is here under its own bytes.
    places: Mapping[str, tuple[str, ...]]
    owners: Mapping[str, int]  # owner -> score of its last heartbeat
    tombstones: frozenset[str]  # owners that each pass still drains
    marked: frozenset[str]  # owners that were declared dead, by their records
    claims: Mapping[str, Mapping[str, str]]  # owner -> claim id -> job
    running: Mapping[str, frozenset[str]]  # owner -> its claims without a waiting note
    with_notes: Mapping[str, frozenset[str]]  # owner -> its claims that have a note
    landed: frozenset[str]  # owners for which a job has landed
    queue: tuple[str, ...]
    probation: tuple[str, ...]
    parked: tuple[str, ...]
    histories: Mapping[str, Mapping[str, str]]  # job -> fields of its history
    #: `probation` and `parked`: those of the two in whose index the queue list is.
    indexed: frozenset[str]
    step_count: int  # how often the step was published

    def was_recovered(self, job: str) -> bool:
        """Return whether a job was recovered after the death of an owner, and not acked since."""
        return int(self.histories.get(job, {}).get("recoveries", 0)) > 0


def contents_of(keys: Keys, rows: Rows) -> Contents:
    """Read the keys of a keyspace."""
    values = {key: row for key, _, row in rows}
    pairs = {
        key: dict(zip(row[::2], row[1::2], strict=True))
        for key, kind, row in rows
        if kind in ("hash", "zset")
    }
    claims, running, with_notes = {}, {}, {}
    places: dict[str, list[str]] = {}

    def names_in(place: str, *raws: str) -> tuple[str, ...]:
        """Add a place to each of these payloads; return their names."""
        names = tuple(NAMES.get(raw.encode("latin-1"), raw) for raw in raws)
        for name in names:
            places.setdefault(name, []).append(place)
        return names

    landed = set()
    for key, row in pairs.items():
        if key.startswith(keys.private("")):
            owner = key.removeprefix(keys.private(""))
            raws = {id: raw for id, raw in row.items() if not id.startswith(NOTES)}
            with_notes[owner] = frozenset(id[1:] for id in row.keys() - raws.keys())
            running[owner] = frozenset(id for id in raws if WAITS + id not in row)
            names = names_in(f"the private list of {owner}", *raws.values())
            claims[owner] = dict(zip(raws, names, strict=True))
    for key, row in values.items():
        if key.startswith(keys.landing("", "")[:-1]):
            owner = key.removeprefix(keys.landing("", "")[:-1]).rpartition(":")[0]
            landed.add(owner)
            names_in(f"the landing list of {owner}", *row)
    parked = [member.partition("\n")[2] for member in pairs.get(keys.parked_of(QUEUE), ())]
    dead = [json.loads(text)["payload"] for text in pairs.get(keys.dead_jobs, {}).values()]
    indexed = set()
    if QUEUE in values.get(keys.on_probation, ()):
        indexed.add("probation")
    if QUEUE in pairs.get(keys.parked, ()):
        indexed.add("parked")
    names_in("the dead set", *dead)
    return Contents(
        owners={name: int(score) for name, score in pairs.get(keys.owners, {}).items()},
        tombstones=frozenset(pairs.get(keys.reaped, ())),
        marked=frozenset(
            key.removeprefix(keys.owner_record(""))
            for key, row in pairs.items()
            if key.startswith(keys.owner_record("")) and row.get("state") == "reaped"
        ),
        claims=claims,
        running=running,
        with_notes=with_notes,
        landed=frozenset(landed),
        queue=names_in("the queue", *values.get(keys.queue(QUEUE), ())),
        probation=names_in("probation", *values.get(keys.probation(QUEUE), ())),
        parked=names_in("the parked set", *parked),
        histories={
            name: pairs[key]
            for name, raw in JOBS.items()
            if (key := keys.history(digest(raw))) in pairs
        },
        indexed=frozenset(indexed),
        places={name: tuple(where) for name, where in places.items()},
        step_count=len(values.get(keys.queue(NEXT), ())),
    )
