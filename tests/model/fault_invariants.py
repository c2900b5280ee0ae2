"""What must hold on the server and in a process of the fault harness when it has settled."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from celery_superfetch.model.job import Job, digest, parse
from celery_superfetch.store.private_lists import STEPS, WAITS

if TYPE_CHECKING:
    from model.fault_world import World

Fields = Mapping[bytes, bytes]


def name(job: Job | bytes) -> str:
    """Return the task id of a job, by which a failure names it."""
    return str(parse(job if isinstance(job, bytes) else job.payload).task_id)


def claims_in(private_list: Fields) -> dict[str, bytes]:
    """Return claim id -> payload."""
    rows = {field.decode(): raw for field, raw in private_list.items()}
    return {field: raw for field, raw in rows.items() if not field.startswith((WAITS, STEPS))}


def notes_in(private_list: Fields, prefix: str) -> set[str]:
    """Return the claims beside which there is a note of one kind."""
    fields = [field.decode() for field in private_list]
    return {field.removeprefix(prefix) for field in fields if field.startswith(prefix)}


def broken_invariants(world: World) -> Iterator[str]:
    """Yield a sentence for each invariant that does not hold."""
    keyspace = Keyspace(world)
    yield from _wrong_places(world, keyspace)
    yield from _wrong_leases(world, keyspace)
    yield from _wrong_announcements(world, keyspace)
    yield from _wrong_keys(world, keyspace)


class Keyspace:
    """What the server has of the jobs of one world, read in one round trip."""

    def __init__(self, world: World) -> None:
        keys, queues, owners = world.keys, [*world.queues], world.owners
        with world.client.pipeline(transaction=False) as pipe:
            for queue_list in queues:
                pipe.lrange(keys.queue(queue_list), 0, -1)
                pipe.lrange(keys.probation(queue_list), 0, -1)
                pipe.zrange(keys.parked_of(queue_list), 0, -1)
                pipe.zscore(keys.parked, queue_list)
                pipe.pttl(keys.queue(queue_list))
                for owner in owners:
                    pipe.lrange(keys.landing(owner, queue_list), 0, -1)
            for owner in owners:
                pipe.hgetall(keys.private(owner))
            for raw in world.jobs:
                pipe.hmget(keys.history(digest(raw)), "stops", "strikes")
            pipe.smembers(keys.on_probation)
            pipe.hvals(keys.dead_jobs)
            pipe.hget(keys.stats, "lost")
            replies = iter(pipe.execute())
        #: Where there are jobs -> their payloads.
        self.places: dict[str, list[bytes]] = {}
        self.probation: dict[str, list[bytes]] = {}
        #: Queue lists with parked jobs that the index of such lists does not name.
        self.not_in_parked_index: list[str] = []
        self.ttl_ms: dict[str, int] = {}
        for queue_list in queues:
            self.places[queue_list] = next(replies)
            self.probation[queue_list] = next(replies)
            self.places[f"probation of {queue_list}"] = self.probation[queue_list]
            members = next(replies)
            self.places[f"parked of {queue_list}"] = [raw.partition(b"\n")[2] for raw in members]
            if next(replies) is None and members:
                self.not_in_parked_index.append(queue_list)
            self.ttl_ms[queue_list] = next(replies)
            for owner in owners:
                self.places[f"landed from {queue_list} for {owner}"] = next(replies)
        self.private: dict[str, Fields] = {owner: next(replies) for owner in owners}
        for owner, fields in self.private.items():
            self.places[f"private list of {owner}"] = [*claims_in(fields).values()]
        #: Job -> how many stops and how many strikes its history has.
        self.counts = {raw: [int(text or 0) for text in next(replies)] for raw in world.jobs}
        self.on_probation = {raw.decode() for raw in next(replies)}
        records = next(replies)
        self.places["dead set"] = [json.loads(record)["payload"].encode() for record in records]
        self.lost_count = int(next(replies) or 0)


def _wrong_places(world: World, keyspace: Keyspace) -> Iterator[str]:
    """Each job is in exactly one place, or finished. One that a reaper took may run again."""
    found: dict[bytes, list[str]] = {raw: [] for raw in world.jobs}
    for place, payloads in keyspace.places.items():
        for raw in payloads:
            found[raw].append(place)
    taken = {raw for _, raw in world.taken}
    for raw, places in found.items():
        if len(places) > 1:
            yield f"in two places: {name(raw)}, {places}"
        elif not places and raw not in world.finished:
            yield f"lost: {name(raw)}"
        elif places and raw in world.finished and raw not in taken:
            yield f"finished, and still there: {name(raw)}, {places}"


def _wrong_leases(world: World, keyspace: Keyspace) -> Iterator[str]:
    """What the process knows of its jobs is what the server has of them."""
    driver, faults = world.driver, world.faults
    if driver.settled_count or driver.returning_count or driver.has_unsent:
        yield f"still to be sent: {[(name(job), driver.state(job)) for job in driver]}"
    for job in world.strays.intersection(driver):
        yield f"no channel has it, and it was not requeued: {name(job)}, {driver.state(job)}"
    if driver.has_unread or faults.unread_count:
        yield "still to be read: replies on an open connection"
    if faults.overread_count:
        yield "a reply was read that no command had asked for"
    for owner, fields in keyspace.private.items():
        claims, waiting = claims_in(fields), notes_in(fields, WAITS)
        notes = waiting | notes_in(fields, STEPS)
        if not notes <= claims.keys():
            yield f"a note without a claim: {notes - claims.keys()}"
        leases = {job.claim_id: job for job in driver if job.owner == owner}
        for claim_id in claims.keys() - leases.keys():
            yield f"on the server, and no lease knows it: {name(claims[claim_id])}"
        for claim_id, job in leases.items() if owner not in world.reaped else ():
            if claim_id not in claims:
                yield f"held, and not on the server: {name(job)}, {driver.state(job)}"
            elif driver.is_running(job) and claim_id in waiting:
                yield f"a start was not recorded: {name(job)}"
            elif not (driver.is_running(job) or claim_id in waiting or world.may_be_recorded(job)):
                yield f"recorded as running, and not started: {name(job)}"


def _wrong_announcements(world: World, keyspace: Keyspace) -> Iterator[str]:
    """Ownership was lost of jobs that a reaper took, and the server lost none."""
    for (owner, raw), times in world.announced.items():
        if (owner, raw) not in world.taken:
            yield f"announced as lost, and no reaper took it: {name(raw)}"
        elif times > 1:
            yield f"announced {times} times: {name(raw)}"
    if keyspace.lost_count:
        yield f"{keyspace.lost_count} jobs were reported as lost by the server"


def _wrong_keys(world: World, keyspace: Keyspace) -> Iterator[str]:
    """Queues expire as their consumer declared them; indexes and counts fit what they count."""
    for queue_list, expires_ms in world.queues.items():
        if expires_ms and keyspace.ttl_ms[queue_list] == -1:
            yield f"queue {queue_list} does not expire any more"
        if keyspace.probation[queue_list] and queue_list not in keyspace.on_probation:
            yield f"the index of jobs on probation lacks {queue_list}"
    for queue_list in keyspace.not_in_parked_index:
        yield f"the index of parked jobs lacks {queue_list}"
    for raw, (stops, strikes) in keyspace.counts.items():
        if stops > world.stops[raw]:
            yield f"{stops} stops were counted, {world.stops[raw]} were made: {name(raw)}"
        if strikes > world.strikes[raw]:
            yield f"{strikes} strikes, and {world.strikes[raw]} lost processes: {name(raw)}"
